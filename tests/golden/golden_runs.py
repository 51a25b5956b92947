"""The runs that the golden files hold: which commands, on which data, and how they are made.

A run is three trainings of a tiny model on a fixed text, dropout off, every digit in the log:

* ``start``:  updates 1 to 30, nothing saved in between
* ``save``:   updates 1 to 10, which leaves a checkpoint from the middle of the first epoch
* ``resume``: updates 11 to 20 from that checkpoint, over the end of the first epoch

``files/NAME.json`` has losses and gradient norms of the first and the last, ``files/NAME.pt`` the
checkpoint.  Runs with the same `GLOBAL` batches see the same sentences in the same updates.

``async`` has no golden file: its updates depend on the order in which gradients arrive.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

from jobs import curve, run

HERE = Path(__file__).parent
FILES = HERE / "files"
DATA = HERE / "data"
START, SAVED, RESUMED = 30, 10, 20
"""last update of each training"""
CLOSE = 1e-4
"""relative difference of losses and norms that rounding may make, on another processor say"""
SETTLED, GROWN = 5, 2e-3
"""`ng_sgd` divides by small eigenvalues, by which rounding grows: on another kind of processor its
losses differed by 4e-4 after a few updates. So only its first updates are compared closely."""

PLUGIN = '''
"""fairseq_hybrid, with every digit in the log."""

import fairseq.logging.meters

import fairseq_hybrid

fairseq.logging.meters.safe_round = lambda number, digits: number
'''


# Commands


TRAIN = (
    *("--cpu", "--seed", "7", "--num-workers", "0", "--user-dir", "golden_plugin"),
    *("--batch-size", "8", "--required-batch-size-multiple", "1"),
    *("--disable-validation", "--no-epoch-checkpoints", "--log-interval", "1"),
    *("--log-format", "json", "--save-dir", "saved"),
)
ADAM = ("--optimizer", "adam", "--lr", "0.005", "--clip-norm", "1.0")
LSTM = (
    *("--arch", "hybrid_lstm", "--encoder-layers", "4", "--decoder-layers", "4", "--dropout", "0"),
    *("--encoder-embed-dim", "8", "--encoder-hidden-size", "8"),
)
LM = (
    *("--task", "streamed_language_modeling", "--arch", "hybrid_lstm_lm", "--dropout", "0"),
    *("--decoder-embed-dim", "8", "--decoder-hidden-size", "8", "--tokens-per-sample", "10"),
)
NGRAM = (
    *("--task", "streamed_language_modeling", "--arch", "feedforward_lm", "--dropout", "0"),
    *("--ngram", "3", "--hidden-layers", "2", "--hidden-size", "8", "--decoder-embed-dim", "8"),
    *("--tokens-per-sample", "10"),
)
NG_SGD = ("--optimizer", "ng_sgd", "--lr", "0.2", "--clip-norm", "0")
SAMPLED = ("--criterion", "sampled_softmax", "--sample-frequent", "10", "--sample-random", "15")
AVERAGING = ("--averaging-interval", "4", "--averaging-warmup", "2", "--averaging-state", "average")
TRANSLATION, TEXT = "translation", "text"


def on(backend: str, workers: int, update_freq: int = 1, *more: str) -> tuple[str, ...]:
    spread = ("--ddp-backend", backend, "--distributed-world-size", str(workers))
    return (*spread, "--update-freq", str(update_freq), *more)


def translation(*more: str) -> tuple[str, ...]:
    return (TRANSLATION, *TRAIN, *ADAM, *LSTM, *more)


def text(*more: str, arch: tuple[str, ...] = LM, optimizer=ADAM) -> tuple[str, ...]:
    return (TEXT, *TRAIN, *optimizer, *arch, *more)


GLOBAL = {  # 15 updates an epoch, of four batches each
    "one": translation("--update-freq", "4"),
    "legacy_ddp-2": translation(*on("legacy_ddp", 2, 2)),
    "pytorch_ddp-2": translation(*on("pytorch_ddp", 2, 2)),
    "hybrid-2-by-2": translation(*on("hybrid", 2, 2)),
    "hybrid-4": translation(*on("hybrid", 4)),
    "hybrid-4-stages-2": translation(*on("hybrid", 4, 1, "--hybrid-stages", "2")),
}
RUNS = {
    **GLOBAL,
    "one-input-feeding": translation("--update-freq", "2", "--input-feeding"),
    "one-bidirectional": translation("--update-freq", "2", "--encoder-bidirectional-first"),
    "one-text": text(),
    "hybrid-2": translation(*on("hybrid", 2)),
    "hybrid-2-input-feeding": translation(*on("hybrid", 2), "--input-feeding"),
    "hybrid-2-tied": translation(*on("hybrid", 2), "--share-all-embeddings"),
    "hybrid-2-bidirectional": translation(*on("hybrid", 2), "--encoder-bidirectional-first"),
    "hybrid-2-messages": translation(*on("hybrid", 2, 1, "--sums-through", "messages")),
    "hybrid-2-sampled": translation(*on("hybrid", 2), *SAMPLED),
    "model_parallel-2": translation(*on("model_parallel", 2)),
    "decoupled-2": translation(*on("hybrid", 2, 1, "--hybrid-schedule", "decoupled")),
    "sampled-2-text": text(*on("sampled", 2), *SAMPLED),
    "sampled-2-translation": translation(*on("sampled", 2), *SAMPLED),
    "model_averaging-2": text(*on("model_averaging", 2), *AVERAGING),
    "ng_sgd": text(arch=NGRAM, optimizer=NG_SGD),
    "ng_sgd-model_averaging-2": text(
        *on("model_averaging", 2), *AVERAGING, arch=NGRAM, optimizer=NG_SGD
    ),
}
"""NAME → the folder in `DATA` and all flags but ``--max-update``"""


def command(name: str, last: int, *more: str) -> list[str]:
    """As typed in a folder that `prepare` has set up."""
    data, *flags = RUNS[name]
    return ["fairseq-train", f"data/{data}", *flags, "--max-update", str(last), *more]


def prepare(folder: Path) -> Path:
    """A working folder, in which all paths of a command are relative: checkpoints store them."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "data").symlink_to(DATA)
    (folder / "golden_plugin").mkdir()
    (folder / "golden_plugin/__init__.py").write_text(PLUGIN)
    return folder


Train = Callable[[Path, list], object]
"""runs a command in a folder; the result has `out`"""


def points(result, first: int, last: int) -> dict[str, list[float]]:
    """Losses and norms of these updates, which have to be all that there are."""
    found = {key: curve(result, key) for key in ("loss", "gnorm")}
    for curve_of_key in found.values():
        assert list(curve_of_key) == list(range(first, last + 1))
    return {key: list(values.values()) for key, values in found.items()}


def start(name: str, folder: Path, train: Train) -> dict[str, list[float]]:
    """Losses and norms of updates 1 to 30."""
    return points(train(folder, command(name, START, "--no-save")), 1, START)


def resume(name: str, folder: Path, train: Train, checkpoint: Path) -> dict[str, list[float]]:
    """Losses and norms of the updates that follow a checkpoint."""
    words = command(name, RESUMED, "--no-save", "--restore-file", str(checkpoint))
    return points(train(folder, words), SAVED + 1, RESUMED)


# The text


def write_data() -> None:
    """Two small folders as fairseq-preprocess makes them."""
    chance = random.Random(20190)
    raw = FILES / "raw"
    raw.mkdir(parents=True)
    with open(raw / "train.a", "w") as source, open(raw / "train.b", "w") as target:
        for _ in range(480):
            # frequent words and rare ones; the target is the source backwards, a word further on
            words = [int(40 * chance.random() ** 2) for _ in range(3 + int(8 * chance.random()))]
            print(*(f"w{word}" for word in words), file=source)
            print(*(f"w{(word + 1) % 40}" for word in reversed(words)), file=target)
    both = ("-s", "a", "-t", "b", "--joined-dictionary")
    for name, more, pref in ((TRANSLATION, both, "train"), (TEXT, ("--only-source",), "train.b")):
        folder = DATA / name
        run("fairseq-preprocess", *more, "--trainpref", raw / pref, "--destdir", folder).ok()
        (folder / "preprocess.log").unlink()
    for file in (*raw.iterdir(),):
        file.unlink()
    raw.rmdir()

"""A job that is resumed in the middle of an epoch by another number of workers.

480 sentences by 13 are 37 batches, dealt out 4 to an update by every shape below: 10 updates an
epoch, the last with one batch for all workers together. A job is saved after update 16, in the
middle of epoch 2, whose batches are those that were made for epoch 1, and resumed to update 24, in
epoch 3. Dropout is 0: it draws differently on another number of workers.

The plugin writes down which sentences every worker trains on, and takes away the rounding of the
log. `make test-long` makes all 16 pairs, the other backends both ways with one worker, and a job
without our position, as it was saved before.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections import defaultdict
from pathlib import Path

import pytest
import torch
from jobs import curve, train_command
from warm import Warm, shared_server

import fairseq_hybrid  # noqa: F401
from fairseq_hybrid import checkpoints

PLUGIN = """
import json, os
import fairseq.logging.meters
from fairseq.tasks.fairseq_task import FairseqTask
import fairseq_hybrid
import torch.distributed as dist

fairseq.logging.meters.safe_round = lambda number, digits: number
train_step = FairseqTask.train_step

def noted(self, sample, model, criterion, optimizer, update_num, ignore_grad=False):
    if not ignore_grad and sample["nsentences"]:
        rank = dist.get_rank() if dist.is_initialized() else 0
        with open(os.environ["NOTES"] + f"/sentences.{rank}", "a") as f:
            print(json.dumps([update_num + 1, sample["id"].tolist()]), file=f)
    return train_step(self, sample, model, criterion, optimizer, update_num, ignore_grad)

FairseqTask.train_step = noted
"""
LSTM = (
    *("--arch", "hybrid_lstm", "--encoder-layers", "4", "--dropout", "0"),
    *("--encoder-embed-dim", "16", "--encoder-hidden-size", "16"),
)
SAVED, END = 16, 24
EMA = ("--store-ema",)
JOB = (
    *("--batch-size", "13", "--required-batch-size-multiple", "1", "--clip-norm", "0.5"),
    *("--num-workers", "0", "--disable-validation", "--no-epoch-checkpoints"),
    *("--save-interval", "100", "--save-interval-updates", f"{SAVED}"),
)


def on(backend: str, workers: int, *more: str) -> tuple[str, ...]:
    workers_and_backend = ("--distributed-world-size", f"{workers}", "--ddp-backend", backend)
    return (*workers_and_backend, "--update-freq", f"{4 // workers}", *more)


SAMPLED = ("--criterion", "sampled_softmax", "--sample-frequent", "20", "--sample-random", "30")
ONE = "one worker"
SHAPES = {
    ONE: ("--update-freq", "4"),
    "legacy_ddp 2": on("legacy_ddp", 2),
    "hybrid 2": on("hybrid", 2),
    "hybrid 4": on("hybrid", 4),
}
EXACT = {
    "pytorch_ddp 2": on("pytorch_ddp", 2),
    "model_parallel 2": on("model_parallel", 2),
    "hybrid 2 x 2": on("hybrid", 4, "--hybrid-stages", "2"),
}
SEPARATE = {
    "decoupled 2": on("hybrid", 2, "--hybrid-schedule", "decoupled"),
    "model_averaging 2": on("model_averaging", 2),
    "async 2": (*on("async", 2), *SAMPLED),
    "sampled 2": (*on("sampled", 2), *SAMPLED),
}
ALL = {**SHAPES, **EXACT, **SEPARATE}
PAIRS = [(a, b) for a in SHAPES for b in SHAPES]
QUICK = [(ONE, "hybrid 2"), ("hybrid 2", ONE)]
BOTH_WAYS = [pair for name in EXACT for pair in ((ONE, name), (name, ONE))]


class Run:
    def __init__(self, folder: Path, result):
        self.folder, self.result = folder, result

    @property
    def sentences(self) -> dict[int, list[int]]:
        """Those of every update, of all workers."""
        seen = defaultdict(list)
        for notes in self.folder.glob("sentences.*"):
            for line in notes.read_text().splitlines():
                update, numbers = json.loads(line)
                seen[update] += numbers
        return {update: sorted(numbers) for update, numbers in sorted(seen.items())}

    def checkpoint(self) -> dict:
        return checkpoints.load(str(self.folder / "checkpoint_last.pt"))


class Lab:
    def __init__(self, server, data, folder):
        self.server, self.data, self.folder = server, data, folder
        self.plugin = folder / "noting_plugin"
        self.plugin.mkdir()
        (self.plugin / "__init__.py").write_text(PLUGIN)
        self.made: dict[str, Run] = {}

    def train(self, folder: Path, *more: str, env=None) -> Run:
        command = train_command(self.data, folder, *JOB, *more, arch=LSTM)
        command += ["--user-dir", str(self.plugin)]
        server = shared_server(bare=True) if env else self.server  # a switch is read at once
        result = Warm(server, command, folder, NOTES=str(folder), **(env or {})).finish()
        return Run(folder, result.ok())

    def whole(self, name: str, *more: str, env=None) -> Run:
        """Without an interruption, and with a checkpoint in the middle."""
        key = " ".join((name, *more, *(env or {})))
        if key not in self.made:
            folder = Path(tempfile.mkdtemp(dir=self.folder))
            self.made[key] = self.train(
                folder, *ALL[name], *more, "--max-update", f"{END}", env=env
            )
        return self.made[key]

    def resumed(self, of: Run, name: str, folder: Path, *more: str) -> Run:
        shutil.copy(of.folder / f"checkpoint_2_{SAVED}.pt", folder / "checkpoint_last.pt")
        return self.train(folder, *ALL[name], *more, "--max-update", f"{END}")


@pytest.fixture(scope="module")
def lab(server, data, tmp_path_factory) -> Lab:
    return Lab(server, data, tmp_path_factory.mktemp("resumes"))


def later(values: dict) -> dict:
    return {update: value for update, value in values.items() if update > SAVED}


def assert_goes_on(got: Run, expected: Run, report=print) -> None:
    assert f"epoch 2 @ {SAVED} updates" in got.result.all
    assert got.sentences == later(expected.sentences)
    worst = {}
    for key in ("loss", "gnorm"):
        want = later(curve(expected.result, key))
        assert list(want) == list(range(SAVED + 1, END + 1))
        assert curve(got.result, key) == pytest.approx(want, rel=1e-4), key
        worst[key] = max(abs(curve(got.result, key)[u] / want[u] - 1) for u in want)
    mine, theirs = got.checkpoint(), expected.checkpoint()
    averages = [checkpoint["extra_state"].get("ema", {}) for checkpoint in (mine, theirs)]
    pairs = {"weights": (mine["model"], theirs["model"]), "averages": averages}
    for kind, (a, b) in pairs.items():
        assert a.keys() == b.keys()
        differences = [(a[n] - b[n]).double().norm() / b[n].double().norm() for n in b]
        worst[kind] = float(max(differences, default=0))
        assert worst[kind] < 1e-4, kind
    report(" ".join(f"{key} {value:.1e}" for key, value in worst.items()))


def test_an_epoch_is_every_sentence_once(lab):
    """The run that the others are compared with."""
    run = lab.whole(ONE, *EMA)
    for first in (1, 11):
        epoch = [i for u in range(first, first + 10) for i in run.sentences[u]]
        assert sorted(epoch) == list(range(480))


@pytest.mark.parametrize(
    ("saved", "resumed"),
    [
        pytest.param(a, b, id=f"{a} - {b}", marks=[] if (a, b) in QUICK else [pytest.mark.long])
        for a, b in [*PAIRS, *BOTH_WAYS]
    ],
)
def test_goes_on_as_without_a_break(lab, saved, resumed, tmp_path):
    got = lab.resumed(lab.whole(saved, *EMA), resumed, tmp_path, *EMA)
    assert_goes_on(got, lab.whole(ONE, *EMA))
    assert got.checkpoint()["extra_state"]["ema"]


@pytest.mark.long
@pytest.mark.parametrize("name", SEPARATE)
@pytest.mark.parametrize("direction", ["from", "to"])
def test_other_updates_go_on_with_the_same_sentences(lab, name, direction, tmp_path):
    """Where the updates of several workers are not those of one: late or unaveraged gradients, a
    sample of words that goes by the joined batch."""
    more = SAMPLED if SAMPLED[0] in ALL[name] else ()
    ways = (name, ONE) if direction == "from" else (ONE, name)
    saved = lab.whole(ways[0], *more)
    got = lab.resumed(saved, ways[1], tmp_path, *more)
    assert got.sentences == later(lab.whole(ONE).sentences)
    losses = curve(got.result)
    assert list(losses) == list(range(SAVED + 1, END + 1))
    assert losses[END] < curve(saved.result)[1]


@pytest.mark.long
@pytest.mark.parametrize("resumed", list(SHAPES))
def test_a_checkpoint_from_before_goes_on_too(lab, resumed, tmp_path):
    """Saved without a position of all workers, as by fairseq itself."""
    old = lab.whole(ONE, env={"FAIRSEQ_HYBRID_WITHOUT": "position"})
    state = torch.load(old.folder / f"checkpoint_2_{SAVED}.pt", weights_only=False)
    assert set(state["extra_state"]["train_iterator"]) == {
        *("version", "epoch", "iterations_in_epoch", "shuffle")
    }
    assert_goes_on(lab.resumed(old, resumed, tmp_path), lab.whole(ONE))


@pytest.mark.long
@pytest.mark.parametrize(
    "other", [("--batch-size", "26", "--update-freq", "2"), ("--update-freq", "3")]
)
def test_other_batches_see_the_rest_of_the_epoch_once(lab, other, tmp_path):
    whole = lab.whole(ONE)
    got = lab.resumed(whole, "hybrid 2", tmp_path, *other, "--max-epoch", "2")
    before = [i for u in range(11, SAVED + 1) for i in whole.sentences[u]]
    after = [i for numbers in got.sentences.values() for i in numbers]
    assert sorted(before + after) == list(range(480))
    says = "make 7 new batches" if "--batch-size" in other else "an update was 4 batches and is 6"
    assert got.result.all.count(says) == 1

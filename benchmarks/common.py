"""What the benchmarks share: corpora for fairseq, and where a number was measured.

Importing this module makes the package of this folder importable and fairseq's log silent.
"""

from __future__ import annotations

import datetime
import functools
import importlib.metadata
import logging
import platform
import re
import subprocess
import sys
import time
import warnings
from collections.abc import Mapping
from pathlib import Path

import torch
from measured import medians, ratios  # noqa: F401  (what benchmarks find here)

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
logging.disable(logging.WARNING)
warnings.simplefilter("ignore")

MULTI30K = {"train": "train", "valid": "valid", "test2016": "test"}
"""file of Multi30k → split"""


def prepare(text: Path, cache: Path, vocab: int, splits: Mapping[str, str] = MULTI30K) -> Path:
    """Sentencepiece and fairseq-preprocess, once; returns the folder for fairseq.

    If the text has not enough words for `vocab` pieces, there are as many as it can give.
    """
    done = cache / "bin" / "dict.en.txt"
    if done.exists():
        return done.parent
    import sentencepiece

    cache.mkdir(parents=True, exist_ok=True)
    sentencepiece.SentencePieceTrainer.train(
        input=[str(text / f"train.{side}") for side in ("de", "en")],
        model_prefix=str(cache / "spm"),
        vocab_size=vocab,
        hard_vocab_limit=False,
        model_type="bpe",
        character_coverage=1.0,
        minloglevel=2,
    )
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(cache / "spm.model"))
    for name, split in splits.items():
        for side in ("de", "en"):
            lines = (text / f"{name}.{side}").read_text(encoding="utf-8").splitlines()
            encoded = (" ".join(words) for words in pieces.encode(lines, out_type=str))
            (cache / f"{split}.{side}").write_text("\n".join(encoded) + "\n", encoding="utf-8")
    texts = {split: cache / split for split in splits.values()}
    preprocess(texts, done.parent, "-s", "de", "-t", "en", "--joined-dictionary")
    return done.parent


def prepare_words(text: Path, cache: Path, splits: Mapping[str, str] = MULTI30K) -> Path:
    """fairseq-preprocess of words and punctuation marks, a dictionary for each language, once."""
    done = cache / "bin" / "dict.en.txt"
    if not done.exists():
        cache.mkdir(parents=True, exist_ok=True)
        for name, split in splits.items():
            for side in ("de", "en"):
                whole = (text / f"{name}.{side}").read_text(encoding="utf-8")
                lines = (re.findall(r"\w+|[^\w\s]", line) for line in whole.splitlines())
                made = "".join(" ".join(words) + "\n" for words in lines)
                (cache / f"{split}.{side}").write_text(made, encoding="utf-8")
        texts = {split: cache / split for split in splits.values()}
        preprocess(texts, done.parent, "-s", "de", "-t", "en")
    return done.parent


def prepare_wikitext2(text: Path, cache: Path) -> Path:
    """fairseq-preprocess, once; returns the folder for fairseq. Words are as they come."""
    done = cache / "bin" / "test.idx"  # what is written last
    if not done.exists():
        texts = {split: text / f"wiki.{split}.tokens" for split in ("train", "valid", "test")}
        preprocess(texts, done.parent, "--only-source")
    return done.parent


def preprocess(texts: Mapping[str, Path], folder: Path, *flags: str) -> None:
    """fairseq-preprocess of the text of each split into `folder`."""
    command = [
        *(sys.executable, "-m", "fairseq_cli.preprocess", *flags, "--destdir", str(folder)),
        *(f"--{split}pref={path}" for split, path in texts.items()),
    ]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def sgemm_peak(size: int = 1536, seconds: float = 0.5) -> float:
    """Best rate of a large float32 product, in GFLOP/s."""
    a, b = torch.randn(size, size), torch.randn(size, size)
    best, end = 0.0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        torch.mm(a, b)
        best = max(best, 2 * size**3 / (time.perf_counter() - start) / 1e9)
    return best


@functools.cache
def fast_product(size: int):
    """The faster of torch's two libraries here, as models/products.py takes it."""
    onednn = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
    known = [torch.mm]
    if onednn is not None:
        known.append(lambda a, b: onednn(a, b, None, "none", [], ""))
    a, b = torch.randn(size, size), torch.randn(size, size)
    seconds = []
    for product in known:
        product(a, b)
        begin = time.perf_counter()
        product(a, b)
        seconds.append(time.perf_counter() - begin)
    return known[seconds.index(min(seconds))]


def sgemm_rate(size: int = 1024, seconds: float = 0.5) -> float:
    """What large float32 products reach over a while, in GFLOP/s."""
    a, b = torch.randn(size, size), torch.randn(size, size)
    product = fast_product(size)
    begin, products = time.perf_counter(), 0
    while time.perf_counter() < begin + seconds:
        product(a, b)
        products += 1
    return max(products, 1) * 2 * size**3 / (time.perf_counter() - begin) / 1e9


def environment() -> dict:
    def shell(*command):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        return done.stdout.strip()

    model = [
        s for s in Path("/proc/cpuinfo").read_text().splitlines() if s.startswith("model name")
    ]
    return {
        "machine": model[0].split(":")[1].strip() if model else platform.processor(),
        "date": datetime.datetime.now().isoformat(timespec="seconds"),
        "commit": shell("git", "rev-parse", "--short", "HEAD") or "none",
        # (what other benchmarks have just written is no change of the code)
        "dirty": bool(shell("git", "status", "--porcelain", "--", ".", ":!benchmarks/results")),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "fairseq": importlib.metadata.version("fairseq-fixed"),
        "threads": torch.get_num_threads(),
    }


def command() -> str:
    """The command line, without folders of this machine."""
    program = f"benchmarks/{Path(sys.argv[0]).name}"
    words = (re.sub(r"(^|=)[/~]\S*/", r"\1…/", word) for word in sys.argv[1:])
    return " ".join(["python", program, *words])

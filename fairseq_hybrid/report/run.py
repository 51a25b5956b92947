"""A run: a log, and what is found beside it.

    quickstart-run/  train.log  checkpoints/checkpoint_best.pt
    own-text-run/model/  train.log  checkpoint_best.pt  score.txt

Either folder of a run will do, and so will the log alone. What a log names (checkpoints, a
timeline) is looked for where it says, and beside the log for a run that was moved.
"""

from __future__ import annotations

import math
import re
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fairseq_hybrid.errors import UserError
from fairseq_hybrid.report import log as logs
from fairseq_hybrid.report import settings
from fairseq_hybrid.report.log import Log, Point

LOGS = ("train.log", "hydra_train.log")
FOLDERS = ("", "model", "checkpoints")
CHECKPOINTS = ("checkpoint_best.pt", "checkpoint_last.pt")
SCORE = re.compile(r"BLEU[^=\n]{0,200}= ?(\d{1,3}(?:\.\d{1,4})?)\b")
ALIVE = 90.0
"""seconds since the last line after which a training may be taken for over"""


@dataclass
class Run:
    name: str
    log: Log
    folder: Path
    """where the checkpoints are, or the log"""
    checkpoint: Path | None
    trace: Path | None
    bleu: float | None
    """of the test set, from score.txt"""
    now: float

    def setting(self, name: str, default: object = None) -> object:
        return settings.get(self.log.config, name, default)

    # The curves

    def curve(self, name: str, by_time: bool, unit: float = 1.0) -> list[tuple[float, float]]:
        return _curve(self.log.curve, name, by_time, unit)

    def validation(self, name: str, by_time: bool, unit: float = 1.0) -> list[tuple[float, float]]:
        return _curve(self.log.validations, name, by_time, unit)

    def has(self, name: str) -> bool:
        return any(math.isfinite(p.values.get(name, math.nan)) for p in self.log.curve)

    # Numbers of the whole run

    def middle(self, name: str) -> float | None:
        """The median of a number over the run, without the first reports."""
        values = _finite(p.values.get(name) for p in self.log.curve)
        return statistics.median(values[1:] or values) if values else None

    def mean(self, name: str) -> float | None:
        values = _finite(p.values.get(name) for p in self.log.curve)
        return statistics.fmean(values[1:] or values) if values else None

    def best(self, name: str, choose: Callable[..., Point] = min) -> Point | None:
        """The validation at which a number was best."""
        some = [p for p in self.log.validations if math.isfinite(p.values.get(name, math.nan))]
        return choose(some, key=lambda p: p.values[name]) if some else None

    @property
    def stages(self) -> int:
        return next((n for n in range(1024) if not self.has(f"wait{n}")), 0)

    @property
    def state(self) -> str:
        """How it ended."""
        last = self.log.sessions[-1] if self.log.sessions else None
        if last and last.done:
            return "finished"
        if self.now - self.log.changed < ALIVE:
            return "still training, or just ended"
        return "ended before it was done" if self.log.curve else "has not trained yet"


def open_run(path: str) -> Run:
    given = Path(path)
    if not given.exists():
        raise UserError(f"{path}: not found: give the folder of a run, or its log")
    file = find_log(given)
    found = logs.read(file)
    if not found.curve and not found.validations and found.config is None:
        raise UserError(f"{file} is no log of a training: give what fairseq-train wrote")
    folders = list(dict.fromkeys(_folders(given, file, found)))
    checkpoint = next((f / n for n in CHECKPOINTS for f in folders if (f / n).is_file()), None)
    return Run(
        _name(given, file), found, checkpoint.parent if checkpoint else file.parent, checkpoint,
        _trace(found, folders), _score(folders), time.time(),
    )  # fmt: skip


def find_log(given: Path) -> Path:
    if not given.is_dir():
        return given
    above = any((given / name).is_file() for name in CHECKPOINTS)
    for folder in (*FOLDERS, *([".."] if above else [])):
        for name in LOGS:
            if (given / folder / name).is_file():
                return given / folder / name
    others = [file for file in sorted(given.glob("*.log")) if logs.has_training(file)]
    if len(others) == 1:
        return others[0]
    if others:
        names = " ".join(str(file) for file in others[:8])
        raise UserError(f"{given} has several logs, give those that you want: {names}")
    raise UserError(
        f"{given} has no {LOGS[0]}: give the file with what fairseq-train wrote (to have one next "
        f"time: fairseq-train ... --log-file {given / LOGS[0]})"
    )


def _folders(given: Path, file: Path, log: Log) -> Iterator[Path]:
    """Where the files of a run may be."""
    saved = settings.get(log.config, "save_dir")
    if isinstance(saved, str) and saved and "\0" not in saved:
        yield Path(saved)
        yield file.parent / Path(saved).name
    for start in (given if given.is_dir() else given.parent, file.parent):
        for name in FOLDERS:
            yield start / name


def _trace(log: Log, folders: Sequence[Path]) -> Path | None:
    named = log.trace or settings.get(log.config, "hybrid_trace")
    if not isinstance(named, str) or not named or "\0" in named:
        return None
    places = [Path(named), *(folder / Path(named).name for folder in folders)]
    return next((path for path in places if path.is_file()), None)


def _score(folders: Sequence[Path]) -> float | None:
    for folder in folders:
        path = folder / "score.txt"
        if path.is_file() and path.stat().st_size < 1 << 16:
            found = SCORE.search(path.read_text(encoding="utf-8", errors="replace"))
            if found:
                return float(found[1])
    return None


def _name(given: Path, file: Path) -> str:
    """What tells it from others: the folder, without what all of them have."""
    path = (given if given.is_dir() else file.parent).resolve()
    return path.parent.name if path.name in FOLDERS and path.parent.name else path.name


def distinguish(runs: Sequence[Run], paths: Sequence[str]) -> None:
    """Give runs of the same name the paths that were typed."""
    names = [run.name for run in runs]
    for run, path in zip(runs, paths):
        if names.count(run.name) > 1:
            run.name = path.rstrip("/")


def _curve(
    points: Sequence[Point], name: str, by_time: bool, unit: float
) -> list[tuple[float, float]]:
    return [
        (p.seconds / unit if by_time else float(p.update), p.values[name])
        for p in points
        if name in p.values
    ]


def _finite(values: Iterator[float | None]) -> list[float]:
    return [v for v in values if v is not None and math.isfinite(v)]

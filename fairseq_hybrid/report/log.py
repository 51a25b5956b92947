"""What the log of a training says: curves, validations, messages, and how it ended.

Reads what fairseq writes with ``--log-format`` simple, json or tqdm, and hydra's form of it.
One log may have several sessions, as each resumed training is appended to it. What an earlier
session did beyond the point where the next one goes on is dropped from the curves: it was lost.

Logs are not trusted: a line that is not understood is passed over, long ones are cut, memory has a
bound, and nothing of a log is ever run.
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from fairseq_hybrid.errors import UserError
from fairseq_hybrid.report import settings

LONGEST = 1 << 17
"""bytes of a line; what follows is passed over"""
MOST = 4096
"""points that are kept; of more, neighbours become one"""
MESSAGES = 12
"""kinds of warnings and errors that are kept"""
LARGEST = 1e12
"""of a number that can be meant"""

SIMPLE = re.compile(
    r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?:,\d+)? \| (\w+) \| ([\w.\-]+) \| (.*)", re.S
)
HYDRA = re.compile(
    r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?:,\d+)?\]\[([\w.\-]+)\]\[(\w+)\] - (.*)", re.S
)
NUMBER = r"-?(?:\d{1,30}(?:\.\d{0,30})?(?:[eE][+-]?\d{1,3})?|nan|inf(?:inity)?)"
PAIR = re.compile(rf"\b([a-z][a-z0-9_]{{0,40}})(?:=| ) ?({NUMBER})(?=[,\s|\]]|$)", re.I)
SUBSET = re.compile(r"valid on '([^']{1,80})' subset")
EPOCH = re.compile(r"\bepoch (\d{1,9})\b")
LOADED = re.compile(r"Loaded checkpoint .* @ (\d{1,15}) updates\)")
SIZE = re.compile(r"num\. shared model params: ([\d,]{1,30})")
DONE = re.compile(r"done training in (\d{1,12}(?:\.\d+)?) seconds")
TRACED = re.compile(r"timeline of updates \d+ to \d+: (.{1,1000})")
STOPPED = re.compile(r"Stopping training due to (.*)|early stop since (.*)")


class Point(NamedTuple):
    update: int
    seconds: float
    """of running time, all sessions together"""
    values: dict[str, float]


@dataclass
class Session:
    """From one start to the end, or to the next start."""

    began: datetime | None = None
    ended: datetime | None = None
    first: int | None = None
    """the update it went on from"""
    updates: int = 0
    """the last one that it reported"""
    done: bool = False
    why: str = ""
    """what fairseq said of why it stopped"""


@dataclass
class Log:
    path: Path
    sessions: list[Session] = field(default_factory=list)
    points: list[Point] = field(default_factory=list)
    """of training"""
    epochs: list[Point] = field(default_factory=list)
    """of training, means of whole epochs"""
    validations: list[Point] = field(default_factory=list)
    subset: str = ""
    """the one that is validated on; of several, the first"""
    config: dict[str, Any] | None = None
    parameters: int | None = None
    epoch: int = 0
    lost: int = 0
    """updates that were made again after a restart"""
    trace: str | None = None
    """file with a timeline, as the log names it"""
    messages: dict[str, int] = field(default_factory=dict)
    """warnings and errors, and how often they were said"""
    more_messages: int = 0
    last: str = ""
    """line that is not empty"""
    odd: int = 0
    """reports with a loss that is no finite number"""
    odd_at: int | None = None
    size: int = 0
    changed: float = 0.0
    """when the file was"""

    @property
    def curve(self) -> list[Point]:
        """Of training; where --log-interval is longer than an epoch, by epochs."""
        return self.points or self.epochs

    @property
    def seconds(self) -> float:
        return sum(_between(session.began, session.ended) for session in self.sessions)

    @property
    def updates(self) -> int:
        return max([p.update for p in (*self.curve[-1:], *self.validations[-1:])], default=0)


def read(path: Path) -> Log:
    return _Reader(path).read()


def has_training(path: Path) -> bool:
    """Whether a file is the log of a training, by its beginning."""
    try:
        with path.open("rb") as file:
            start = file.read(1 << 20)
    except OSError:
        return False
    return any(word in start for word in (b"train_inner", b"fairseq_cli.train", b" num_updates"))


def _lines(path: Path) -> Iterator[str]:
    """Those that the file has now. A progress bar rewrites a line: each time it is another."""
    with path.open("rb") as file:
        left = os.fstat(file.fileno()).st_size
        while left > 0:
            raw = file.readline(min(LONGEST, left))
            if not raw:
                return
            left -= len(raw)
            whole = raw.endswith(b"\n")
            yield from raw.decode("utf-8", "replace").replace("\r", "\n").split("\n")
            while not whole and left > 0:  # the rest of a line that is too long
                rest = file.readline(min(LONGEST, left))
                left -= len(rest)
                whole = rest.endswith(b"\n") or not rest


class _Reader:
    def __init__(self, path: Path):
        about = path.stat()
        if not stat.S_ISREG(about.st_mode):
            raise UserError(f"{path} is no file: give a log, or the folder of a run")
        self.log = Log(path, size=about.st_size, changed=about.st_mtime)
        self.before = 0.0
        """seconds of the sessions that have ended"""
        self.now: datetime | None = None

    def read(self) -> Log:
        for line in _lines(self.log.path):
            if not line or line.isspace():
                continue
            self.log.last = line[:400]
            found = SIMPLE.match(line)
            if found:
                when, level, name, text = found.groups()
            elif found := HYDRA.match(line):
                when, name, level, text = found.groups()
            else:
                if "num_updates" in line and EPOCH.search(line):  # a progress bar's
                    self._report("train_inner", line)
                continue
            self._clock(when)
            if level in ("WARNING", "ERROR", "CRITICAL"):
                self._message(f"{level.lower()}: {text}")
            elif name.startswith("fairseq"):
                self._told(name, text)
            else:
                self._report(name, text)
        return self.log

    def _clock(self, when: str) -> None:
        try:
            now = datetime.fromisoformat(when)
        except ValueError:
            return
        if self.now is None or now > self.now:  # a clock that was put back stands still
            self.now = now
        if self.log.sessions:
            self.log.sessions[-1].began = self.log.sessions[-1].began or self.now

    def _alive(self) -> None:
        """What is read now was written by the session, not by the start of the next one."""
        self.session.ended = self.now

    def _begin(self) -> Session:
        if self.log.sessions:
            before = self.log.sessions[-1]
            self.before += _between(before.began, before.ended)
        self.log.sessions.append(Session(self.now, self.now))
        return self.log.sessions[-1]

    @property
    def session(self) -> Session:
        return self.log.sessions[-1] if self.log.sessions else self._begin()

    def _told(self, name: str, text: str) -> None:
        """What fairseq says beside its reports."""
        if name == "fairseq_cli.train" and text.startswith("{") and "'common'" in text:
            self._begin()
            self.log.config = settings.parse(text) or self.log.config
        elif found := LOADED.search(text):
            self.session.first = int(found[1])
        elif found := SIZE.search(text):
            self.log.parameters = int(found[1].replace(",", "") or 0)
        elif DONE.search(text):
            self.session.done = True
            self._alive()
        elif found := TRACED.search(text):
            self.log.trace = found[1].strip()
        elif found := STOPPED.search(text):
            self.session.why = (found[1] or found[2])[:200]

    def _message(self, text: str) -> None:
        text = " ".join(text.split())[:300]
        messages = self.log.messages
        if text in messages or len(messages) < MESSAGES:
            messages[text] = messages.get(text, 0) + 1
        else:
            self.log.more_messages += 1

    def _report(self, name: str, text: str) -> None:
        """Numbers of training or of a validation."""
        values = _values(text)
        subset = SUBSET.search(text)
        if name == "train" or name == "train_inner":
            values = _without(values, "train_")
        elif subset or f"{name}_loss" in values:
            values = _without(values, f"{name}_")
            name = subset[1] if subset else name
            self.log.subset = self.log.subset or name
            if name != self.log.subset:
                return
        else:
            return
        number = values.pop("num_updates", math.nan)
        if math.isnan(number) and name == self.log.subset:
            number = self.log.updates or math.nan
        if "loss" not in values or not 0 <= number <= LARGEST:
            return
        epoch = EPOCH.search(text)
        count = float(epoch[1]) if epoch else values.get("epoch", math.nan)
        self.log.epoch = int(count) if count >= 0 else self.log.epoch
        self._add(name, int(number), values)

    def _add(self, name: str, update: int, values: dict[str, float]) -> None:
        log = self.log
        kept = {"train": log.epochs, "train_inner": log.points}.get(name, log.validations)
        if name == "train_inner" and update < self.session.updates:
            self._begin()  # a start whose first lines are missing
        session = self.session
        self._alive()
        if name == "train_inner":
            if log.points and log.points[-1].update >= update:
                went_on = update - 1 if session.first is None else min(session.first, update - 1)
                log.lost += log.points[-1].update - went_on
            for others in (log.epochs, log.validations):
                _cut(others, update)
            session.updates = update
        _cut(kept, update)
        if not math.isfinite(values["loss"]):
            log.odd += 1
            log.odd_at = update if log.odd_at is None else log.odd_at
        seconds = self.before + _between(session.began, session.ended)
        if self.now is None:
            wall = values.get("wall", 0.0)
            seconds = wall if math.isfinite(wall) else 0.0
        if kept and seconds < kept[-1].seconds:
            seconds = kept[-1].seconds
        kept.append(Point(update, seconds, values))
        if len(kept) > MOST:
            kept[:] = [_mean(*kept[i : i + 2]) for i in range(0, len(kept), 2)]


def _cut(points: list[Point], update: int) -> None:
    """Drop those from an update on: they are made again."""
    while points and points[-1].update >= update:
        points.pop()


def _values(text: str) -> dict[str, float]:
    start = text.find("{")
    if start >= 0 and text.rstrip().endswith("}"):
        try:
            pairs = json.loads(text[start:])
        except (ValueError, RecursionError):
            return {}
        if not isinstance(pairs, dict):
            return {}
        return {str(k): _number(v) for k, v in pairs.items() if isinstance(v, (str, int, float))}
    return {name: _number(value) for name, value in PAIR.findall(text)}


def _number(value: Any) -> float:
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return math.nan
    return number if abs(number) <= LARGEST else math.nan


def _without(values: dict[str, float], start: str) -> dict[str, float]:
    """The names as they are without the prefix that --log-format json gives them."""
    if f"{start}loss" not in values:
        return values
    prefixed = {k[len(start) :]: v for k, v in values.items() if k.startswith(start)}
    return {**values, **prefixed}


def _mean(one: Point, other: Point | None = None) -> Point:
    if other is None:
        return one
    values = {}
    for name, value in other.values.items():
        both = [v for v in (value, one.values.get(name, value)) if math.isfinite(v)]
        values[name] = sum(both) / len(both) if both else math.nan
    return Point(other.update, other.seconds, values)


def _between(begin: datetime | None, end: datetime | None) -> float:
    return (end - begin).total_seconds() if begin and end else 0.0

"""A measured update, from a file of ``--hybrid-trace``, as a `Timeline` like the predicted ones.

A trace names what the wavefront does, and when a worker waits or is busy sending. What it does not
name is found by its place: between the last unit forward and the first one backward after it a
worker computes its head, after the last one backward it updates.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq_hybrid.backends.wavefront.simulate import WAIT as WAITING
from fairseq_hybrid.backends.wavefront.simulate import Span, Timeline
from fairseq_hybrid.comm import stopwatch
from fairseq_hybrid.errors import UserError
from fairseq_hybrid.planner.costs import BACKWARD, FORWARD, HEAD, KINDS, UPDATE

SENDING, OTHER = "send", "other"


@dataclass(frozen=True)
class Trace:
    timeline: Timeline
    stages: int
    update: str


def read_trace(path: str) -> Trace:
    """The update of median length in a trace."""
    try:
        events = json.loads(Path(path).read_text())["traceEvents"]
        return _trace(events)
    except OSError as error:
        raise UserError(f"--trace {path}: {(error.strerror or 'no file').lower()}") from None
    except (ValueError, TypeError, KeyError, IndexError):
        raise UserError(
            f"--trace {path} is not a timeline: make it with fairseq-train --ddp-backend hybrid "
            "--hybrid-trace FILE"
        ) from None


def read_updates(path: str) -> list[Trace]:
    """All updates in a trace, in their order; those that are cut off are left out."""
    events = json.loads(Path(path).read_text())["traceEvents"]
    updates = list(dict.fromkeys(e["name"] for e in events if e.get("cat") == "update"))
    found = []
    for name in updates:
        with contextlib.suppress(ValueError, IndexError, StopIteration):
            found.append(
                _trace([e for e in events if e.get("cat") != "update" or e["name"] == name])
            )
    return found


def _trace(events: Sequence[dict[str, Any]]) -> Trace:
    names = {e["pid"]: e["args"]["name"] for e in events if e["ph"] == "M"}
    spans = [e for e in events if e["ph"] == "X"]
    updates = [e for e in spans if e["cat"] == "update"]
    firsts = sorted((e for e in updates if e["pid"] == 0), key=lambda e: e["dur"])
    chosen = firsts[len(firsts) // 2]["name"]
    frames = [next(e for e in updates if (e["pid"], e["name"]) == (pid, chosen)) for pid in names]
    begin = min(e["ts"] for e in frames)
    end = max(e["ts"] + e["dur"] for e in frames)
    found: list[Span] = []
    for frame in frames:
        mine = [e for e in spans if e["pid"] == frame["pid"] and e["cat"] != "update"]
        found += _spans(frame, [e for e in mine if _inside(e, frame)], begin)
    stages = 1 + max(int(name.rpartition(" ")[2]) for name in names.values())
    seconds, unknown = (end - begin) / 1e6, [0.0] * len(names)
    return Trace(Timeline(len(names), found, seconds, unknown, unknown), stages, chosen)


def _inside(event: dict[str, Any], frame: dict[str, Any]) -> bool:
    return frame["ts"] <= event["ts"] < frame["ts"] + frame["dur"]


def _spans(frame: dict[str, Any], events: list[dict[str, Any]], zero: float) -> list[Span]:
    """All of a worker's time in an update."""
    worker = frame["pid"]
    named = sorted(
        (Span(worker, _kind(e), e["name"], e["ts"], e["ts"] + e["dur"]) for e in events),
        key=lambda span: span.begin,
    )
    forward = max(span.end for span in named if span.kind == FORWARD)
    backward = [span for span in named if span.kind == BACKWARD]
    back_ends = max(span.end for span in backward)
    back_begins = next((span.begin for span in backward if span.begin >= forward), back_ends)
    start = Span(worker, OTHER, "", frame["ts"], frame["ts"])
    finish = Span(worker, OTHER, "", frame["ts"] + frame["dur"], frame["ts"] + frame["dur"])
    gaps, all_of_it = [], [start, *named, finish]
    for one, next_one in zip(all_of_it, all_of_it[1:]):
        if next_one.begin > one.end:
            in_head = forward <= one.end and next_one.begin <= back_begins
            kind = HEAD if in_head else UPDATE if one.end >= back_ends else OTHER
            gaps.append(Span(worker, kind, kind, one.end, next_one.begin))
    return [
        span._replace(begin=(span.begin - zero) / 1e6, end=(span.end - zero) / 1e6)
        for span in sorted([*named, *gaps], key=lambda span: span.begin)
    ]


def _kind(event: dict[str, Any]) -> str:
    if event["cat"] == stopwatch.COMPUTE:
        return next(kind for op, kind in KINDS.items() if event["name"].startswith(f"{op} "))
    return {stopwatch.WAIT: WAITING, stopwatch.SEND: SENDING}[event["cat"]]

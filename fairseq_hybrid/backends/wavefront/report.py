"""What the wavefront did with the workers' time, for fairseq's log and for a timeline.

In the log, for every stage: ``wait0`` and ``send0`` (percent of the update in which stage 0 waited
for others, or was busy sending), the rest being computation; ``sent_mb``, what the workers of a
group sent in the update; ``ideal``, the share of their time that the schedule of the wavefront
can keep the stages busy.
"""

from __future__ import annotations

import json
import logging
import time
from typing import Any

import torch
import torch.distributed as dist

from fairseq_hybrid.comm.stopwatch import SEND, WAIT
from fairseq_hybrid.launch import worker

logger = logging.getLogger(__name__)

TRACED = range(5, 8)
"""updates that go into a timeline; of a training that ends sooner, the last one there was"""


class Report:
    def __init__(self, parallel: Any, trace: str | None):
        self.parallel, self.trace = parallel, trace
        self.first: int | None = None
        self.waits: tuple[float, ...] = ()
        """of the last update: the share of the time, by stage, in percent"""
        self.traced: list[int] = []
        """numbers of the updates whose spans are kept"""
        self.number, self.sent, self.began = 0, 0, 0.0
        if trace:
            worker.teardown_hooks.append(self._write_trace)

    def begin(self, number: int) -> None:
        """Update `number` begins."""
        watch = self.parallel.watch
        if self.first is None:
            self.first = number
        self.number, since = number, number - self.first
        watch.tracing = bool(self.trace) and since <= TRACED[-1]
        if since <= TRACED[0]:
            watch.spans, self.traced = [], []
        watch.lap()
        self.sent, self.began = self.parallel.bytes_sent, time.perf_counter()

    def end(self) -> dict[str, float]:
        """It ends; the workers tell each other about it. Returns what goes into the log."""
        watch, end = self.parallel.watch, time.perf_counter()
        took, seconds = end - self.began, watch.lap()
        mine = [
            100 * seconds.get(WAIT, 0.0) / took,
            100 * seconds.get(SEND, 0.0) / took,
            (self.parallel.bytes_sent - self.sent) / 1e6,
        ]
        everyones = self._gather(mine)
        if watch.tracing:
            watch.spans.append(("update", f"update {self.number}", self.began, end))
            self.traced.append(self.number)
        if self.trace and self.first is not None and self.number - self.first == TRACED[-1]:
            self._write_trace()
        return everyones

    def _gather(self, mine: list[float]) -> dict[str, float]:
        group = self.parallel.group
        everyones = [torch.empty(len(mine)) for _ in group.ranks]
        dist.all_gather(everyones, torch.tensor(mine), group=group.meta)
        waits, sends, sent = zip(*(each.tolist() for each in everyones))
        self.waits = waits
        return {
            **{f"wait{stage}": wait for stage, wait in enumerate(waits)},
            **{f"send{stage}": send for stage, send in enumerate(sends)},
            "sent_mb": sum(sent),
            "ideal": 100 * self.parallel.ideal,
        }

    def _write_trace(self) -> None:
        """Chrome's format: a process per worker, microseconds. Once, on all workers."""
        watch = self.parallel.watch
        if not self.traced:
            return
        offset = time.time() - time.perf_counter()  # the host's clock is the same for all of it
        rank = dist.get_rank()
        events = [
            {
                "name": name,
                "cat": category,
                "ph": "X",
                "ts": (begin + offset) * 1e6,
                "dur": (end - begin) * 1e6,
                "pid": rank,
                "tid": 0 if category == "update" else 1,
            }
            for category, name, begin, end in watch.spans
        ]
        name = f"worker {rank}, stage {self.parallel.group.stage}"
        events.append({"name": "process_name", "ph": "M", "pid": rank, "args": {"name": name}})
        everyones: list[Any] = [None] * dist.get_world_size()
        meta = self.parallel.everyone_meta
        dist.gather_object(events, everyones if rank == 0 else None, dst=0, group=meta)
        watch.tracing, watch.spans = False, []
        if rank == 0:
            with open(self.trace, "w") as f:
                json.dump({"traceEvents": [e for events in everyones for e in events]}, f)
            logger.info(f"timeline of updates {self.traced[0]} to {self.traced[-1]}: {self.trace}")
        self.traced = []

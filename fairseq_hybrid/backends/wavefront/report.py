"""What the wavefront did with the workers' time, for fairseq's log and for a timeline.

In the log, for every stage: ``wait0`` and ``send0`` (percent of the update in which stage 0 waited
for others, or was busy sending), the rest being computation; ``sent_mb``, what the workers of a
group sent in the update; ``ideal``, the share of their time that the schedule of the wavefront
can keep the stages busy.
"""

from __future__ import annotations

import contextlib
import json
import logging
import time
from typing import Any

import torch
import torch.distributed as dist
from fairseq.logging import metrics

from fairseq_hybrid.comm.stopwatch import SEND, WAIT
from fairseq_hybrid.launch import worker

logger = logging.getLogger(__name__)

TRACED = range(5, 8)
"""updates that go into a timeline; of a training that ends sooner, the last one there was"""


class Report:
    def __init__(self, parallel: Any, trace: str | None):
        self.parallel, self.trace = parallel, trace
        self.first: int | None = None
        self.traced: list[int] = []
        """numbers of the updates whose spans are kept"""
        if trace:
            worker.teardown_hooks.append(self._write_trace)

    @contextlib.contextmanager
    def update(self, number: int):
        """Around one update. The workers tell each other about it at its end."""
        parallel, watch = self.parallel, self.parallel.watch
        if self.first is None:
            self.first = number
        since = number - self.first
        watch.tracing = bool(self.trace) and since <= TRACED[-1]
        if since <= TRACED[0]:
            watch.spans, self.traced = [], []
        watch.lap()
        sent = parallel.bytes_sent
        begin = time.perf_counter()
        yield
        took = time.perf_counter() - begin
        seconds = watch.lap()
        mine = [
            100 * seconds.get(WAIT, 0.0) / took,
            100 * seconds.get(SEND, 0.0) / took,
            (parallel.bytes_sent - sent) / 1e6,
        ]
        self._log(torch.tensor(mine))
        if watch.tracing:
            watch.spans.append(("update", f"update {number + 1}", begin, begin + took))
            self.traced.append(number + 1)
        if self.trace and since == TRACED[-1]:
            self._write_trace()

    def _log(self, mine: torch.Tensor) -> None:
        group = self.parallel.group
        everyones = [torch.empty_like(mine) for _ in group.ranks]
        dist.all_gather(everyones, mine, group=group.meta)
        with metrics.aggregate("train"):
            for stage, (wait, send, _) in enumerate(t.tolist() for t in everyones):
                metrics.log_scalar(f"wait{stage}", wait, priority=2000 + stage, round=1)
                metrics.log_scalar(f"send{stage}", send, priority=2100 + stage, round=1)
            total = sum(t[2].item() for t in everyones)
            metrics.log_scalar("sent_mb", total, priority=2200, round=1)
            metrics.log_scalar("ideal", 100 * self.parallel.ideal, priority=2201, round=1)

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

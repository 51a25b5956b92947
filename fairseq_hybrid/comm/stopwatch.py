"""Where a worker's time goes: shares for the log, spans for a trace.

Waiting and communication are measured where they happen; the rest of an update is computation.
The clock is the host's. On a GPU the host only queues work, so there the shares tell about the
host (say so when you quote them); use a profiler for the device.
"""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Iterator

COMPUTE, WAIT, SEND = "compute", "wait", "communication"


class Stopwatch:
    """Seconds by category since the last `lap`, and named spans while `tracing`."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.spans: list[tuple[str, str, float, float]] = []
        self.tracing = False

    @contextlib.contextmanager
    def span(self, category: str, name: str) -> Iterator[None]:
        begin = time.perf_counter()
        try:
            yield
        finally:
            end = time.perf_counter()
            self.seconds[category] += end - begin
            if self.tracing:
                self.spans.append((category, name, begin, end))

    def lap(self) -> dict[str, float]:
        """Seconds since the last call, and start over."""
        seconds, self.seconds = dict(self.seconds), defaultdict(float)
        return seconds

"""Noticing a worker that no longer runs but has not ended: stopped, swapped out, cut off.

Such a worker keeps its connections open, so the others wait in a collective.  A thread of each
worker counts up in the store and looks at the count of the next worker.  A thread beats while its
worker waits for others, so the one that is silent is the one to name; a long save or validation
beats too.  Only time in which the watching worker itself ran counts: a machine that was suspended
as a whole goes on.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

MAX_INTERVAL = 5.0  # seconds between two beats, at most
SHUTDOWN_SECONDS = 15.0  # of the limit, left for noticing and for all to end


class Heartbeat(threading.Thread):
    """Beats for this worker and watches the next; ``lost(line)`` must end the process.

    ``store``: a connection of its own.  ``hosted``: whether worker 0 keeps the store; if that is
    silent no answer comes from the store either.
    """

    def __init__(
        self,
        store: Any,
        rank: int,
        world: int,
        limit: float,
        lost: Callable[[str], None],
        hosted: bool = False,
    ):
        super().__init__(name="heartbeat", daemon=True)
        self.store, self.rank, self.peer = store, rank, (rank + 1) % world
        self.every = min(MAX_INTERVAL, limit / 10)
        self.silent_at_most = max(limit / 2, limit - SHUTDOWN_SECONDS)
        self.limit, self.lost, self.hosted = limit, lost, hosted
        self.beats = 0
        self.done = threading.Event()

    def start(self) -> None:
        super().start()
        if self.hosted and self.rank:
            threading.Thread(target=self.watch_store, name="store", daemon=True).start()

    def run(self) -> None:
        me = f"worker {self.rank} (pid {os.getpid()} on {socket.gethostname()})"
        name, last, silent, before = f"worker {self.peer}", b"", 0.0, time.monotonic()
        try:
            while not self.done.is_set():
                self.beats += 1
                self.store.set(f"beat/{self.rank}", f"{self.beats}|{me}")
                if self.store.check(["lost"]):
                    return self.lost(self.store.get("lost").decode())
                beat = self.peer_beat()
                now = time.monotonic()
                passed, before = min(now - before, 2 * self.every), now
                silent = silent + passed if beat == last else 0.0
                last, name = beat, beat.decode().partition("|")[2] or name
                if silent >= self.silent_at_most:
                    line = self.line(name)
                    self.store.set("lost", line)
                    return self.lost(line)
                self.done.wait(self.every)
        except RuntimeError:
            return  # the store is gone, and with it the worker or the launcher that kept it

    def peer_beat(self) -> bytes:
        """What the next worker has stored last."""
        key = f"beat/{self.peer}"
        return self.store.get(key) if self.store.check([key]) else b""

    def watch_store(self) -> None:
        """The store's host may be the worker that is silent."""
        last, silent = 0, 0.0
        while not self.done.wait(self.every) and self.is_alive():
            silent = silent + self.every if self.beats == last else 0.0
            last = self.beats
            if silent >= self.silent_at_most:
                return self.lost(self.line("worker 0, which keeps the store,"))

    def line(self, name: str) -> str:
        return (
            f"{name} has given no sign of life for {self.limit:g} s (--worker-timeout): it is "
            "stopped or cut off, all others end; the same command goes on from the last checkpoint"
        )

"""One fault under one backend: what happens, how soon, and what a resume finds."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path

from jobs import alive, children, wait_for
from warm import Warm, WarmServer

ROOT = Path(__file__).resolve().parent.parent.parent
SAVE_EVERY, AT = 4, 7
"""a save after update 4, a fault in update 7; those in a save are in the one after update 8"""
TIMEOUT = 5
"""--worker-timeout"""

TWO = ("--distributed-world-size", "2")
LSTM = ("--arch", "hybrid_lstm", "--encoder-layers", "2")
SAMPLED = ("--criterion", "sampled_softmax", "--sample-frequent", "10", "--sample-random", "15")
BACKENDS = {
    "one worker": (),
    "legacy_ddp": (*TWO, "--ddp-backend", "legacy_ddp"),
    "hybrid": (*TWO, "--ddp-backend", "hybrid"),
    "decoupled": (*TWO, "--ddp-backend", "hybrid", "--hybrid-schedule", "decoupled"),
    "sampled": (*TWO, "--ddp-backend", "sampled", *SAMPLED),
    # (a collective in update 7, in which the faults are)
    "model_averaging": (*TWO, "--ddp-backend", "model_averaging", "--averaging-interval", "7"),
    "async": (*TWO, "--ddp-backend", "async"),
}
SIZES = ("encoder-embed-dim", "encoder-hidden-size")
JOB = (
    *LSTM, *(part for size in SIZES for part in (f"--{size}", "16")), "--dropout", "0",
    *("--cpu", "--optimizer", "adam", "--lr", "0.005", "--clip-norm", "1.0", "--seed", "7"),
    *("--batch-size", "8", "--log-interval", "1", "--log-format", "json", "--num-workers", "0"),
    *("--save-interval-updates", str(SAVE_EVERY), "--disable-validation"),
    *("--max-update", "12", "--worker-timeout", str(TIMEOUT)),
)  # fmt: skip


@dataclass
class Cell:
    """What came of a fault; ``resumed``: the update at which the same command went on."""

    fault: str
    backend: str
    code: int
    seconds: float
    line: str
    left: int
    resumed: int
    finished: bool

    @property
    def lost(self) -> int:
        """Updates beyond the last save before the fault."""
        return max(0, SAVE_EVERY - self.resumed)


def inject(server: WarmServer, data: Path, folder: Path, fault: str, backend: str) -> Cell:
    """Train until the fault ends it (or it doesn't), then resume without."""
    mark = folder / "mark"
    command = [
        *("fairseq-train", str(data), "--user-dir", str(ROOT / "tests" / "faults")),
        *(*JOB, *BACKENDS[backend], "--save-dir", str(folder / "save")),
    ]
    if fault.endswith("resume"):  # of a run that ended after its first save
        Warm(server, [*command, "--max-update", SAVE_EVERY], folder, FAULT="").finish().ok()
    job = Warm(server, command, folder, FAULT=fault, FAULT_MARK=str(mark))
    everybody: list[int] = [job.pid]
    wait_for(lambda: mark.exists() or not alive([job.pid]))
    everybody += children(job.pid)
    first = job.finish(90)
    seconds = time.time() - float(mark.read_text())
    lines = [line for line in first.err.splitlines() if "error:" in line or "stopped" in line]
    left = len(alive(everybody))
    again = Warm(server, command, folder, FAULT="", FAULT_MARK=str(mark)).finish(90)
    loaded = re.search(r"Loaded checkpoint .* @ (\d+) updates", again.out)
    done = re.findall(r'"num_updates": "(\d+)"', again.out)
    finished = again.code == 0 and (first.code == 0 or (bool(done) and int(done[-1]) == 12))
    line = lines[-1].partition("error: ")[2] or lines[-1] if lines else ""
    return Cell(
        fault, backend, first.code, seconds, line, left, int(loaded[1]) if loaded else 0, finished
    )

"""Helpers for tests that run the real commands as a user would, in processes of their own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
USER_DIR = str(ROOT / "fairseq_hybrid")
BIN = Path(sys.executable).parent

SIZES = ("encoder-embed-dim", "encoder-hidden-size", "decoder-embed-dim", "decoder-hidden-size")
TINY_LSTM = (
    *("--arch", "lstm", "--dropout", "0", "--decoder-out-embed-dim", "16"),
    *(part for size in SIZES for part in (f"--{size}", "16")),
)
TRAIN = (
    *("--cpu", "--optimizer", "adam", "--lr", "0.005", "--clip-norm", "1.0", "--seed", "7"),
    *("--batch-size", "16", "--log-interval", "1", "--log-format", "json"),
)


@dataclass
class Result:
    code: int
    out: str
    err: str
    seconds: float

    @property
    def all(self) -> str:
        return self.out + self.err

    def error(self) -> str:
        """The one line that says what is wrong; anything more, or a traceback, is a failure."""
        assert self.code != 0
        assert "Traceback" not in self.all, self.all[-3000:]
        lines = [line for line in self.err.splitlines() if "error:" in line]
        assert len(lines) == 1, self.err[-3000:]
        return lines[0]

    def ok(self) -> Result:
        assert self.code == 0, f"exit code {self.code}\n{self.out[-3000:]}\n{self.err[-3000:]}"
        return self


def environment(**extra: str) -> dict[str, str]:
    env = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    for name in ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK"):
        env.pop(name, None)
    return {**env, **extra}


def start(*command: str, cwd: str | Path | None = None, **env: str) -> subprocess.Popen:
    """Start a command in a process group of its own, so that a test can end all of it."""
    return subprocess.Popen(
        [str(c) for c in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env=environment(**env),
        start_new_session=True,
        # A shell's background job ignores it, and so would what it starts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def finish(process: subprocess.Popen, timeout: float = 240) -> Result:
    began = time.monotonic()
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        raise AssertionError(f"hung for {timeout} s\n{out[-3000:]}\n{err[-3000:]}") from None
    return Result(process.returncode, out, err, time.monotonic() - began)


def run(*command: str, timeout: float = 240, cwd: str | Path | None = None, **env: str) -> Result:
    return finish(start(*command, cwd=cwd, **env), timeout)


def train_command(data: Path, save_dir: Path, *more: str, arch=TINY_LSTM) -> list[str]:
    return [
        *("fairseq-train", str(data), "--user-dir", USER_DIR, *arch, *TRAIN),
        *("--save-dir", str(save_dir), *map(str, more)),
    ]


def train(data: Path, save_dir: Path, *more: str, arch=TINY_LSTM, timeout=240, **env) -> Result:
    return run(*train_command(data, save_dir, *more, arch=arch), timeout=timeout, **env)


def curve(result: Result, key: str = "loss") -> dict[int, float]:
    """Update number -> value, from the json log lines of training."""
    points = {}
    for line in re.findall(r"\| train_inner \| (\{.*\})", result.out):
        record = json.loads(line)
        points[int(record["num_updates"])] = float(record[key])
    return points


def children(pid: int) -> list[int]:
    """All processes below ``pid``."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if fields[0] != "Z":
            parents[int(entry.parent.name)] = int(fields[1])
    found, frontier = [], {pid}
    while frontier:
        frontier = {p for p, parent in parents.items() if parent in frontier}
        found += sorted(frontier)
    return found


def alive(pids: list[int]) -> list[int]:
    """Those of ``pids`` that still run (a zombie does not)."""
    left = []
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            continue
        if state != "Z":
            left.append(pid)
    return left


def workers(pid: int) -> list[int]:
    """The training workers started by the command ``pid``."""
    found = []
    for child in children(pid):
        try:
            line = Path(f"/proc/{child}/cmdline").read_text()
            parent = Path(f"/proc/{child}/stat").read_text().rsplit(")", 1)[1].split()[1]
        except OSError:
            continue
        if "spawn_main" in line and int(parent) == pid:
            found.append(child)
    return found


def wait_for(condition, timeout: float = 120, every: float = 0.05):
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(every)
    raise AssertionError(f"nothing after {timeout} s: {condition}")


def enliven(checkpoint: Path) -> None:
    """Larger weights: translations of a model that knows nothing then differ and come to an end."""
    import torch

    state = torch.load(checkpoint, weights_only=False)
    for weight in state["model"].values():
        weight.mul_(6.0)
    for name in ("decoder.head.output.bias", "decoder.fc_out.bias"):
        if name in state["model"]:
            state["model"][name][2] += 3.0
    torch.save(state, checkpoint)

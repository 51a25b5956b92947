"""A chain of kills: each link resumes what the one before left, trains, and is killed.

    python tests/system/chain.py DATA FOLDER --links 200

The backends take turns, each with a save folder of its own; every fourth kill hits a checkpoint
that is complete but for its name.  FOLDER/chain.json holds what was seen: a chain that is cut off
goes on where it was.  Raises AssertionError at the first link that breaks a promise.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent.parent)]

from faults.cells import BACKENDS, JOB, ROOT  # noqa: E402
from jobs import alive, children, wait_for  # noqa: E402
from warm import Warm, WarmServer  # noqa: E402

EXACT = ("one worker", "legacy_ddp", "hybrid", "sampled")
"""backends that give the same losses after a resume (docs/checkpoints.md); the others depend on
when messages come, or keep gradients back"""
SAVE_EVERY, LATEST = 4, 1.5
"""updates between saves; seconds of training before a kill, at most"""


def kill_all(pid: int) -> None:
    """The parent and everything below it, as a machine that goes down would."""
    everybody = [pid, *children(pid)]
    for sign in (signal.SIGSTOP, signal.SIGKILL):
        for victim in [*everybody, *children(pid)]:
            try:
                os.kill(victim, sign)
            except ProcessLookupError:
                continue
    wait_for(lambda: not alive(everybody), timeout=15)


def said(job: Warm) -> str:
    return job.out.read_text() if job.out.exists() else ""


def link(server: WarmServer, data: Path, folder: Path, backend: str, seen: dict, chance) -> None:
    """One resume and one kill; updates what was ``seen`` of this backend."""
    save, mark = folder / backend.replace(" ", "_"), folder / "mark"
    for old in (mark, folder / "out.txt"):  # what the link before has said
        old.unlink(missing_ok=True)
    in_save = seen["links"] % 4 == 3
    seen["links"] += 1
    first = seen["saved"] + SAVE_EVERY * chance.randint(1, 5) - 1
    command = [
        *("fairseq-train", data, "--user-dir", ROOT / "tests" / "faults", *JOB),
        *(*BACKENDS[backend], "--max-update", 10**6, "--save-dir", save, "--save-interval-updates"),
        *(SAVE_EVERY, "--keep-interval-updates", 2, "--no-epoch-checkpoints"),
        *("--worker-timeout", 60),
    ]
    fault = f"freeze:0:{first}:save" if in_save else ""
    job = Warm(server, command, folder, FAULT=fault, FAULT_MARK=str(mark))
    try:
        begun = "Start iterating"
        wait_for(lambda: begun in said(job) or not alive([job.pid]))
        if in_save:
            wait_for(lambda: mark.exists() or not alive([job.pid]))
        else:
            time.sleep(chance.uniform(0, LATEST))
        assert alive([job.pid]), job.out.read_text()[-2000:] + job.err.read_text()[-2000:]
    finally:
        if alive([job.pid]):
            kill_all(job.pid)
    text = job.finish().out
    keep_promises(text, save, seen, backend)


def keep_promises(text: str, save: Path, seen: dict, backend: str) -> None:
    """The promises: nothing older is resumed, nothing is unreadable, losses repeat."""
    from fairseq_hybrid import checkpoints

    loaded = re.search(r"Loaded checkpoint .* @ (\d+) updates", text)
    resumed = int(loaded[1]) if loaded else 0
    assert resumed >= seen["saved"], f"{backend}: {seen['saved']} was saved, {resumed} resumed"
    done = [int(n) for n in re.findall(r"Saved checkpoint .* @ (\d+) updates", text)]
    seen["saved"] = max([resumed, *done])
    for path in save.glob("checkpoint*.pt"):
        assert checkpoints.load(str(path))["optimizer_history"][-1]["num_updates"] > 0
    for line in re.findall(r"\| train_inner \| (\{.*\})", text):
        record = json.loads(line)
        update, loss = record["num_updates"], float(record["loss"])
        before = seen["losses"].setdefault(update, loss)
        if backend in EXACT:
            assert abs(loss - before) <= 1e-4 * before, f"{backend}: update {update}"


def uninterrupted(server: WarmServer, data: Path, backend: str, losses: dict) -> int:
    """Compare with a run that nobody killed; returns how many updates were compared."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            *("fairseq-train", data, "--user-dir", ROOT / "fairseq_hybrid", *JOB),
            *(*BACKENDS[backend], "--no-save", "--max-update", max(map(int, losses))),
            *("--worker-timeout", 60),
        ]
        text = Warm(server, command, Path(folder)).finish(500).ok().out
    compared = 0
    for line in re.findall(r"\| train_inner \| (\{.*\})", text):
        record = json.loads(line)
        if record["num_updates"] in losses:
            compared += 1
            loss = losses[record["num_updates"]]
            assert abs(float(record["loss"]) - loss) <= 1e-4 * loss, (backend, record)
    return compared


def chain(server: WarmServer, data: Path, folder: Path, links: int, backends=tuple(BACKENDS)):
    """Returns what was seen of each backend: links, the last save, losses by update."""
    results = folder / "chain.json"
    seen = json.loads(results.read_text()) if results.exists() else {}
    done = sum(one["links"] for one in seen.values())
    for number in range(done, links):
        backend = backends[number % len(backends)]
        mine = seen.setdefault(backend, {"links": 0, "saved": 0, "losses": {}})
        link(server, data, folder, backend, mine, random.Random(number))
        results.write_text(json.dumps(seen))
        print(f"link {number + 1}: {backend}, update {mine['saved']} is saved", flush=True)
    return seen


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--links", type=int, default=200)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    server = WarmServer()
    began = time.monotonic()
    seen = chain(server, args.data, args.folder, args.links)
    for backend in [b for b in seen if b in EXACT]:
        compared = uninterrupted(server, args.data, backend, seen[backend]["losses"])
        print(f"{backend}: {compared} updates as in a run without kills")
    print(f"{args.links} links, {time.monotonic() - began:.0f} s this time")
    server.close()


if __name__ == "__main__":
    main()

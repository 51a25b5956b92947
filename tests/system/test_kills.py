"""Twenty kills of a whole job, five of them while a checkpoint is being written."""

from __future__ import annotations

import random
import re
import subprocess
import time

import chain
import pytest
from jobs import curve, environment, train, train_command, wait_for

import fairseq_hybrid  # noqa: F401
from fairseq_hybrid import checkpoints

KILLS, DURING_SAVE = 20, 5
# a checkpoint of some 60 MB, so that writing it takes a while
WIDE = (
    *("--arch", "lstm", "--dropout", "0", "--encoder-embed-dim", "16", "--decoder-embed-dim", "16"),
    *("--encoder-hidden-size", "512", "--decoder-hidden-size", "512"),
    *("--decoder-out-embed-dim", "512"),
)
JOB = (
    *("--distributed-world-size", "2", "--ddp-backend", "legacy_ddp", "--max-update", "100000"),
    *("--save-interval-updates", "4", "--keep-interval-updates", "2", "--no-epoch-checkpoints"),
    *("--disable-validation", "--num-workers", "0", "--batch-size", "4", "--clip-norm", "0.5"),
)


def updates(path: str) -> int:
    return checkpoints.load(path)["optimizer_history"][-1]["num_updates"]


def run_until(log, command, ready) -> str:
    """Start the job, kill it as soon as ``ready`` says so, return what it printed."""
    with open(log, "w") as out:
        job = subprocess.Popen(
            command,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=environment(),
            start_new_session=True,
        )
        try:
            wait_for(lambda: ready(log.read_text()) or job.poll() is not None, 120, every=0.002)
            assert job.poll() is None, log.read_text()[-3000:]
        finally:
            chain.kill_all(job.pid)
            job.wait()
    return log.read_text()


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_no_kill_spoils_or_loses_what_was_saved(data, tmp_path):
    chance = random.Random(5)
    save_dir, log = tmp_path / "save", tmp_path / "log"
    command = train_command(data, save_dir, *JOB, arch=WIDE)
    saved = 0
    during = set(chance.sample(range(KILLS), DURING_SAVE))
    caught = 0
    seen: dict[int, float] = {}
    for kill in range(KILLS):
        delay = chance.uniform(0.0, 4.0)
        began: list[float] = []

        def at_random(text: str, began=began, delay=delay) -> bool:
            if not began and "Start iterating" in text:
                began.append(time.monotonic())
            return bool(began) and time.monotonic() > began[0] + delay

        def while_saving(text: str) -> bool:
            busy = "Start iterating" in text and list(save_dir.glob("*.tmp"))
            return bool(busy and any(f.stat().st_size > 1e6 for f in busy if f.exists()))

        text = run_until(log, command, while_saving if kill in during else at_random)
        if kill in during:
            caught += bool(list(save_dir.glob("*.tmp")))
        loaded = re.search(r"Loaded checkpoint .* @ (\d+) updates", text)
        resumed = int(loaded[1]) if loaded else 0
        assert resumed >= saved, f"kill {kill}: update {saved} was saved, {resumed} was resumed"
        done = [int(n) for n in re.findall(r"Finished saving checkpoint to .*_(\d+)\.pt", text)]
        saved = max([resumed, *done])
        for path in save_dir.glob("checkpoint*.pt"):
            assert updates(str(path)) > 0
        for update, loss in curve(type("Log", (), {"out": text})).items():
            assert seen.setdefault(update, loss) == pytest.approx(loss, rel=1e-4)
    assert caught >= DURING_SAVE - 1, "most of these kills should have hit a half-written file"
    assert saved >= 4 * KILLS / 2, "the job should have got on in spite of the kills"
    again = train(
        data, tmp_path / "uninterrupted", *JOB, "--max-update", "12", "--no-save", arch=WIDE
    ).ok()
    for update, loss in curve(again).items():
        assert seen[update] == pytest.approx(loss, rel=1e-4)


def test_five_kills_in_a_row_lose_nothing_that_was_saved(server, data, tmp_path):
    seen = chain.chain(server, data, tmp_path, 5, backends=("one worker", "legacy_ddp"))
    assert sum(one["links"] for one in seen.values()) == 5


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_two_hundred_kills_over_all_backends_lose_nothing_that_was_saved(server, data, tmp_path):
    seen = chain.chain(server, data, tmp_path, 200)
    assert set(seen) == set(chain.BACKENDS)
    for backend in chain.EXACT:
        assert chain.uninterrupted(server, data, backend, seen[backend]["losses"]) > 50

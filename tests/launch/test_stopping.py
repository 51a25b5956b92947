"""All workers stop after the same update, whenever they hear of it."""

from __future__ import annotations

import os
import random
import re
import signal
import threading
import time
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from jobs import alive, children, curve, train_command, wait_for
from warm import Warm

import fairseq_hybrid  # noqa: F401
from fairseq_hybrid.launch import heartbeat, stopping


def watcher(store=None, rank=0, world=1):
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    left: list[int] = []
    made = stopping.Watcher(stopping.SignalPipe(reader, writer), left.append)
    made.save_first(store, rank, world)
    return made, left


@pytest.mark.parametrize("seed", range(5))
def test_workers_that_are_asked_at_any_moment_agree_on_one_update(seed, monkeypatch):
    monkeypatch.setattr(stopping, "POLL_SECONDS", 0.02)
    world, chance = 4, random.Random(seed)
    store, barrier = dist.HashStore(), threading.Barrier(world)
    team = [watcher(store, rank, world)[0] for rank in range(world)]
    ended: dict[int, int] = {}

    def train(rank: int, delays: list[float]) -> None:
        update = 0
        while team[rank].last.enter(update + 1):
            barrier.wait(10)  # an all-reduce: nobody finishes an update before all have begun it
            update += 1
            time.sleep(delays[update % len(delays)])
        ended[rank] = update

    runs = [
        threading.Thread(target=train, args=(r, [chance.uniform(0, 0.01) for _ in range(5)]))
        for r in range(world)
    ]
    for thread in [*team, *runs]:
        thread.start()
    time.sleep(chance.uniform(0.02, 0.1))
    for rank in chance.sample(range(world), chance.randint(1, world)):
        os.write(team[rank].pipe.writer, bytes([signal.SIGTERM]))
        time.sleep(chance.uniform(0, 0.02))
    for thread in runs:
        thread.join(15)
    for one in team:
        one.finish()
    assert len(ended) == world
    assert len(set(ended.values())) == 1
    assert ended[0] > 0


def test_a_signal_to_a_data_loader_ends_it_and_is_not_its_workers():
    with stopping.signals_in_pipe() as pipe:
        child = os.fork()
        if child == 0:
            time.sleep(30)
            os._exit(0)
        time.sleep(0.3)  # the child has begun
        os.kill(child, signal.SIGTERM)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
        assert pipe.read() == []
        os.kill(os.getpid(), signal.SIGTERM)
        assert pipe.read() == [signal.SIGTERM]


def test_the_line_says_what_is_saved(tmp_path):
    options = SimpleNamespace(save_dir=str(tmp_path), no_save=False, checkpoint_suffix="")
    assert "nothing was saved yet" in stopping.stop_line(signal.SIGINT, options)
    state = {"optimizer_history": [{"num_updates": 7}]}
    torch.save(state, tmp_path / "checkpoint_last.pt")
    line = stopping.stop_line(signal.SIGTERM, options)
    assert line.startswith("stopped by SIGTERM: the checkpoint of update 7 is saved in")
    options.no_save = True
    assert stopping.stop_line(signal.SIGINT, options).endswith("nothing was saved (--no-save)")


def test_before_the_first_update_there_is_nothing_to_finish():
    one, left = watcher()
    one.ask(signal.SIGTERM)
    assert left == [signal.SIGTERM]


def test_a_second_signal_ends_at_once_but_not_the_same_one_passed_on_twice(monkeypatch):
    one, left = watcher(dist.HashStore(), 0, 2)
    one.last.enter(1)
    one.on_signal(signal.SIGINT)
    one.on_signal(signal.SIGTERM)
    assert not left
    one.asked_at -= 2 * stopping.REPEAT_SECONDS
    one.on_signal(signal.SIGTERM)
    assert left == [signal.SIGTERM]


def test_a_silent_neighbour_is_named_and_a_beating_one_is_not():
    store, lines = dist.HashStore(), []
    first = heartbeat.Heartbeat(store, 0, 2, 1.0, lines.append)
    second = heartbeat.Heartbeat(store, 1, 2, 1.0, lines.append)
    first.start()
    second.start()
    time.sleep(1.5)
    assert not lines
    second.done.set()
    first.join(10)
    assert re.match(r"worker 1 \(pid \d+ on .*\) has given no sign of life for 1 s", lines[0])
    second.join(10)


def test_a_worker_that_has_not_begun_to_beat_counts_as_silent_too():
    lines: list[str] = []
    ring = heartbeat.Heartbeat(dist.HashStore(), 1, 3, 0.5, lines.append)
    ring.start()
    ring.join(10)
    assert "worker 2 has given no sign of life" in lines[0]


def stop_by(server, data, folder, signum, *flags):
    """Start a training, stop it in the middle of an epoch, return its result."""
    command = train_command(data, folder / "save", *flags, "--num-workers", 0, "--batch-size", 4)
    job = Warm(server, [*command, "--save-on-exit", "--max-update", 10**6], folder)
    try:
        wait_for(lambda: job.out.exists() and '"num_updates": "20"' in job.out.read_text())
        everybody = [job.pid, *children(job.pid)]
        os.kill(job.pid, signum)
    except BaseException:
        os.killpg(job.pid, signal.SIGKILL)
        raise
    result = job.finish(60)
    assert not alive(everybody)
    return result


BACKENDS = {
    "one worker": (),
    "legacy_ddp": ("--distributed-world-size", 2, "--ddp-backend", "legacy_ddp"),
    "model_averaging": ("--distributed-world-size", 2, "--ddp-backend", "model_averaging"),
    "async": ("--distributed-world-size", 2, "--ddp-backend", "async"),
}


@pytest.mark.parametrize(
    "backend",
    [
        "legacy_ddp",
        *(pytest.param(b, marks=pytest.mark.long) for b in BACKENDS if b != "legacy_ddp"),
    ],
)
def test_save_on_exit_saves_the_update_it_stops_after(server, data, tmp_path, backend):
    result = stop_by(server, data, tmp_path, signal.SIGTERM, *BACKENDS[backend])
    assert result.code == 143, result.all[-3000:]
    assert "Traceback" not in result.all
    last = max(curve(result))
    saved = torch.load(tmp_path / "save" / "checkpoint_last.pt", weights_only=False)
    assert saved["optimizer_history"][-1]["num_updates"] == last
    assert f"stopped by SIGTERM: the checkpoint of update {last} is saved" in result.err

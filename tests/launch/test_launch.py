"""Worker start and end, through the real command line, on real processes over gloo."""

from __future__ import annotations

import os
import re
import signal
import socket
import time
from pathlib import Path

import pytest
from jobs import (
    BIN,
    alive,
    children,
    curve,
    finish,
    run,
    start,
    train,
    train_command,
    wait_for,
    workers,
)

TWO = ("--distributed-world-size", "2")
UPDATES = 12


@pytest.fixture(scope="module")
def legacy(data, tmp_path_factory):
    """The uninterrupted run that others are compared with."""
    folder = tmp_path_factory.mktemp("legacy")
    return train(data, folder, *TWO, "--ddp-backend", "legacy_ddp", "--max-update", UPDATES).ok()


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def test_two_workers_train_and_say_so(legacy):
    assert "training on 2 devices" in legacy.out
    assert sorted(curve(legacy)) == list(range(1, UPDATES + 1))


def test_pytorch_ddp_gives_the_losses_of_legacy_ddp(server, data, legacy, tmp_path):
    ddp = server.train(
        data, tmp_path, *TWO, "--ddp-backend", "pytorch_ddp", "--max-update", UPDATES
    ).ok()
    assert curve(ddp) == pytest.approx(curve(legacy), rel=1e-4)
    assert curve(ddp, "gnorm") == pytest.approx(curve(legacy, "gnorm"), rel=1e-2)


def test_stopped_and_resumed_run_continues_the_curve(server, data, legacy, tmp_path):
    half = UPDATES // 2
    server.train(data, tmp_path, *TWO, "--ddp-backend", "legacy_ddp", "--max-update", half).ok()
    rest = server.train(
        data, tmp_path, *TWO, "--ddp-backend", "legacy_ddp", "--max-update", UPDATES
    ).ok()
    expected = {u: loss for u, loss in curve(legacy).items() if u > half}
    assert curve(rest) == pytest.approx(expected, rel=1e-4)


def test_torchrun_gives_the_same_curve(data, legacy, tmp_path):
    command = train_command(data, tmp_path, "--ddp-backend", "legacy_ddp", "--max-update", 3)
    launcher = ("torchrun", "--nproc-per-node=2", "--master-addr=127.0.0.1")
    result = run(*launcher, f"--master-port={free_port()}", "--no-python", *command).ok()
    assert curve(result) == pytest.approx({u: curve(legacy)[u] for u in (1, 2, 3)}, rel=1e-4)


def test_explicit_flags_give_the_same_curve(data, legacy, tmp_path):
    flags = ("--distributed-no-spawn", f"--distributed-init-method=tcp://127.0.0.1:{free_port()}")
    command = train_command(
        data, tmp_path, *TWO, *flags, "--ddp-backend", "legacy_ddp", "--max-update", 3
    )
    second = start(*command, "--distributed-rank", "1")
    first = run(*command, "--distributed-rank", "0").ok()
    finish(second).ok()
    assert curve(first) == pytest.approx({u: curve(legacy)[u] for u in (1, 2, 3)}, rel=1e-4)


def test_slurm_with_one_task_per_node_gives_the_same_curve(data, legacy, tmp_path):
    (tmp_path / "scontrol").write_text("#!/bin/sh\necho 127.0.0.1\n")
    (tmp_path / "scontrol").chmod(0o755)
    step = {"PATH": f"{tmp_path}:{BIN}:{os.environ['PATH']}", "SLURM_STEP_NODELIST": "nodes"}
    step |= {"SLURM_NTASKS": "2", "SLURM_NNODES": "2", "SLURM_LOCALID": "0"}
    flags = (*TWO, "--distributed-port", free_port(), "--ddp-backend", "legacy_ddp")
    command = train_command(data, tmp_path, *flags, "--max-update", 3)
    second = start(*command, **step, SLURM_PROCID="1", SLURM_NODEID="1")
    first = run(*command, **step, SLURM_PROCID="0", SLURM_NODEID="0").ok()
    finish(second).ok()
    assert curve(first) == pytest.approx({u: curve(legacy)[u] for u in (1, 2, 3)}, rel=1e-4)


@pytest.mark.parametrize(("entry", "backend"), [("launch", "legacy_ddp"), ("ddp", "pytorch_ddp")])
def test_it_fails_without_the_entry(data, tmp_path, entry, backend):
    result = train(
        data, tmp_path, *TWO, "--ddp-backend", backend, "--max-update", 1,
        FAIRSEQ_HYBRID_WITHOUT=entry,
    )  # fmt: skip
    assert result.code != 0
    assert not curve(result)


def test_no_deprecation_noise_but_fairseqs_own_lines(legacy):
    assert legacy.err == ""
    assert "fairseq_cli.train | task: TranslationTask" in legacy.out


def test_the_noise_is_there_without_the_entry(bare_server, data, tmp_path):
    result = bare_server.train(
        data, tmp_path, "--max-update", 1, FAIRSEQ_HYBRID_WITHOUT="quiet"
    ).ok()
    assert "no longer experimental" in result.err


def listening(pids: list[int]) -> list[str]:
    """Addresses on which the processes accept TCP connections."""
    sockets = set()
    for pid in pids:
        for fd in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                match = re.match(r"socket:\[(\d+)\]", os.readlink(fd))
            except OSError:
                continue
            if match:
                sockets.add(match[1])
    found = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for row in Path(table).read_text().splitlines()[1:]:
            fields = row.split()
            if fields[3] == "0A" and fields[9] in sockets:
                found.append(fields[1].split(":")[0])
    return found


@pytest.fixture
def long_job(data, tmp_path):
    """A job on 2 workers that would go on for a long time, and its workers."""
    job = start(
        *train_command(data, tmp_path, *TWO, "--ddp-backend", "legacy_ddp", "--max-update", 10**6),
        *("--save-interval-updates", "20", "--no-epoch-checkpoints", "--num-workers", "1"),
    )
    try:
        wait_for(lambda: list(tmp_path.glob("checkpoint_last.pt")))
        yield job
    finally:
        for pid in [job.pid, *children(job.pid)]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        job.communicate()


def test_workers_listen_on_loopback_only_and_one_that_is_killed_ends_the_job(long_job):
    everybody = [long_job.pid, *children(long_job.pid)]
    addresses = listening(everybody)
    assert len(addresses) >= 3, "the store and both workers should be listening"
    assert set(addresses) == {"0100007F"}, addresses
    victim = workers(long_job.pid)[1]
    os.kill(victim, signal.SIGKILL)
    began = time.monotonic()
    result = finish(long_job, timeout=60)
    assert result.code not in (0, None)
    (line,) = [x for x in result.err.splitlines() if "error:" in x]
    assert f"worker 1 (pid {victim}) died: killed by signal 9 (SIGKILL)" in line
    wait_for(lambda: not alive(everybody), timeout=5)
    assert time.monotonic() - began < 15


def test_a_killed_parent_takes_its_workers_with_it(long_job):
    everybody = [long_job.pid, *children(long_job.pid)]
    assert len(everybody) >= 3
    os.kill(long_job.pid, signal.SIGKILL)
    wait_for(lambda: not alive(everybody), timeout=15)


def test_interrupt_ends_everything_and_says_what_is_saved(long_job, data, tmp_path):
    second = train(data, tmp_path, "--max-update", "1").error()
    assert f"--save-dir {tmp_path} is in use by another training (process {long_job.pid}" in second
    everybody = [long_job.pid, *children(long_job.pid)]
    os.kill(long_job.pid, signal.SIGINT)
    result = finish(long_job, timeout=30)
    assert result.code == 130
    wait_for(lambda: not alive(everybody), timeout=15)
    assert "stopped by SIGINT: the checkpoint of update" in result.err
    assert "the same command goes on from it" in result.err
    assert "Traceback" not in result.all


def test_workers_that_are_started_one_by_one_listen_on_loopback_only(data, tmp_path):
    flags = ("--distributed-no-spawn", f"--distributed-init-method=tcp://localhost:{free_port()}")
    command = train_command(data, tmp_path, *TWO, *flags, "--ddp-backend", "legacy_ddp")
    jobs = [start(*command, "--max-update", 10**6, "--distributed-rank", r) for r in (1, 0)]
    try:
        wait_for(lambda: list(tmp_path.glob("checkpoint_last.pt")))
        addresses = listening([job.pid for job in jobs])
        assert len(addresses) >= 3, "the store and both workers should be listening"
        assert set(addresses) == {"0100007F"}, addresses
        os.kill(jobs[0].pid, signal.SIGTERM)
        assert finish(jobs[0], 30).code == 143
    finally:
        for job in jobs:
            if job.poll() is None:
                os.killpg(job.pid, signal.SIGKILL)
                job.communicate()


@pytest.mark.long
@pytest.mark.parametrize("backend", ["legacy_ddp", "async"])
def test_torchrun_restarts_what_was_killed_and_training_resumes(data, tmp_path, backend):
    command = train_command(data, tmp_path, "--ddp-backend", backend, "--max-update", 60)
    job = start(
        *("torchrun", "--standalone", "--nproc-per-node=2", "--max-restarts=2", "--no-python"),
        *(*command, "--save-interval-updates", 20, "--no-epoch-checkpoints", "--num-workers", 0),
    )
    try:
        wait_for(lambda: list(tmp_path.glob("checkpoint_last.pt")))
        victim = [p for p in children(job.pid) if "fairseq-train" in command_line(p)][1]
        os.kill(victim, signal.SIGKILL)
        result = finish(job, 240).ok()
    finally:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
            job.communicate()
    assert re.search(r"Loaded checkpoint .* @ \d+ updates", result.out)
    assert max(curve(result)) == 60


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""

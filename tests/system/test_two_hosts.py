"""Training by `torchrun` across two hosts, which are network namespaces with a slow link between.

benchmarks/devices.sh makes them (what else it promises: tests/benchmarks/test_devices.py); where it
cannot (no root, no iproute2) these tests are skipped and say why.
"""

from __future__ import annotations

import re
import subprocess

import pytest
from jobs import BIN, ROOT, TINY_LSTM, Result, curve, run, train_command
from warm import Warm

HOSTS = ("bash", str(ROOT / "benchmarks/devices.sh"), "2", "none")
TORCHRUN = (
    f"{BIN}/torchrun --nnodes 2 --nproc-per-node 1 --node-rank $NODE_RANK"
    ' --master-addr $FIRST_HOST --master-port 29500 "$@"'
)
SRUN = """
export PATH=$TOOLS:$PATH SLURM_NTASKS=4 SLURM_NNODES=2 SLURM_NODEID=$NODE_RANK
export SLURM_STEP_NODELIST=hosts
for SLURM_LOCALID in 0 1; do
  export SLURM_LOCALID SLURM_PROCID=$((2 * NODE_RANK + SLURM_LOCALID))
  "$@" &
done
wait -n && wait -n
"""
"""what `srun --nodes 2 --ntasks 4` does on a host"""
SIZES = ("--encoder-layers", "2", "--encoder-embed-dim", "16", "--encoder-hidden-size", "16")
HYBRID = ("--arch", "hybrid_lstm", *SIZES, "--dropout", "0")
WORDS = (
    *("--task", "streamed_language_modeling", "--arch", "hybrid_lstm_lm", "--dropout", "0"),
    *("--decoder-embed-dim", "16", "--decoder-hidden-size", "16", "--tokens-per-sample", "10"),
)
SHORT = ("--max-update", "6", "--no-save", "--disable-validation", "--num-workers", "0")


@pytest.fixture(scope="module", autouse=True)
def _possible():
    tried = subprocess.run([*HOSTS, "none", "true"], capture_output=True, text=True, timeout=60)
    if tried.returncode == 3:
        pytest.skip(tried.stderr.strip())


def across(rate: str, command: list[str]) -> Result:
    """The command on both hosts, as a worker of one job each."""
    program, *words = command
    return run(*HOSTS, rate, "bash", "-c", TORCHRUN, "hosts", f"{BIN}/{program}", *words)


def test_it_is_the_only_way():
    """Neither host reaches anything but the other."""
    routes = run(*HOSTS, "none", "bash", "-c", "ip route; ip -brief link").ok()
    for host in (routes.out, routes.err):
        links = [re.sub(r"@if\d+$", "", line.split()[0]) for line in host.splitlines()[-2:]]
        assert links == ["lo", "wire"]
        assert "default" not in host


def test_a_host_that_fails_ends_the_other():
    job = '[ "$NODE_RANK" = 0 ] || exit 7; sleep 60'
    result = run(*HOSTS, "none", "bash", "-c", job)
    assert result.code == 7
    assert result.seconds < 20


def test_a_rate_that_is_none_is_one_line():
    result = run(*HOSTS, "fast", "true")
    assert result.code == 2
    assert result.err == (
        "devices.sh: RATE fast: give a rate such as 250mbit, or none; "
        "usage: devices.sh N SHARE RATE COMMAND...\n"
    )


@pytest.fixture(scope="module")
def legacy(data, tmp_path_factory):
    """Losses of data parallelism across the hosts."""
    flags = (*SHORT, "--ddp-backend", "legacy_ddp")
    command = train_command(data, tmp_path_factory.mktemp("legacy"), *flags, arch=HYBRID)
    return curve(across("100mbit", command).ok())


@pytest.mark.long
@pytest.mark.timeout(900)
def test_hybrid_has_the_losses_of_data_parallelism(data, tmp_path, legacy):
    command = train_command(data, tmp_path, *SHORT, "--ddp-backend", "hybrid", arch=HYBRID)
    result = across("100mbit", command).ok()
    assert len(legacy) == 6
    assert curve(result) == pytest.approx(legacy, rel=1e-4)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("backend", "criterion"),
    [("sampled", "sampled_softmax"), ("model_averaging", "cross_entropy")],
)
def test_losses_are_those_of_one_host(words, tmp_path, server, backend, criterion):
    flags = (*SHORT, "--ddp-backend", backend, "--criterion", criterion)
    flags += ("--averaging-interval", "3")
    command = train_command(words, tmp_path, *flags, arch=WORDS)
    result = across("100mbit", command).ok()
    local = Warm(server, [*command, "--distributed-world-size", "2"], tmp_path).finish().ok()
    assert len(curve(local)) == 6
    assert curve(result) == pytest.approx(curve(local), rel=1e-4)
    if backend == "sampled":  # hosts share no memory, though these two could
        assert "gradients are summed by messages" in result.all
        assert "gradients are summed in memory" in local.all


@pytest.mark.long
@pytest.mark.timeout(900)
def test_legacy_ddp_trains_fairseqs_own_model(data, tmp_path):
    flags = (*SHORT, "--ddp-backend", "legacy_ddp")
    result = across("1gbit", train_command(data, tmp_path, *flags, arch=TINY_LSTM)).ok()
    losses = curve(result)
    assert len(losses) == 6
    assert losses[6] < losses[1]


@pytest.mark.long
@pytest.mark.timeout(900)
def test_slurm_starts_workers_on_both(data, tmp_path):
    """Two tasks per host, told by Slurm's variables alone who and where they are."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "scontrol").write_text("#!/bin/sh\necho $FIRST_HOST\necho 10.86.0.2\n")
    (tools / "scontrol").chmod(0o755)
    flags = (*SHORT, "--max-update", "2", "--ddp-backend", "hybrid", "--hybrid-stages", "2")
    flags += ("--distributed-world-size", "4", "--distributed-port", "29500")
    program, *words = train_command(data, tmp_path, *flags, arch=HYBRID)
    command = ("bash", "-c", SRUN, "srun", f"{BIN}/{program}", *words)
    result = run(*HOSTS, "100mbit", *command, TOOLS=str(tools)).ok()
    assert len(curve(result)) == 2
    ranks = re.findall(r"distributed init \(rank (\d)\)", result.all)
    assert sorted(set(ranks)) == ["0", "1", "2", "3"]

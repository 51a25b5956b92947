"""Systems in turns: what is said of their rounds, a whole small run, and what ends one."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import sys
from pathlib import Path

import pytest
from jobs import ROOT, alive, children, run, start, wait_for

PROGRAM = str(ROOT / "benchmarks/translation_parallel.py")
TINY = (
    *("--workload", "fixed", "--layers", "2", "--hidden", "16", "--vocab", "60"),
    *("--sentences", "4", "--length", "6", "--updates", "2", "--settle", "0", "--warmup", "0"),
)


@pytest.fixture(scope="module")
def measured():
    spec = importlib.util.spec_from_file_location("measured", ROOT / "benchmarks/measured.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def turn(tokens: float, beside: float | None = None) -> dict:
    made = {"tokens": tokens, "seconds": 1.0}
    return made if beside is None else {**made, "beside": {"tokens": beside, "seconds": 1.0}}


def test_ratios_are_to_what_was_measured_beside(measured):
    """In the second round the machine is half as fast while `hybrid` has its turn."""
    rounds = {
        "single": [turn(100), turn(100), turn(100), turn(50)],
        "legacy_ddp": [turn(150, 100), turn(150, 100)],
        "hybrid": [turn(180, 100), turn(90, 50)],
    }
    assert measured.within_rounds(rounds, "single") == {
        "single": [1.0, 1.0],
        "legacy_ddp": [1.5, 1.5],
        "hybrid": [1.8, 1.8],
    }
    over_ddp = measured.within_rounds(rounds, "legacy_ddp")
    assert over_ddp["hybrid"] == pytest.approx([1.2, 1.2])
    assert over_ddp["single"] == pytest.approx([1 / 1.5, 1 / 1.5])
    assert measured.within_rounds(rounds, "pytorch_ddp") == {}


def test_without_one_worker_beside_ratios_are_plain(measured):
    rounds = {"legacy_ddp": [turn(100), turn(50)], "hybrid": [turn(120), turn(80)]}
    assert measured.within_rounds(rounds, "single") == {}
    assert measured.within_rounds(rounds, "legacy_ddp")["hybrid"] == [1.2, 1.6]


def is_complete(result: dict, backends: tuple[str, ...]) -> None:
    found = result["workloads"]["fixed"]
    calibration = found["calibration"]
    assert set(calibration) == {
        *("products_gflops", "products_ratio", "round_trip_ms", "link_mb_per_s", "flop_per_byte")
    }
    assert all(value > 0 for value in calibration.values())
    parameters = found["parameters"]["single"]
    for name in backends:
        row = found["systems"][name]
        assert row["speed_up"] > 0
        # two workers' all-reduce of all gradients: each sends them once
        assert row["mb_counted"] == pytest.approx(2 * 4 * parameters / 1e6, abs=0.02)
        assert row["mb_counted"] <= row["mb_loopback"] < 1.5 * row["mb_counted"] + 0.1
        assert row["tokens_per_update"] == 2 * 4 * 6
        assert len(found["rounds"][name]) == result["options"]["rounds"]
        assert all("beside" in turn for turn in found["rounds"][name])
    assert len(found["rounds"]["single"]) == len(backends) * result["options"]["rounds"]


@pytest.mark.long
def test_a_run_on_devices(tmp_path):
    """One round; result, table and calibration."""
    file = tmp_path / "result.json"
    flags = ("--systems", "single", "pytorch_ddp", "--rounds", "1", "--devices", "1", "200mbit")
    result = run(sys.executable, PROGRAM, *TINY, *flags, "--json", file)
    if result.code == 3:
        pytest.skip(result.err.splitlines()[-1])
    result.ok()
    assert "| 2 workers, pytorch_ddp |" in result.out
    assert "FLOP per byte" in result.out
    made = json.loads(file.read_text())
    is_complete(made, ("pytorch_ddp",))
    assert made["workloads"]["fixed"]["calibration"]["link_mb_per_s"] < 30  # 25 and a burst


@pytest.mark.long
def test_a_run_on_one_machine(tmp_path):
    """Two rounds of two backends."""
    file = tmp_path / "result.json"
    backends = ("legacy_ddp", "pytorch_ddp")
    flags = ("--systems", "single", *backends, "--rounds", "2")
    run(sys.executable, PROGRAM, *TINY, *flags, "--json", file).ok()
    is_complete(json.loads(file.read_text()), backends)


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (("--workers", "8"), "--workers 8: give 2 to 7"),
        (("--devices", "2", "1gbit"), "--devices 2 1gbit: the share is 0.05 to 1 of a core"),
        (("--devices", "1", "fast"), "--devices 1 fast: the rate is as 250mbit or 1gbit"),
        (("--devices", "1", "1gbit", "--systems", "threads"), "--devices: threads of one worker"),
    ],
)
@pytest.mark.long
def test_what_makes_no_sense_is_said(flags, line):
    assert line in run(sys.executable, PROGRAM, *TINY, *flags).error()


def python(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text().startswith(sys.executable)
    return False


@pytest.mark.long
@pytest.mark.parametrize("emulated", [(), ("--devices", "1", "200mbit")])
def test_a_worker_that_is_killed_is_named(emulated):
    """And nobody is left; `--updates` is for longer than the test waits."""
    flags = ("--systems", "legacy_ddp", "--rounds", "100", *emulated)
    process = start(sys.executable, PROGRAM, *TINY, *flags)
    for line in process.stderr:
        if "round 2/" in line:
            break
    else:
        pytest.skip(f"ended with {process.wait()}")
    everything = children(process.pid)

    def worker() -> int | None:
        """A starter's child: both are Python."""
        starters = [pid for pid in children(process.pid) if python(pid)]
        return next((child for pid in starters for child in children(pid) if python(child)), None)

    os.kill(wait_for(worker), signal.SIGKILL)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "was killed by SIGKILL" in err
    wait_for(lambda: not alive(everything))


@pytest.mark.long
@pytest.mark.parametrize("emulated", [(), ("--devices", "1", "200mbit")])
def test_if_the_benchmark_is_killed_nobody_is_left(emulated):
    flags = ("--systems", "single", "legacy_ddp", "--rounds", "100", *emulated)
    process = start(sys.executable, PROGRAM, *TINY, *flags)
    for line in process.stderr:
        if "round 1/" in line:
            break
    everything = children(process.pid)
    assert len(everything) >= 3 or process.wait() == 3
    process.kill()
    process.communicate(timeout=60)
    wait_for(lambda: not alive(everything))

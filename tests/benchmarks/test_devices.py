"""Emulated devices: what they give, what they refuse, and that nothing of them is left behind.

Where benchmarks/devices.sh can make none (no root, no iproute2, no cgroups) tests that need them
are skipped with its own reason.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import sys
import time
from pathlib import Path

import pytest
from jobs import ROOT, alive, children, run, start, wait_for

SCRIPT = ROOT / "benchmarks/devices.sh"
CALIBRATION = str(ROOT / "benchmarks/calibration.py")
CGROUPS = Path("/sys/fs/cgroup")
SLEEP = ("bash", "-c", "echo up; sleep 600 & sleep 600")
SPIN = """
import os, time
end = time.monotonic() + 1.5
while time.monotonic() < end:
    pass
print(time.process_time())
"""


def devices(*words: str, **settings):
    return run("bash", SCRIPT, *words, **settings)


@pytest.fixture(scope="module")
def possible():
    tried = devices("2", "0.5", "100mbit", "true")
    if tried.code == 3:
        pytest.skip(tried.err.strip())
    tried.ok()


def cgroups() -> set[Path]:
    return {*CGROUPS.glob("emulated_devices.*"), *CGROUPS.glob("*/emulated_devices.*")}


def ownerless() -> set[Path]:
    """Those whose keeper has ended; others may be of somebody else on this machine."""
    return {path for path in cgroups() if not Path("/proc", path.suffix[1:]).exists()}


def namespaces(pids: list[int]) -> set[str]:
    """The network namespaces of some processes."""
    found = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            found.add(os.readlink(f"/proc/{pid}/ns/net"))
    return found


def named(token: str) -> list[int]:
    """Processes with a word in their command lines."""
    found = []
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if token in line.read_text(errors="replace"):
                found.append(int(line.parent.name))
    return found


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["2", "0.5", "1gbit"], "too few arguments"),
        (["0", "0.5", "1gbit", "true"], "N 0: give 1 to 99 devices"),
        (["2", "1.5", "1gbit", "true"], "SHARE 1.5: give 0.05 to 1, or none"),
        (["2", "0.01", "1gbit", "true"], "SHARE 0.01: give 0.05 to 1, or none"),
        (["2", "0", "1gbit", "true"], "SHARE 0: give 0.05 to 1, or none"),
        (["2", "0.5", "$(touch x)bit", "true"], "RATE $(touch x)bit: give a rate such as 250mbit"),
    ],
)
def test_what_makes_no_sense_is_one_line(words, line):
    result = devices(*words)
    assert result.code == 2
    assert result.err.startswith(f"devices.sh: {line}")
    assert result.err.count("\n") == 1


def test_where_a_tool_is_missing_it_says_which(tmp_path):
    for tool in ("bash", "unshare", "nsenter", "setsid", "ip"):
        (tmp_path / tool).symlink_to(f"/bin/{tool}")
    result = run("/bin/bash", SCRIPT, "2", "0.5", "1gbit", "true", PATH=str(tmp_path))
    assert result.code == 3
    assert result.err == (
        "devices.sh: no emulated devices can be made here: tc is not installed "
        "(util-linux, iproute2)\n"
    )


@pytest.mark.usefixtures("possible")
class TestDevices:
    def test_each_knows_who_it_is(self):
        said = 'echo "$NODE_RANK of $NODES, $FIRST_HOST on $GLOO_SOCKET_IFNAME"'
        result = devices("3", "0.5", "none", "bash", "-c", said).ok()
        assert result.out == "0 of 3, 10.86.0.1 on wire\n"
        assert sorted(result.err.splitlines()) == [
            f"{rank} of 3, 10.86.0.1 on wire" for rank in (1, 2)
        ]

    def test_share_of_a_core(self):
        """Time of the processor in 1.5 s, in which one process would like to have all of it."""
        used = float(devices("1", "0.2", "none", sys.executable, "-c", SPIN).ok().out)
        assert 0.1 < used < 0.45  # 0.3; the lower bound is for a loaded machine

    def test_rate_in_both_directions(self):
        """Calibration of devices that send and receive at the same time."""
        command = ("python", CALIBRATION, "quickly")
        result = json.loads(devices("2", "none", "20mbit", *command).ok().out)
        assert 1.2 < result["link_mb_per_s"] < 2.9  # 2.5
        assert 0 < result["round_trip_ms"] < 100
        flop_per_byte = 1000 * result["products_gflops"] / result["link_mb_per_s"]
        assert result["flop_per_byte"] == pytest.approx(flop_per_byte, rel=0.05)

    def test_one_that_fails_ends_the_others(self):
        command = '[ "$NODE_RANK" = 1 ] && exit 7; sleep 60'
        result = devices("3", "0.5", "none", "bash", "-c", command)
        assert result.code == 7
        assert result.seconds < 20
        assert not ownerless()

    @pytest.mark.long
    def test_no_rate_is_no_limit(self):
        result = devices("2", "none", "none", "python", CALIBRATION, "quickly").ok()
        assert 8 * json.loads(result.out)["link_mb_per_s"] > 60

    @pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
    def test_killed_in_the_middle_it_leaves_nothing(self, sign):
        assert killed(lambda everything: everything[:1], sign)

    def test_killed_with_its_process_group_it_leaves_nothing(self):
        """As a terminal or a batch system does it."""
        assert killed(None, signal.SIGKILL)

    @pytest.mark.parametrize(
        "part", [1, *(pytest.param(part, marks=pytest.mark.long) for part in range(2, 7))]
    )
    def test_a_part_of_it_that_is_killed_leaves_nothing(self, part):
        """Keeper, unshare, process 1 of the namespace, its watch, devices 0 and 1."""
        assert killed(lambda everything: everything[part : part + 1], signal.SIGKILL)

    def test_killed_while_it_starts_it_leaves_nothing(self):
        for delay in (0.02, 0.06, 0.12, 0.2):
            assert killed(None, signal.SIGKILL, delay)

    def test_what_was_left_is_removed_by_the_next(self):
        """Script and keeper killed at once: all processes end, an empty cgroup remains."""
        assert killed(lambda everything: everything[:2], signal.SIGKILL, removed=False)
        devices("1", "0.5", "none", "true").ok()
        assert not ownerless()


def killed(which, sign: signal.Signals, delay: float | None = None, removed: bool = True) -> bool:
    """Start devices that sleep, kill some of their processes or the script's group, and wait until
    all processes have ended, and their namespaces and cgroups with them."""
    token = secrets.token_hex(8)
    process = start("bash", SCRIPT, "2", "0.5", "100mbit", *SLEEP, token)
    spaces: set[str] = set()
    if delay is None:
        assert process.stdout.readline() == "up\n"
        wait_for(lambda: len(children(process.pid)) >= 10)
        spaces = namespaces(children(process.pid)) - namespaces([os.getpid()])
        assert len(spaces) == 3  # two devices and the bridge between them
    else:
        time.sleep(delay)
    everything = [process.pid, *children(process.pid)]
    if which is None:
        os.killpg(process.pid, sign)
    else:
        for pid in which(everything):
            os.kill(pid, sign)
    process.communicate(timeout=60)
    wait_for(lambda: not alive([*everything, *named(token)]))
    wait_for(lambda: not removed or not ownerless())
    everybody = [int(entry.name) for entry in Path("/proc").glob("[0-9]*")]
    return not spaces & namespaces(everybody)

"""The line of progress: what it says, and that nothing which befalls it reaches the training."""

from __future__ import annotations

import importlib.util
import os
import pty
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
from jobs import ROOT, children, environment, finish, start, wait_for

LINE = (
    "2026-01-01 10:00:00 | INFO | train_inner | epoch 001:  {update:5d} / 50 loss=3.25, ppl=9.5, "
    "wps=4712.6, ups=2.1, wpb=1200, bsz=80, num_updates={update}, lr=0.002, wall=9\n"
)
VALID = "2026-01-01 10:00:00 | INFO | valid | epoch 001 | valid on 'valid' subset | loss 2.875\n"
GARBAGE = (
    b"\xff\xfe\x1b[31m | train_inner | num_updates=nan, loss=inf\n"
    b"| train_inner | epoch 001:  3 / 0 loss=1e999, wps=, num_updates=" + b"9" * 400 + b"\n"
    b"| valid | loss ?\n" + b"x" * 100_000 + b"\n| train_inner |\n"
)


def reported(*updates: int, valid: bool = True) -> bytes:
    lines = [LINE.format(update=update) for update in updates]
    return "".join([*lines, VALID * valid]).encode()


def command(log: Path, training: str, *options: str) -> list[str]:
    tools = ROOT / "examples/translation/tools.sh"
    script = 'set -euo pipefail; source "$0"; watched "$@"; echo "after it"'
    return ["bash", "-c", script, str(tools), str(log), *options, "--", "bash", "-c", training]


def run(log: Path, training: str, *options: str):
    return finish(start(*command(log, training, *options)), 60)


@pytest.fixture
def log(tmp_path):
    (tmp_path / "said").write_bytes(GARBAGE + reported(10, 25))
    return tmp_path / "train.log"


def test_plain_lines_where_nothing_can_be_rewritten(log):
    go = log.parent / "go"
    says = f"until [ -e {go} ] || [ $SECONDS -gt 60 ]; do sleep 0.05; done; cat {log.parent}/said"
    process = start(*command(log, says, "--updates", "100"))
    assert process.stdout.readline() == "  starting, 0:00\n"
    go.touch()
    kept, last, after = finish(process, 60).ok().out.splitlines()
    assert kept == "  epoch 1: validation loss 2.88"
    assert re.fullmatch(r"   25%  loss 3.25  4,713 words/s  \d:\d\d in all", last)
    assert after == "after it"
    assert log.read_bytes() == (log.parent / "said").read_bytes(), "the log is raw and whole"


def test_a_second_run_begins_where_the_log_ended(log):
    log.write_bytes(reported(99))
    (log.parent / "said").write_bytes(reported(50, valid=False))
    result = run(log, f"cat {log.parent}/said", "--epochs", "2").ok()
    assert "99%" not in result.out
    assert " 50%  epoch 1.0  loss 3.25" in result.out
    assert "validation" not in result.out


def test_a_failure_keeps_its_status_and_shows_the_end_of_the_log(log):
    result = run(log, "echo first; echo why >&2; exit 7", "--updates", "100")
    assert result.code == 7
    assert "failed (exit status 7)" in result.err
    assert "why" in result.err
    assert "after it" not in result.out


def test_no_words_before_the_command_is_a_training_of_unknown_length(log):
    result = run(log, f"cat {log.parent}/said").ok()
    assert "  epoch 0.5  loss 3.25  4,713 words/s" in result.out


def test_time_left_is_that_of_this_run():
    """A training that goes on at half has been going for 10 seconds, not since its beginning."""
    path = ROOT / "examples/translation/progress.py"
    spec = importlib.util.spec_from_file_location("progress", path)
    progress = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(progress)
    report = progress.Report(updates=100)
    report.read(LINE.format(update=50), now=100.0)
    assert report.left(101.0) is None, "nothing is known yet"
    report.read(LINE.format(update=60), now=110.0)
    assert report.left(112.0) == pytest.approx(38)
    report.read(VALID.replace("loss 2.875", "loss 2.875 | num_updates 60"), now=111.0)
    assert report.text(112.0, began=95.0) == " 60%  loss 3.25  4,713 words/s  0:38 left"


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, *words: str):
        self.master, slave = pty.openpty()
        self.process = subprocess.Popen(
            words,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environment(TERM="xterm", COLUMNS="80"),
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),  # as under nohup
        )
        os.close(slave)

    def read(self, until: str = "\0") -> str:
        """What it shows, up to the words or to the end."""
        found = b""
        while until.encode() not in found:
            try:
                piece = os.read(self.master, 65536)
            except OSError:  # the last one who had it open has closed it
                piece = b""
            if not piece:
                break
            found += piece
        return found.decode()


def test_one_line_that_rewrites_itself_on_a_terminal(log):
    go, more = log.parent / "go", log.parent / "more"
    more.write_bytes(reported(50, valid=False))
    wait = f"until [ -e {go} ] || [ $SECONDS -gt 60 ]; do sleep 0.05; done"
    says = f"cat {log.parent}/said; {wait}; cat {more}; sleep 1"
    terminal = Terminal(*command(log, says, "--updates", "100"))
    shown = terminal.read(until="so far")
    go.touch()
    shown += terminal.read()
    os.close(terminal.master)
    assert terminal.process.wait(30) == 0
    *lines, last, after, end = shown.split("\r\n")
    assert [line.rpartition("\033[K")[2] for line in lines] == ["  epoch 1: validation loss 2.88"]
    *rewritten, final = last.split("\r\033[K")
    for share in ("25%", "50%"):
        assert any(line.startswith(f"   {share}  loss 3.25  4,713 w") for line in rewritten), shown
    assert final.endswith(" in all")
    assert (after, end) == ("after it", "")


def test_the_training_survives_its_terminal(log):
    done = log.parent / "done"
    says = f"cat {log.parent}/said; sleep 1; cat {log.parent}/said; touch {done}"
    terminal = Terminal(*command(log, says, "--updates", "100"))
    wait_for(log.exists, 30)
    os.close(terminal.master)
    terminal.process.wait(30)
    assert done.exists()
    assert log.read_bytes() == 2 * (log.parent / "said").read_bytes()


def progress_of(pid: int) -> list[int]:
    def line(child: int) -> str:
        try:
            return Path(f"/proc/{child}/cmdline").read_text()
        except OSError:
            return ""

    return [child for child in children(pid) if "progress.py" in line(child)]


def test_the_training_survives_the_death_of_its_progress(log):
    process = start(*command(log, "sleep 1.5; echo trained", "--updates", "100"))
    (progress,) = wait_for(lambda: progress_of(process.pid), 30)
    os.kill(progress, signal.SIGKILL)
    result = finish(process, 60).ok()
    assert result.out.endswith("after it\n")
    assert log.read_text() == "trained\n"


@pytest.mark.parametrize("own", [True, False], ids=["handled", "not handled"])
def test_control_c_ends_the_training_and_its_progress(log, own):
    trap = "trap 'echo stopped; exit 5' TERM; " if own else ""
    says = f"{trap}touch {log.parent}/ready; sleep 30 & wait"
    process = start(*command(log, says, "--updates", "100"))
    wait_for((log.parent / "ready").exists, 30)
    (progress,) = wait_for(lambda: progress_of(process.pid), 30)
    began = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)
    result = finish(process, 60)
    assert time.monotonic() - began < 20
    assert result.code == 130
    assert "after it" not in result.out
    assert log.read_text() == ("stopped\n" if own else "")
    wait_for(lambda: not Path(f"/proc/{progress}").exists(), 30)

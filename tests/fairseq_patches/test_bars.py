"""`--log-format tqdm`: one line of any width, and the log above it."""

from __future__ import annotations

import fcntl
import logging
import os
import pty
import select
import struct
import termios

import pytest
from fairseq.logging import progress_bar

import fairseq_hybrid  # noqa: F401

METERS = {"loss": 9.8961, "wps": 7162.4, "num_updates": 15, "lr": 0.005, "gnorm": 0.56, "wall": 18}
OURS = {f"wait{worker}": 12.34 for worker in range(4)} | {"sent_mb": 101.98, "ideal": 92.08}


@pytest.fixture(params=[160, 80])
def terminal(request, monkeypatch):
    """Its end to read, its screen, which the log goes to, and its width."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, request.param, 0, 0))
    monkeypatch.setenv("COLUMNS", str(request.param))
    with open(theirs, "w", encoding="utf-8") as screen:
        handler = logging.StreamHandler(screen)
        monkeypatch.setattr(logging.getLogger(), "handlers", [handler])
        monkeypatch.setattr(progress_bar.logger, "level", logging.INFO)
        yield ours, screen, request.param
    os.close(ours)


def read(screen: int) -> str:
    """What was written to it since; a read gives a part."""
    found = b""
    while select.select([screen], [], [], 0)[0]:
        found += os.read(screen, 4096)
    return found.decode()


def test_the_bar_stays_and_lines_of_the_log_are_whole(terminal, monkeypatch):
    ours, screen, width = terminal
    monkeypatch.setattr("sys.stderr", screen)  # (a fixture would come before pytest's own)
    bar = progress_bar.progress_bar(range(20), "tqdm", epoch=3)
    bar.tqdm.mininterval, shown = 0, ""
    for number in bar:
        bar.log({**METERS, **OURS}, step=number)
        if number in (8, 12):
            logging.getLogger("any").warning("a line of the log")
        shown += read(ours)
    above, lines = [], (shown + read(ours)).replace("\r\n", "\n").split("\n")
    for line in lines[:-1]:
        *_, cleared, last = line.split("\r")
        assert cleared.strip() == ""
        above.append(last)
    assert above == ["a line of the log"] * 2
    drawn = [part for line in lines for part in line.split("\r") if part.startswith("epoch 003")]
    with_meters = [part for part in drawn if "loss=9.896" in part]
    assert any("█" in part for part in with_meters)
    for part in with_meters:
        assert len(part) <= width
        assert part.endswith("]")
        assert ("wait3=12.34, sent_mb=101.98" in part) == (width == 160)

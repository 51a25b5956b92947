"""One line of progress from the log of a training that something else runs.

    python progress.py LOG OFFSET [--updates N | --epochs N] < LIFELINE

Reads what fairseq (`--log-format simple`) appends to LOG after its first OFFSET bytes, until
standard input ends. On a terminal it is one line that rewrites itself, elsewhere a line every half
minute, and on both a line for each validation. It only reads, so whatever becomes of it or of the
terminal, the training does not notice. `watched` in tools.sh starts both.
"""

from __future__ import annotations

import argparse
import os
import re
import select
import shutil
import signal
import sys
import time

LOOK = 0.25
"""seconds between two looks at the log"""
EVERY = 30.0
"""seconds between two lines where nothing can be rewritten"""
LONGEST = 20_000
"""a line of the log that is longer is no report"""

EPOCH = re.compile(r"\bepoch (\d{1,9}):? +(?:(\d{1,9}) / (\d{1,9}))?")
PAIR = re.compile(r"\b(loss|ppl|wps|num_updates)[= ](\d{1,12}(?:\.\d{1,9})?)(?=[,\s]|$)")


class Report:
    """What the log has said so far."""

    def __init__(self, updates: int = 0, epochs: int = 0):
        self.updates, self.epochs = updates, epochs
        self.values: dict[str, float] = {}
        self.epoch = self.share = 0.0
        self.first: tuple[float, float] | None = None
        """when the first share of this run was seen, and which"""
        self.seen = 0.0
        """when the last one was"""

    def read(self, line: str, now: float) -> str | None:
        """Take in a line of the log; returns what to print for good, if it is a validation."""
        if "| valid |" not in line and "| train_inner |" not in line:
            return None
        found = {name: float(value) for name, value in PAIR.findall(line)}
        epoch = EPOCH.search(line)
        if "| valid |" in line:
            if "loss" not in found or not epoch:
                return None
            if (
                self.updates and "num_updates" in found
            ):  # the last updates have no line of their own
                self.share = min(max(self.share, found["num_updates"] / self.updates), 1.0)
            said = f"epoch {int(epoch[1])}: validation loss {found['loss']:.2f}"
            return said + (f", perplexity {found['ppl']:,.2f}" if "ppl" in found else "")
        if "num_updates" not in found:
            return None
        self.values.update(found)
        if epoch:
            self.epoch = float(epoch[1])
            if epoch[3] and int(epoch[3]):
                self.epoch += int(epoch[2]) / int(epoch[3]) - 1
        done = found["num_updates"] / self.updates if self.updates else 0.0
        if self.epochs:
            done = max(done, self.epoch / self.epochs)
        self.share = min(done, 1.0)
        if self.first is None:
            self.first = (now, self.share)
        self.seen = now
        return None

    def left(self, now: float) -> float | None:
        """Seconds to the end, by the speed of this run."""
        if self.first is None or self.share <= self.first[1] or self.seen - self.first[0] < 1:
            return None
        per_share = (self.seen - self.first[0]) / (self.share - self.first[1])
        return max(per_share * (1 - self.share) - (now - self.seen), 0.0)

    def text(self, now: float, began: float, over: bool = False) -> str:
        """Share done, loss, words per second, time left; when it is over, the time it took."""
        if not self.values:
            return f"starting, {clock(now - began)}"
        parts = [f"{self.share:4.0%}"] if self.updates or self.epochs else []
        if not self.updates:
            parts.append(f"epoch {self.epoch:.1f}")
        if "loss" in self.values:
            parts.append(f"loss {self.values['loss']:.2f}")
        if "wps" in self.values:
            parts.append(f"{self.values['wps']:,.0f} words/s")
        left = None if over else self.left(now)
        spent = f"{clock(now - began)} {'in all' if over else 'so far'}"
        parts.append(spent if left is None else f"{clock(left)} left")
        return "  ".join(parts)


def clock(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


class Screen:
    """Standard output, for as long as there is one."""

    def __init__(self):
        self.terminal = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
        self.shown, self.printed = "", -EVERY

    def write(self, text: str) -> None:
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except (OSError, ValueError):  # the terminal was closed, or the pipe's reader went away
            os._exit(0)

    def keep(self, line: str) -> None:
        """A line that stays."""
        self.write(f"\r\033[K  {line}\n" if self.terminal else f"  {line}\n")
        self.shown = ""

    def show(self, line: str, now: float) -> None:
        """The line of progress."""
        if self.terminal:
            line = line[: max(shutil.get_terminal_size().columns - 3, 10)]
            if line != self.shown:
                self.write(f"\r\033[K  {line}")
                self.shown = line
        elif now - self.printed >= EVERY:
            self.printed = now
            self.write(f"  {line}\n")


class Follower:
    """Whole lines that are appended to a file; ends of lines that are too long are dropped."""

    def __init__(self, path: str, offset: int):
        self.path, self.offset, self.rest = path, offset, b""

    def lines(self) -> list[str]:
        try:
            with open(self.path, "rb") as log:
                log.seek(self.offset)
                new = log.read(1 << 20)
        except OSError:
            return []
        self.offset += len(new)
        *whole, self.rest = (self.rest + new).split(b"\n")
        self.rest = self.rest[:LONGEST]
        return [line[:LONGEST].decode("utf-8", "replace") for line in whole]


def ended(timeout: float) -> bool:
    """Whether standard input has come to its end, which is how the training's end is told."""
    ready, _, _ = select.select([0], [], [], timeout)
    return bool(ready) and not os.read(0, 4096)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("log")
    parser.add_argument("offset", type=int)
    parser.add_argument("--updates", type=int, default=0, help="of the whole training")
    parser.add_argument("--epochs", type=int, default=0, help="the most there will be")
    args = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # is meant for the training, whose end ends this
    report, screen = Report(args.updates, args.epochs), Screen()
    log, began, over = Follower(args.log, args.offset), time.monotonic(), False
    while not over:
        over = ended(LOOK)
        while lines := log.lines():
            for line in lines:
                kept = report.read(line, time.monotonic())
                if kept:
                    screen.keep(kept)
        now = time.monotonic()
        if not over:
            screen.show(report.text(now, began), now)
    if report.values:
        screen.keep(report.text(now, began, over=True))
    elif screen.terminal:
        screen.write("\r\033[K")


if __name__ == "__main__":
    main()

"""``--log-format tqdm``: one line, with the bar, for any number of meters and any width.

fairseq hands all meters to tqdm, which has no room left for the bar then, and logs in the middle of
its line. Here the meters that fit are shown: the loss and the speed, what a backend measures, the
others. All of them are in the line at the end of an epoch.
"""

from __future__ import annotations

import functools
import logging
import shutil
from collections.abc import Callable, Iterable

from fairseq.logging import progress_bar
from tqdm import tqdm

FIRST = ("loss", "nll_loss", "ppl", "wps")
LAST = (
    *("lr", "gnorm", "clip", "loss_scale", "wpb", "bsz", "num_updates", "ups"),
    *("train_wall", "gb_free", "wall"),
)
"""fairseq's own; what stands in neither is a backend's"""
BAR = 50
"""columns of the bar and its counters"""


class Bar(progress_bar.TqdmProgressBar):
    def __init__(self, iterable: Iterable, epoch: int | None = None, prefix: str | None = None):
        progress_bar.BaseProgressBar.__init__(self, iterable, epoch, prefix)
        quiet = progress_bar.logger.getEffectiveLevel() > logging.INFO
        self.tqdm = tqdm(iterable, self.prefix, leave=False, disable=quiet, dynamic_ncols=True)
        log_above_bars()

    def log(self, stats: dict, tag: str | None = None, step: int | None = None) -> None:
        room = shutil.get_terminal_size().columns - BAR - len(self.prefix)
        self.tqdm.set_postfix(fitting(self._format_stats(stats), room), refresh=False)


def fitting(stats: dict[str, str], room: int) -> dict[str, str]:
    """As many of the meters as have room, in the order of what is looked at."""
    names = [name for name in FIRST if name in stats]
    names += [name for name in stats if name not in FIRST + LAST]
    names += [name for name in LAST if name in stats]
    shown = {}
    for name in names:
        room -= len(f", {name}={stats[name]}")
        if room < 0:
            break
        shown[name] = stats[name]
    return shown


def log_above_bars() -> None:
    """Lines of the log take the bar's place, and it is drawn again below."""
    for handler in logging.getLogger().handlers:
        if type(handler) is logging.StreamHandler and not isinstance(
            handler.emit, functools.partial
        ):
            handler.emit = functools.partial(above, handler, handler.emit)  # type: ignore[method-assign]


def above(handler: logging.StreamHandler, emit: Callable, record: logging.LogRecord) -> None:
    with tqdm.external_write_mode(file=handler.stream):
        emit(record)


def install() -> None:
    progress_bar.TqdmProgressBar = Bar

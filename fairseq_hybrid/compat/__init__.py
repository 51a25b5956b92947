"""What fairseq 0.12 needs on current Python and torch, and to run several workers on CPU.

Each entry below mends one thing, in one file, and has a test in ``tests/compat`` that fails when
the entry is off.  ``FAIRSEQ_HYBRID_WITHOUT=loading,launch`` switches entries off by name: the
quickest way to find out whether one of them is behind a problem.

Nothing here runs unless the plugin is loaded.
"""

from __future__ import annotations

import os

from fairseq_hybrid.compat import (
    checkpoints,
    collectives,
    data,
    launch,
    messages,
    mismatch,
    position,
    versions,
)
from fairseq_hybrid.compat.messages import UserError

ENTRIES = {
    "versions": versions.install,  # say which fairseq and torch this was tested with
    "quiet": messages.install_quiet,  # hydra's and torch's deprecation warnings about fairseq
    "errors": messages.install_errors,  # what the user can mend: one line, no traceback
    "options": messages.install_options,  # a wrong option: one line instead of pages of usage
    "launch": launch.install,  # worker start on CPU, torchrun, dying workers, one-line errors
    "gather": collectives.install_gather,  # all_gather_list without CUDA buffers
    "ddp": collectives.install_ddp,  # torch's DistributedDataParallel on CPU
    "numpy": data.install_numpy,  # language models' data sets on numpy 2
    "batches": data.install_batches,  # the last few sentences of a data set, which fairseq drops
    "position": position.install,  # within an epoch, for any number of workers
    "loading": checkpoints.install_loading,  # weights_only with fairseq's classes allow-listed
    "mismatch": mismatch.install,  # a checkpoint of another model: say what differs
    "saving": checkpoints.install_saving,  # files appear under their name only when complete
}

SWITCH = "FAIRSEQ_HYBRID_WITHOUT"


def apply() -> None:
    """Install every entry that is not switched off; a second call does nothing."""
    if getattr(apply, "done", False):
        return
    off = [name for name in os.environ.get(SWITCH, "").split(",") if name]
    unknown = sorted(set(off) - set(ENTRIES))
    if unknown:
        messages.fail(f"{SWITCH}={','.join(unknown)} is not an entry: use {', '.join(ENTRIES)}")
    for name, install in ENTRIES.items():
        if name not in off:
            install()
    apply.done = True


__all__ = ["ENTRIES", "SWITCH", "UserError", "apply"]

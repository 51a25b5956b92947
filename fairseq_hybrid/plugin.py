"""What ``--user-dir fairseq_hybrid`` switches on: ``register``, read from top to bottom.

``ENTRIES`` is what fairseq 0.12 needs on current Python and torch, and to run several workers on
CPU. Each mends one thing, in one file, and has a test that fails when the entry is off.
``FAIRSEQ_HYBRID_WITHOUT=loading,launch`` switches entries off by name: the quickest way to find out
whether one of them is behind a problem.
"""

from __future__ import annotations

import importlib
import os

from fairseq_hybrid import checkpoints, config
from fairseq_hybrid.checkpoints import position
from fairseq_hybrid.errors import fail
from fairseq_hybrid.fairseq_patches import bars, collectives, data, mismatch, printing, versions
from fairseq_hybrid.launch import launcher, worker

ENTRIES = {
    "versions": versions.install,  # say which fairseq and torch this was tested with
    "quiet": printing.install_quiet,  # hydra's and torch's deprecation warnings about fairseq
    "errors": printing.install_errors,  # what the user can mend: one line, no traceback
    "options": printing.install_options,  # a wrong option: one line instead of pages of usage
    "bars": bars.install,  # --log-format tqdm on one line
    "launch": launcher.install,  # worker start on CPU, torchrun, dying workers, one-line errors
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

NAMED = (  # modules with fairseq's decorators: --task, --arch, --criterion, --optimizer ... names
    *("tasks", "models", "criterions"),
    *("backends.sampled", "backends.averaging"),
    "backends.wavefront.backend",  # hybrid, model_parallel
    *("papers.asynchronous", "papers.ng_sgd", "papers.schedules"),
)


def register() -> None:
    """Everything; a second call does nothing."""
    if getattr(register, "done", False):
        return
    register.done = True
    patch_fairseq()
    config.add_flags()
    for name in NAMED:
        importlib.import_module(f"fairseq_hybrid.{name}")
    connect_layers()


def patch_fairseq() -> None:
    """Install every entry that is not switched off."""
    off = [name for name in os.environ.get(SWITCH, "").split(",") if name]
    unknown = sorted(set(off) - set(ENTRIES))
    if unknown:
        fail(f"{SWITCH}={','.join(unknown)} is not an entry: use {', '.join(ENTRIES)}")
    for name, install in ENTRIES.items():
        if name not in off:
            install()


def connect_layers() -> None:
    """Hand to lower layers what they call: the trainer, resolvers and validators."""
    from fairseq_hybrid import trainer
    from fairseq_hybrid.backends import registry
    from fairseq_hybrid.backends.wavefront.options import choose_head
    from fairseq_hybrid.criterions import sampled_softmax
    from fairseq_hybrid.generation import beam_search
    from fairseq_hybrid.optim import precision
    from fairseq_hybrid.papers import ng_sgd, schedules
    from fairseq_hybrid.planner import option

    registry.install()
    beam_search.install()
    worker.trainer = trainer.HybridTrainer
    config.RESOLVERS += [option.apply, choose_head]
    config.VALIDATORS += [
        registry.validate,
        schedules.validate_schedule,
        sampled_softmax.validate_sampled_softmax,
        ng_sgd.validate_ng_sgd,
        precision.refuse_unusable_precision,
    ]

"""fairseq's trainer with what several workers on any device need.

* a resume within an epoch goes on after the sentences that were seen (checkpoints/position.py)
* a save whose first file is the one that the next start reads (see checkpoints/saving.py)
* the check that all workers see the same gradient norm, which fairseq makes on GPUs only
* where a backend spreads the parameters (ownership.py): one gradient norm over all of them, weights
  brought up to date before validation and saving, optimizer state gathered for a checkpoint
* for models of ours, fairseq's Adam in one pass over the parameters instead of ten
  (optim/one_pass.py); what fairseq does with its own stays as it is, to the last digit
* where gradients have some rows only (optim/rows.py): an optimizer that touches no others
* where the optimizer looks at layers (optim/ng_sgd.py): the model it belongs to, and one state for
  all workers when it is saved
* where the workers do not wait for each other (asynchronous.py), or meet now and then
  (averaging.py): no statistics of all of them in between
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from typing import Any

import torch
from fairseq import utils
from fairseq.logging import metrics
from fairseq.trainer import Trainer

from fairseq_hybrid import checkpoints
from fairseq_hybrid.backends.asynchronous import AsyncParallel
from fairseq_hybrid.backends.averaging import AVERAGE, AveragingParallel
from fairseq_hybrid.backends.wavefront.backend import WavefrontParallel
from fairseq_hybrid.backends.wavefront.decoupled import DecoupledParallel
from fairseq_hybrid.backends.wavefront.report import Report
from fairseq_hybrid.checkpoints import position
from fairseq_hybrid.criterions.sampled_softmax import SampledSoftmaxCriterion
from fairseq_hybrid.optim import optimizer
from fairseq_hybrid.optim.optimizer import HybridOptimizer

logger = logging.getLogger(__name__)

SEED_STEP = 1_000_003
"""between the seeds of two workers: more than there are updates"""


class HybridTrainer(Trainer):
    """Bound in place of fairseq's ``Trainer`` when training starts."""

    _wrapper: HybridOptimizer | None = None
    _inner_only = False
    resumed: dict[str, Any] | None = None
    """the position in a checkpoint that was loaded, until there is an iterator for it"""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.data_parallel_world_size > 1 and self._grad_norm_buf is None and not self.tpu:
            self._grad_norm_buf = torch.zeros(
                self.data_parallel_world_size, dtype=torch.double, device=self.device
            )

    @property
    def spread(self) -> WavefrontParallel | None:
        """The wrapper of the model, if it spreads the parameters over the workers."""
        inner = getattr(self.model, "module", None)
        return inner if isinstance(inner, WavefrontParallel) else None

    @property
    def apart(self) -> AsyncParallel | None:
        """The wrapper of the model, if the workers do not wait for each other."""
        inner = getattr(self.model, "module", None)
        return inner if isinstance(inner, AsyncParallel) else None

    @property
    def averaging(self) -> AveragingParallel | None:
        """The wrapper of the model, if the workers' models are averaged now and then."""
        inner = getattr(self.model, "module", None)
        return inner if isinstance(inner, AveragingParallel) else None

    def _sync_stats(self) -> bool:
        if self.averaging is not None:
            return self.averaging.together
        return self.apart is None and super()._sync_stats()

    def train_step(self, samples: Any, raise_oom: bool = False) -> Any:
        if self.spread is None:
            with self._bytes_in_log(), self._average_after_it():
                return super().train_step(samples, raise_oom)
        if raise_oom:  # fairseq, inside an update: it repeats one after an overflow (--amp)
            return super().train_step(samples, raise_oom)
        if not hasattr(self, "report"):
            self.report = Report(self.spread, self.cfg.distributed_training.hybrid_trace)
        # The workers depend on each other within an update: none of them can skip its part.
        with self.report.update(self.get_num_updates()):
            return super().train_step(samples, raise_oom=True)

    @contextlib.contextmanager
    def _average_after_it(self):
        if self.averaging is not None:
            self.averaging.update = self.get_num_updates() + 1
        yield
        if self.averaging is not None:
            self.averaging.after_update(self.optimizer)

    @contextlib.contextmanager
    def _bytes_in_log(self):
        """What an update sent between the workers, where a backend counts it."""
        counter = getattr(self.model, "module", None)
        before = getattr(counter, "bytes_sent", None)
        yield
        if before is not None:
            sent = (counter.bytes_sent - before) * self.data_parallel_world_size
            with metrics.aggregate("train"):
                metrics.log_scalar("sent_mb", sent / 1e6, priority=2200, round=2)

    @property
    def optimizer(self) -> Any:
        inner = super().optimizer
        return inner if self._inner_only else self._wrapper

    def _build_optimizer(self) -> None:
        self._wrapper = None
        with self._inner_optimizer():
            super()._build_optimizer()
        parallel = self.spread or self.apart or self.averaging
        self._wrapper = optimizer.wrap(
            self._optimizer,
            parallel,
            one_pass_adam=is_ours(self._model),
            by_rows=isinstance(self.criterion, SampledSoftmaxCriterion),
            watched=(self.model, self.criterion),
        )
        if self.spread or self.apart:
            parallel.attach(self._wrapper, self.criterion)

    @contextlib.contextmanager
    def _inner_optimizer(self):
        """`optimizer` is fairseq's, whose name and state checkpoints hold."""
        before, self._inner_only = self._inner_only, True
        try:
            yield
        finally:
            self._inner_only = before

    def state_dict(self) -> dict[str, Any]:
        with self._inner_optimizer():
            return super().state_dict()

    def _aggregate_logging_outputs(self, *args: Any, **kwargs: Any) -> Any:
        """fairseq sums statistics before gradients: let those be on their way first."""
        begin = getattr(self.model, "begin_sums", None)
        if begin is not None and self.model.training:
            begin()
        return super()._aggregate_logging_outputs(*args, **kwargs)

    def _check_grad_norms(self, grad_norm: torch.Tensor) -> None:
        """NaN differs from itself: where the norm is the same by construction, say what it is."""
        if self.apart is not None or self.averaging is not None:
            return  # it is each worker's own
        if self.spread is None or torch.isfinite(grad_norm):
            super()._check_grad_norms(grad_norm)

    def _prepare_sample(self, sample: Any, is_dummy: bool = False) -> tuple[Any, bool]:
        sample, dummy = super()._prepare_sample(sample, is_dummy)
        if self.spread is None or not self.spread.head_on_last or not self.model.training:
            return sample, dummy
        # The last stage computes the loss of all batches. If its own is empty fairseq would not
        # count that loss: so its batch counts nothing, and the stage leaves its rows out.
        self.spread.empty = dummy
        sample = {**sample, "net_input": {**sample["net_input"], "target": sample["target"]}}
        if dummy:
            sample = {**sample, "ntokens": 0, "nsentences": 0, "target": sample["target"][:0]}
        return sample, False

    def _set_seed(self) -> None:
        """fairseq gives all workers one seed. Where they hold layers of one model that must not be:
        their dropouts would leave out the same units of the same words."""
        super()._set_seed()
        if self.spread is not None:
            rank = self.data_parallel_rank
            utils.set_torch_seed(self.cfg.common.seed + self.get_num_updates() + SEED_STEP * rank)

    def begin_valid_epoch(self, epoch: int) -> None:
        if self.spread is not None:
            self._drain()
            self.spread.ownership.refresh()
        if self.apart is not None:
            self.apart.drain()
        if self.averaging is not None:
            self.averaging.meet(self.optimizer, AVERAGE)
        super().begin_valid_epoch(epoch)

    def consolidate_optimizer(self) -> None:
        if self.averaging is not None and sys.exc_info()[1] is None:
            self.averaging.meet(self.optimizer, AVERAGE)
        if self.data_parallel_world_size > 1 and sys.exc_info()[1] is None:
            self.optimizer.follow_first(self.data_parallel_process_group)
        if self.spread is None and self.apart is None:
            return super().consolidate_optimizer()
        error = sys.exc_info()[1]
        if error is not None and (self.apart or not isinstance(error, FloatingPointError)):
            raise error  # of this worker alone: there is nobody to gather anything with
        if self.apart is not None:
            self._gathered_optim_state = None  # it is in the optimizer
            return self.apart.drain(self.optimizer)
        if error is None:
            self._drain()
        self.spread.ownership.refresh(*self._averages())
        if not self.cfg.checkpoint.no_save_optimizer_state:
            self._gathered_optim_state = self.spread.ownership.gather_state(self.optimizer)

    def _drain(self) -> None:
        """Apply the gradients that would come with the next update (decoupled.py)."""
        if not isinstance(self.spread, DecoupledParallel):
            return
        self.zero_grad()
        if not self.spread.drain():
            return
        norm = self.clip_grad_norm(self.cfg.optimization.clip_norm)
        if not torch.isfinite(norm):
            raise FloatingPointError("gradients are Nan/Inf")
        self.task.optimizer_step(self.optimizer, self.model, self.get_num_updates())
        self.zero_grad()

    def _averages(self) -> list[dict[str, torch.Tensor]]:
        """fairseq's exponential moving averages of the weights, if they are kept."""
        if not self.cfg.ema.store_ema:
            return []
        return [dict(self.ema.get_model().named_parameters()), self.ema.fp32_params]

    @property
    def last_checkpoint(self) -> str:
        cfg = self.cfg.checkpoint
        return os.path.join(cfg.save_dir, f"checkpoint_last{self.checkpoint_suffix}.pt")

    def save_checkpoint(self, filename: str, extra_state: dict[str, Any]) -> str | None:
        cfg = self.cfg.checkpoint
        resumable = "train_iterator" in extra_state  # not so in the dump after a crash
        if not resumable or cfg.no_last_checkpoints or cfg.write_checkpoints_asynchronously:
            return super().save_checkpoint(filename, extra_state)
        with checkpoints.last_first(self.last_checkpoint):
            return super().save_checkpoint(filename, extra_state)

    def load_checkpoint(self, filename: str, *args: Any, **kwargs: Any) -> dict[str, Any] | None:
        if self.should_save_checkpoint_on_current_rank and checkpoints.saving_is_ours():
            left = checkpoints.sweep(self.last_checkpoint)
            if left:
                logger.warning(left)
        if self.data_parallel_world_size > 1:
            torch.distributed.barrier(self.data_parallel_process_group)
        with position.completing(), self._inner_optimizer():
            extra_state = super().load_checkpoint(filename, *args, **kwargs)
        self.resumed = extra_state and extra_state.get("train_iterator")
        if self.spread is not None:
            self.spread.ownership.forget(self.optimizer)
        if self.apart is not None:
            self.apart.adopt(self.optimizer)
            torch.distributed.barrier(self.data_parallel_process_group)
        return extra_state

    def get_train_iterator(self, epoch: int, *args: Any, **kwargs: Any) -> Any:
        """With the batches of the job that is resumed, which go by the epoch it began in."""
        if self.resumed and epoch == self.resumed["epoch"]:
            epoch = self.resumed.get("made_for_epoch", epoch)
        self.resumed = None
        iterator = super().get_train_iterator(epoch, *args, **kwargs)
        kept = self.task.dataset_to_epoch_iter.get(iterator.dataset) is iterator
        position.tell(iterator, self.cfg, epoch, kept)
        return iterator


def is_ours(model: torch.nn.Module) -> bool:
    return type(model).__module__.partition(".")[0] == __name__.partition(".")[0]

"""fairseq's trainer, with the hooks of a backend (backends/base.py) in its updates, validation and
checkpoints, and an optimizer of ours around fairseq's (optim/optimizer.py).
Which backend it is the trainer does not know; under one of fairseq's own, or with one worker, the
hooks do nothing. Saving and resuming themselves: checkpoints/training.py.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import torch
from fairseq import utils
from fairseq.logging import metrics
from torch import Tensor

from fairseq_hybrid.backends import registry
from fairseq_hybrid.backends.base import Backend
from fairseq_hybrid.checkpoints.training import ResumingTrainer
from fairseq_hybrid.criterions.sampled_softmax import SampledSoftmaxCriterion
from fairseq_hybrid.optim.optimizer import HybridOptimizer, wrap


class HybridTrainer(ResumingTrainer):
    """Bound in place of fairseq's ``Trainer`` when training starts."""

    _backend: Backend | None = None
    _hybrid_optimizer: HybridOptimizer | None = None
    _shows_inner = False
    """whether `optimizer` is fairseq's, around which ours is"""
    _in_update = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.data_parallel_world_size > 1 and self._grad_norm_buf is None and not self.tpu:
            # for the check that all workers see one norm, which fairseq makes on GPUs only
            workers = self.data_parallel_world_size
            self._grad_norm_buf = torch.zeros(workers, dtype=torch.double, device=self.device)

    def reinitialize(self) -> None:
        super().reinitialize()
        self._backend = None

    @property
    def backend(self) -> Backend:
        if self._backend is None:
            self._backend = registry.backend_of(self.model)
        return self._backend

    @property
    def optimizer(self) -> Any:
        inner = super().optimizer  # which builds both
        return inner if self._shows_inner else self._hybrid_optimizer

    def _build_optimizer(self) -> None:
        with self.inner_optimizer():
            super()._build_optimizer()
        by_rows = isinstance(self._criterion, SampledSoftmaxCriterion)
        of = (self._model, self._criterion)
        self._hybrid_optimizer = wrap(self._optimizer, self.backend, by_rows=by_rows, of=of)
        self.backend.attach(self._hybrid_optimizer, self.criterion)

    @contextlib.contextmanager
    def inner_optimizer(self) -> Iterator[None]:
        """Let `optimizer` be fairseq's: checkpoints hold its class's name, and its state."""
        before, self._shows_inner = self._shows_inner, True
        try:
            yield
        finally:
            self._shows_inner = before

    def train_step(self, samples: Any, raise_oom: bool = False) -> Any:
        if self._in_update:  # fairseq repeats one from inside, after an overflow (--amp)
            return super().train_step(samples, raise_oom)
        self.backend.begin_update(self.get_num_updates() + 1)
        self._in_update = True
        try:
            result = super().train_step(samples, raise_oom or self.backend.needs_every_batch)
        finally:
            self._in_update = False
        with metrics.aggregate("train"):
            for place, (name, value) in enumerate(self.backend.metrics().items()):
                metrics.log_scalar(name, value, priority=2000 + place, round=2)
        return result

    def _set_seed(self) -> None:
        utils.set_torch_seed(self.backend.seed(self.cfg.common.seed + self.get_num_updates()))

    def _prepare_sample(self, sample: Any, is_dummy: bool = False) -> tuple[Any, bool]:
        sample, is_dummy = super()._prepare_sample(sample, is_dummy)
        if not self.model.training:
            return sample, is_dummy
        return self.backend.prepare_sample(sample, is_dummy)

    def _sync_stats(self) -> bool:
        return self.backend.sums_statistics and super()._sync_stats()

    def _aggregate_logging_outputs(self, *args: Any, **kwargs: Any) -> Any:
        """fairseq sums statistics before gradients: let those be on their way first."""
        if self.model.training:
            self.backend.after_backward()
        return super()._aggregate_logging_outputs(*args, **kwargs)

    def _check_grad_norms(self, grad_norm: Tensor) -> None:
        """NaN differs from itself: where the norm is made of all shares, it is said what it is."""
        if self.backend.synchronous and not (self.backend.sharded and not grad_norm.isfinite()):
            super()._check_grad_norms(grad_norm)

    def begin_valid_epoch(self, epoch: int) -> None:
        self._drain()
        self.backend.full_parameters(self.optimizer)
        super().begin_valid_epoch(epoch)

    def _drain(self) -> None:
        """Make a step of the gradients that would come with the next update."""
        self.zero_grad()
        if self.backend.drain():
            if not self.clip_grad_norm(self.cfg.optimization.clip_norm).isfinite():
                raise FloatingPointError("gradients are Nan/Inf")
            self.task.optimizer_step(self.optimizer, self.model, self.get_num_updates())
            self.zero_grad()

    def consolidate_optimizer(self) -> None:
        """Before a save, and before the dump that fairseq makes when an update fails."""
        error, backend = sys.exc_info()[1], self.backend
        alike = error is None or (isinstance(error, FloatingPointError) and backend.synchronous)
        if error is not None and not alike and backend.saves_together:
            raise error  # of this worker alone: there is nobody to gather anything with
        if error is None:
            self._drain()
        if alike:
            backend.full_parameters(self.optimizer, *self.averages)
        if error is None and self.data_parallel_world_size > 1:
            self.optimizer.follow_first(self.data_parallel_process_group)
        super().consolidate_optimizer()
        if alike and not self.cfg.checkpoint.no_save_optimizer_state:
            state = backend.optimizer_state(self.optimizer)
            self._gathered_optim_state = state or self._gathered_optim_state

    def state_dict(self) -> dict[str, Any]:
        with self.inner_optimizer():
            return super().state_dict()

    def load_checkpoint(self, filename: str, *args: Any, **kwargs: Any) -> dict[str, Any] | None:
        with self.inner_optimizer():
            extra_state = super().load_checkpoint(filename, *args, **kwargs)
        self.backend.load_optimizer_state(self.optimizer)
        return extra_state

"""What a ``--ddp-backend`` is: `Backend`, whose hooks the trainer (trainer.py) calls.

A backend wraps the model. As it stands here it is plain data parallelism: the gradients of an
update are averaged when all of them are there. A backend overrides what it does otherwise. In the
order in which an update calls them:

    begin_update      per update
    prepare_sample    per batch (--update-freq), then `forward`, and loss.backward()
    after_backward    per update; the workers' statistics are summed after it
    all_reduce_grads
    gradient_groups   by the optimizer (optim/optimizer.py), with which it scales and clips
    grad_norm
    apply_gradients
    after_step
    metrics

Before validation and a save: `drain`, `full_parameters`; for a save also `optimizer_state`. After a
checkpoint has been loaded: `load_optimizer_state`. docs/adding-a-backend.md has an example.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from fairseq_hybrid.comm.sums import ring_bytes
from fairseq_hybrid.comm.transport import flatten
from fairseq_hybrid.optim.optimizer import GradientGroup, Gradients, HybridOptimizer
from fairseq_hybrid.optim.rows import RowSharing

Sample = dict[str, Any]


class Backend(Gradients, RowSharing, nn.Module):
    """The model, and how the workers share the work on it."""

    # What holds for all updates

    synchronous = True
    """whether the workers make each update together, of the gradients of all: then they have one
    gradient norm, which the trainer compares, and gradients that are not finite on all"""
    needs_every_batch = False
    """whether no worker can leave out a batch for which its memory is too small"""
    saves_together = False
    """whether a save needs all workers: the optimizer's state is spread over them"""
    takes_row_gradients = False
    """whether gradients may be sparse: --criterion sampled_softmax, whose hooks are `RowSharing`"""
    scales_once = True

    def __init__(self, module: nn.Module, process_group: Any = None):
        super().__init__()
        self.module, self.process_group = module, process_group
        self.world = dist.get_world_size(process_group) if dist.is_initialized() else 1
        self.accumulating = False
        """whether gradients only add up now (--update-freq)"""
        self.criterion_params: list[nn.Parameter] = []
        """of the criterion's own: their gradients are means over the workers, always"""
        self._sent_before: float = 0

    bytes_sent: float = 0
    """by this worker, since the start"""

    def attach(self, optimizer: HybridOptimizer, criterion: nn.Module) -> None:
        """The optimizer has been built; again, when a checkpoint is loaded."""
        self.criterion_params = [p for p in criterion.parameters() if p.requires_grad]

    # An update

    def begin_update(self, number: int) -> None:
        """Update `number`, counted from 1, begins."""
        self._sent_before = self.bytes_sent

    def seed(self, seed: int) -> int:
        """What to seed this worker with, given the seed of an update."""
        return seed

    def prepare_sample(self, sample: Sample, dummy: bool) -> tuple[Sample, bool]:
        """A batch to train on; `dummy`: there is none left for this worker, and it counts
        nothing."""
        return sample, dummy

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Around all batches of an update but the last one."""
        before, self.accumulating = self.accumulating, True
        try:
            yield
        finally:  # fairseq goes on after a batch for which memory was too small
            self.accumulating = before

    @property
    def sums_statistics(self) -> bool:
        """Whether losses and sample sizes of this update are added up over the workers."""
        return self.synchronous

    def after_backward(self) -> None:
        """Begin what can overlap with summing the statistics; not called where they are not."""

    @torch.no_grad()
    def all_reduce_grads(self) -> None:
        """Leave the mean over the workers in place of this worker's gradients."""
        if not self.accumulating:
            self.average(self.dense_gradients())

    def gradient_groups(self, params: Sequence[nn.Parameter], factor: Any) -> list[GradientGroup]:
        if self.mean_gradients or not self.criterion_params:
            return super().gradient_groups(params, factor)
        others = {id(p) for p in self.criterion_params}
        groups = super().gradient_groups([p for p in params if id(p) not in others], factor)
        return [*groups, (with_gradient(self.criterion_params), factor)]

    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        """The parameters have been updated."""

    def perform_slowmo(self, optimizer: torch.optim.Optimizer, fp32_params: Any = None) -> None:
        """What fairseq calls that."""
        self.after_step(optimizer)

    def metrics(self) -> dict[str, float]:
        """For the log, of the update that has ended."""
        return {"sent_mb": (self.bytes_sent - self._sent_before) * self.world / 1e6}

    # Validation, saving, loading

    def drain(self) -> bool:
        """Finish what belongs to updates that were made. True: it has left gradients, to be applied
        in a step of their own."""
        return False

    def full_parameters(self, optimizer: HybridOptimizer, *averages: Mapping[str, Tensor]) -> None:
        """Make all parameters what they are after the last update, on every worker; and moving
        averages of them, which are kept by the same names."""

    def optimizer_state(self, optimizer: HybridOptimizer) -> dict[str, Any] | None:
        """The state dict that an ordinary optimizer would have, on the worker that saves; None:
        it is the optimizer's own. All workers call it, after `full_parameters`."""
        return None

    def load_optimizer_state(self, optimizer: HybridOptimizer) -> None:
        """Take a share of the state that all workers have loaded from a checkpoint, if there was
        one."""

    # For those that average

    def dense_gradients(self) -> list[Tensor]:
        """Of all parameters, in an order that is the same on all workers."""
        params = [p for p in self.module.parameters() if p.requires_grad]
        for p in params:
            if p.grad is None:  # this worker's batch did not use it, another's may have
                p.grad = torch.zeros_like(p)
            elif p.grad.is_sparse:
                p.grad = p.grad.to_dense()
        return [p.grad for p in params if p.grad is not None]

    @torch.no_grad()
    def average(self, tensors: list[Tensor]) -> None:
        """Make each of them the mean over the workers, by one all-reduce."""
        if not tensors:
            return
        flat = flatten(tensors)
        dist.all_reduce(flat, group=self.process_group)
        self.bytes_sent += ring_bytes(flat, self.world)
        flat /= self.world
        for tensor, mean in zip(tensors, torch.split(flat, [t.numel() for t in tensors])):
            tensor.copy_(mean.view_as(tensor))


class FairseqBackend(Backend):
    """One of fairseq's own, or one worker: there is nothing to be done for it."""

    scales_once = False

    def metrics(self) -> dict[str, float]:
        return {}


def with_gradient(params: Sequence[nn.Parameter]) -> list[nn.Parameter]:
    return [p for p in params if p.grad is not None]

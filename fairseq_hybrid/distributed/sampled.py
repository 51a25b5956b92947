"""``--ddp-backend sampled``: data parallelism in which only sampled rows travel.

Xiao et al. (2017), in our reading. All workers compute the softmax of an update over the same words
(criterions/sampled_softmax.py: the union of their target words, and the same random draw), so the
gradient of the output weights is one small dense block. The input embedding's rows are the union of
the words read. Of the hidden layers a random share of the rows can be sent per update
(``--share-hidden-fraction``); the gradients of the others are kept and sent later, so nothing is
lost, only late. Sums are ordinary dense all-reduces of one buffer.

The update is that of one worker on the joined batch with the same sample. What is kept back by
``--share-hidden-fraction`` is not in checkpoints: a resume starts without it.

    fairseq-train ... --criterion sampled_softmax --ddp-backend sampled --distributed-world-size 2
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from fairseq.distributed import LegacyDistributedDataParallel
from torch import Tensor, nn

from fairseq_hybrid.compat.messages import UserError
from fairseq_hybrid.distributed import row_sets
from fairseq_hybrid.distributed.backends import Accumulating, add_option, register_backend
from fairseq_hybrid.distributed.hybrid import ring_bytes
from fairseq_hybrid.distributed.lanes import flatten
from fairseq_hybrid.optim.rows import sparse_rows

add_option(
    "share_hidden_fraction", float, 1.0,
    "share of the rows of hidden layers whose gradients are sent in an update; the others are "
    "kept and sent later (--ddp-backend sampled)",
)  # fmt: skip


def check(cfg: Any) -> None:
    """Refuse what cannot work, before any worker starts."""
    dt = cfg.distributed_training
    criterion = getattr(cfg.criterion, "_name", None)
    if criterion != "sampled_softmax":
        raise UserError(
            f"--ddp-backend sampled does not go with --criterion {criterion}, which has no sample "
            "to share: use --criterion sampled_softmax, or --ddp-backend legacy_ddp"
        )
    if not 0 < dt.share_hidden_fraction <= 1:
        raise UserError(
            f"--share-hidden-fraction {dt.share_hidden_fraction} is not a share: give 0 < P <= 1"
        )


@register_backend(
    "sampled",
    help="data-parallel, gradients of sampled rows only (with --criterion sampled_softmax)",
    check=check,
)
def sampled(cfg, model, process_group, device):
    model = model.to(device)
    if not hasattr(model, "softmax_parameters"):  # a criterion with parameters of its own
        return LegacyDistributedDataParallel(model, process_group)
    return SampledDataParallel(model, process_group, hidden_fraction=cfg.share_hidden_fraction)


class SampledDataParallel(Accumulating, nn.Module):
    """The model, and how its gradients are summed over the workers."""

    takes_row_gradients = True

    def __init__(self, module: nn.Module, process_group: Any, *, hidden_fraction: float = 1.0):
        super().__init__()
        self.module, self.group = module, process_group
        self.world = dist.get_world_size(process_group)
        self.vocabulary = module.softmax_parameters()[0].size(0)
        self.hidden_fraction = hidden_fraction
        self.kept: dict[nn.Parameter, Tensor] = {}
        """gradients of hidden rows that have not been sent yet"""
        self.sampled_words: list[Tensor] = []
        self.bytes_sent = 0

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    def union_of_words(self, words: Tensor) -> Tensor:
        """The words that any worker has, in ascending order."""
        return self._union([(words, self.vocabulary)])[0]

    def note_sample(self, words_S: Tensor) -> None:
        """The words, the same on all workers, whose output weights get a gradient."""
        self.sampled_words.append(words_S)

    def _union(self, sets: list[tuple[Tensor, int]]) -> list[Tensor]:
        rows, size = row_sets.union(sets, self.group)
        self.bytes_sent += 2 * (self.world - 1) * size // self.world
        return rows

    @torch.no_grad()
    def all_reduce_grads(self) -> None:
        """The mean over the workers, in place of each worker's gradients."""
        if self.accumulating:
            return
        params = [p for p in self.module.parameters() if p.requires_grad]
        for p in params:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        sparse = [p for p in params if p.grad.is_sparse]
        dense = [p for p in params if not p.grad.is_sparse]
        rows = self._rows_to_send(sparse, dense)
        blocks = [self._block(p, rows.get(p)) for p in params]
        flat = flatten(blocks)
        dist.all_reduce(flat, group=self.group)
        self.bytes_sent += ring_bytes(flat, self.world)
        flat /= self.world
        for p, block in zip(params, flat.split([b.numel() for b in blocks])):
            if p in rows:
                p.grad = sparse_rows(rows[p], block.view(-1, *p.shape[1:]), p)
            else:
                p.grad = block.view_as(p)

    def _rows_to_send(
        self, sparse: list[nn.Parameter], dense: list[nn.Parameter]
    ) -> dict[nn.Parameter, Tensor]:
        """Rows of the parameters that are not sent as a whole; the same on all workers."""
        rows = {}
        noted, self.sampled_words = self.sampled_words, []
        if noted:  # nobody has to ask for these
            everyones = torch.cat(noted).unique()
            looked_up = {id(m.weight) for m in self.modules() if isinstance(m, nn.Embedding)}
            outputs = {id(p) for p in self.module.softmax_parameters()} - looked_up
            rows = {p: everyones for p in sparse if id(p) in outputs}
        unknown = [p for p in sparse if p not in rows]
        if unknown:
            sets = [(p.grad.coalesce().indices()[0], p.size(0)) for p in unknown]
            rows.update(zip(unknown, self._union(sets)))
        if self.hidden_fraction < 1:
            generator = torch.Generator().manual_seed(self.module.num_updates)
            for p in dense:
                if p.dim() > 1:
                    share = max(1, round(self.hidden_fraction * p.size(0)))
                    some = torch.randperm(p.size(0), generator=generator)[:share]
                    rows[p] = some.sort().values.to(p.device)
        return rows

    def _block(self, p: nn.Parameter, rows: Tensor | None) -> Tensor:
        """What is sent of a gradient."""
        if rows is None:
            return p.grad
        if p.grad.is_sparse:
            return row_sets.split_off(p.grad, rows)[0]
        kept = self.kept.setdefault(p, torch.zeros_like(p))
        kept += p.grad
        block = kept[rows]
        kept[rows] = 0
        return block

"""``--ddp-backend sampled``: data parallelism in which only sampled rows travel.

Xiao et al. (2017), in our reading. All workers compute the softmax of an update over the same words
(criterions/sampled_softmax.py: the union of their target words, and the same random draw), so the
gradient of the output weights is one small dense block. The input embedding's rows are the union of
the words read. Of the hidden layers a random share of the rows can be sent per update
(``--share-hidden-fraction``); the gradients of the others are kept and sent later, so nothing is
lost, only late. Sums are dense all-reduces. Those of hidden layers, one for each few of
them, run while the layers below go backward. The output weights' gradient, which nobody below waits
for, is computed after that (late_gradients.py), in parts, while what backward found last travels.
Which rows there are is settled before, with the words of the softmax.

    computing   softmax | backward, layer by layer ........ | output rows, part by part | optimizer
    travelling                     top layers | ... | lowest layer, rows read | parts of rows |

Between CPU workers of one machine nothing travels: they add in memory that they share (sums.py).

The update is that of one worker on the joined batch with the same sample. What is kept back by
``--share-hidden-fraction`` is not in checkpoints: a resume starts without it.

    fairseq-train ... --criterion sampled_softmax --ddp-backend sampled --distributed-world-size 2
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fairseq_hybrid.backends import row_sets
from fairseq_hybrid.backends.base import Backend
from fairseq_hybrid.backends.registry import register_backend
from fairseq_hybrid.comm import sums
from fairseq_hybrid.config import AUTO
from fairseq_hybrid.errors import UserError
from fairseq_hybrid.models.late_gradients import Product
from fairseq_hybrid.optim.rows import LateProduct, sparse_rows

BUCKET = 4 << 20
"""bytes of gradients that are worth a message of their own"""


def refuse_whole_softmax(cfg: Any) -> None:
    """Without a sample there is nothing to share."""
    criterion = getattr(cfg.criterion, "_name", None)
    if criterion != "sampled_softmax":
        raise UserError(
            f"--ddp-backend sampled does not go with --criterion {criterion}, which has no sample "
            "to share: use --criterion sampled_softmax, or --ddp-backend legacy_ddp"
        )


@register_backend(
    "sampled",
    help="data-parallel, gradients of sampled rows only (with --criterion sampled_softmax)",
    validate=refuse_whole_softmax,
)
def sampled(cfg, model, process_group, device):
    return SampledDataParallel(
        model.to(device),
        process_group,
        hidden_fraction=cfg.share_hidden_fraction,
        share_memory=cfg.sums_through == AUTO,
    )


class SampledDataParallel(Backend):
    """The model, and how its gradients are summed over the workers."""

    takes_row_gradients = True

    def __init__(
        self,
        module: nn.Module,
        process_group: Any,
        *,
        hidden_fraction: float = 1.0,
        share_memory: bool = True,
    ):
        super().__init__(module, process_group)
        self.vocabulary = module.softmax_parameters()[0].size(0)
        self.hidden_fraction = hidden_fraction
        self.kept: dict[nn.Parameter, Tensor] = {}
        """gradients of hidden rows that have not been sent yet"""
        self.sampled_words: list[Tensor] = []
        self.read: dict[nn.Parameter, Tensor] = {}
        """rows of embeddings that the batch of this worker looks up"""
        self.rows: dict[nn.Parameter, list[Tensor]] = {}
        """rows of embeddings that any worker's batches of this update look up"""
        self.late: LateRows | None = None
        """the output weights' gradient of this update's last batch"""
        self.begun: Begun | None = None
        self.unions_sent = 0
        trained = [p for p in module.parameters() if p.requires_grad]
        self.sums = sums.make_all_reduce(process_group, trained, share=share_memory)
        self.early = Early(self._dense(), self._sum) if hidden_fraction == 1 else None

    @property
    def bytes_sent(self) -> int:
        """From this worker to others, since the start."""
        return self.unions_sent + self.sums.bytes_sent

    def _dense(self) -> list[nn.Parameter]:
        """Parameters of hidden layers, those of the top ones first."""
        tables = {id(m.weight) for m in self.modules() if isinstance(m, nn.Embedding)}
        tables |= {id(p) for p in self.module.softmax_parameters()}
        trained = [p for p in self.module.parameters() if p.requires_grad]
        return [p for p in reversed(trained) if id(p) not in tables]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self.training and torch.is_grad_enabled():
            self.read = self._rows_read(kwargs)
            if self.early is not None:
                self.early.listens = not self.accumulating
        return super().forward(*args, **kwargs)

    def _rows_read(self, net_input: dict[str, Any]) -> dict[nn.Parameter, Tensor]:
        """But for padding, which has no gradient."""
        pads = {m.weight: m.padding_idx for m in self.modules() if isinstance(m, nn.Embedding)}
        rows = {p: r.flatten() for p, r in self.module.rows_read(**net_input).items()}
        return {p: r[r != pads.get(p, -1)] for p, r in rows.items() if p.requires_grad}

    def union_of_words(self, words: Tensor) -> Tensor:
        read, self.read = self.read, {}
        sets = [(words, self.vocabulary), *((rows, p.size(0)) for p, rows in read.items())]
        union, *looked_up = self._union(sets)
        for p, rows in zip(read, looked_up):
            self.rows.setdefault(p, []).append(rows)
        return union

    def note_sample(self, words_S: Tensor) -> None:
        self.sampled_words.append(words_S)

    def output_rows(self, weight: Tensor, words_S: Tensor) -> tuple[Tensor, LateProduct | None]:
        autocast = torch.is_autocast_enabled(weight.device.type)
        if self.early is None or self.accumulating or autocast or not weight.requires_grad:
            return super().output_rows(weight, words_S)
        product = Product()
        self.late = LateRows(weight, words_S, product)
        return weight.detach().index_select(0, words_S), product.set

    def _union(self, sets: list[tuple[Tensor, int]]) -> list[Tensor]:
        rows, size = row_sets.union(sets, self.process_group)
        self.unions_sent += 2 * (self.world - 1) * size // self.world
        return rows

    @torch.no_grad()
    def all_reduce_grads(self) -> None:
        """The mean over the workers, in place of each worker's gradients."""
        if self.accumulating:
            return
        self.after_backward()
        begun, self.begun = self.begun, None
        for params, result in begun.under_way:
            flat = result()
            for p in params:
                rows = begun.rows.get(p)
                shape = p.shape if rows is None else (rows.numel(), *p.shape[1:])
                size = math.prod(shape)
                block, flat = flat[:size].view(shape), flat[size:]
                p.grad = block if rows is None else sparse_rows(rows, block, p)
        self.sums.all_taken()

    @torch.no_grad()
    def after_backward(self) -> None:
        """Compute what is left, and send what is not on its way yet.

        Whoever has a message of his own to send between backward and `all_reduce_grads` calls this
        before, lest he wait for the gradients that are under way with nothing to do meanwhile.
        """
        if self.accumulating or self.begun is not None:
            return
        under_way = self.early.pop() if self.early is not None else []
        late, self.late = self.late, None
        if late is not None and late.weight.grad is not None:  # looked up, or of earlier batches
            late.weight.grad = late.weight.grad + late.gradient()
            late = None
        gone = {p for params, _ in under_way for p in params}
        if late is not None:
            gone.add(late.weight)
        params = [p for p in self.module.parameters() if p.requires_grad and p not in gone]
        for p in params:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        sparse = [p for p in params if p.grad.is_sparse]
        dense = [p for p in params if not p.grad.is_sparse]
        rows = self._rows_to_send(sparse, dense)
        if params:
            under_way.append((params, self._sum([self._block(p, rows.get(p)) for p in params])))
        if late is not None:
            under_way.append(([late.weight], late.begin(self.sums, 1 / self.world)))
            rows[late.weight] = late.words_S
        self.sums.all_begun()
        self.begun = Begun(under_way, rows)

    def _sum(self, blocks: list[Tensor]) -> Callable[[], Tensor]:
        """Begin to average over the workers; returns how to get the mean, blocks joined."""
        flat = self.sums.room(sum(block.numel() for block in blocks), blocks[0])
        for block, part in zip(blocks, flat.split([block.numel() for block in blocks])):
            torch.mul(block.reshape(-1), 1 / self.world, out=part)
        return self.sums.begin(flat)

    def _rows_to_send(
        self, sparse: list[nn.Parameter], dense: list[nn.Parameter]
    ) -> dict[nn.Parameter, Tensor]:
        """Rows of the parameters that are not sent as a whole; the same on all workers."""
        noted, self.sampled_words = self.sampled_words, []
        known, self.rows = self.rows, {}
        for p in self.module.softmax_parameters():
            if p is not None:  # it may be looked up as well
                known[p] = known.get(p, []) + noted
        rows = {p: torch.cat(known[p]).unique() for p in sparse}
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


class LateRows:
    """Gradient of the output weights' rows of a sample, not computed yet."""

    def __init__(self, weight: nn.Parameter, words_S: Tensor, product: Product):
        self.weight, self.words_S, self.product = weight, words_S, product

    def begin(self, adding: sums.AllReduce, scale: float) -> Callable[[], Tensor]:
        """Compute it, times `scale`, and begin to sum it; returns how to get the sum."""
        shape = self.words_S.numel(), self.weight.size(1)
        block_SD = adding.room(math.prod(shape), self.weight).view(shape)
        if self.product.factors is None:  # the update's loss did not come from here
            return adding.begin(block_SD.zero_())
        return adding.begin_in_parts(block_SD, functools.partial(self.product.rows, scale=scale))

    def gradient(self) -> Tensor:
        """All rows at once, of this worker."""
        block_SD = self.weight.new_zeros(self.words_S.numel(), self.weight.size(1))
        if self.product.factors is not None:
            self.product.rows(0, block_SD)
        return sparse_rows(self.words_S, block_SD, self.weight)


class Begun(NamedTuple):
    """Sums of an update's gradients."""

    under_way: list[tuple[list[nn.Parameter], Callable[[], Tensor]]]
    """parameters, and how to get their gradients, one after the other"""
    rows: dict[nn.Parameter, Tensor]
    """which rows are sent of those that are not sent as a whole"""


class Early:
    """Starts to sum gradients as soon as they are complete, in the same order on all workers.

    Parameters are put into buckets in the order in which backward reaches them; a bucket is sent
    when its gradients are there and the buckets before it are gone. What backward does not reach is
    left to who asks for the sums.
    """

    def __init__(
        self,
        params: Sequence[nn.Parameter],
        send: Callable[[list[Tensor]], Callable[[], Tensor]],
    ):
        self.send, self.listens = send, False
        self.buckets: list[list[nn.Parameter]] = []
        size = BUCKET
        for p in params:
            if size >= BUCKET:
                self.buckets.append([])
                size = 0
            self.buckets[-1].append(p)
            size += p.numel() * p.element_size()
            p.register_post_accumulate_grad_hook(self._arrived)
        self._forget()

    def _forget(self) -> None:
        self.missing = [set(bucket) for bucket in self.buckets]
        self.under_way: list[tuple[list[nn.Parameter], Callable[[], Tensor]]] = []

    def _arrived(self, p: nn.Parameter) -> None:
        if not self.listens:
            return
        for missing in self.missing:
            missing.discard(p)
        while len(self.under_way) < len(self.buckets) and not self.missing[len(self.under_way)]:
            bucket = self.buckets[len(self.under_way)]
            self.under_way.append((bucket, self.send([q.grad for q in bucket])))

    def pop(self) -> list[tuple[list[nn.Parameter], Callable[[], Tensor]]]:
        """Sums under way, no longer kept here: parameters, and how to get their gradients."""
        under_way = self.under_way
        self._forget()
        self.listens = False
        return under_way

"""Parameters that several stages use: gradients on their way to the owner, weights on theirs back.

By messages, or, between CPU workers of one machine, through memory that they share: what would pass
through a socket is then written once and read once, and the message only says that it is there.

    user    gradients → its own place in the memory | ready →            | weights, read there
    owner                                           adds them up there | step | weights → | ready →

No place is written while somebody reads it. A user writes gradients after it has read the weights
that the owner made of those before; an owner writes weights after it has heard of gradients that
the others computed with the weights before.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from fairseq_hybrid.backends import row_sets
from fairseq_hybrid.backends.wavefront.ownership import Group, Ownership
from fairseq_hybrid.comm.lanes import flatten
from fairseq_hybrid.comm.stopwatch import SEND, WAIT
from fairseq_hybrid.comm.sums import shared_memory
from fairseq_hybrid.optim.rows import sparse_rows

logger = logging.getLogger(__name__)

Take = Callable[[], Iterable[Tensor]]
"""gives the tensors to be sent, which their owner may not ask for"""


class Shared:
    """Parameters that several stages use, each of them owned by one.

    The gradients are complete when the reverse wavefront begins (`start_reduce`, `finish_reduce`
    after it), but for embeddings that are also output weights: those belong to stage 0, which adds
    its share at the end. The weights are needed when the forward wavefront ends (`start_refresh` at
    its beginning, `finish_refresh` after it).

    Of a parameter with row-sparse gradients (`--criterion sampled_softmax`) only rows travel: those
    in `rows`, which all workers know, and after the update those in `changed`.
    """

    def __init__(
        self,
        users: Mapping[nn.Parameter, set[int]],
        ownership: Ownership,
        watch: Any,
        *,
        share_memory: bool = True,
    ):
        self.ownership, self.group, self.watch = ownership, ownership.group, watch
        self.by_owner: dict[int, list[nn.Parameter]] = {}
        for p in ownership.names.values():
            if len(users[p]) > 1:
                self.by_owner.setdefault(ownership.owners[p], []).append(p)
        # Of its own: nccl runs the messages of a group one after the other.
        handle = dist.new_subgroups_by_enumeration(all_groups(self.group.ranks))[0]
        self.way = connect(self.group, handle, self.by_owner, share_memory)
        self.under_way: list[tuple[int, Transfer]] = []
        self.stale = False
        self.rows: dict[nn.Parameter, Tensor] = {}
        self.changed: dict[nn.Parameter, Tensor] = {}
        self.bytes_sent = 0

    def start_reduce(self, rows: Mapping[nn.Parameter, Tensor]) -> None:
        self.rows = {p: rows[p] for params in self.by_owner.values() for p in params if p in rows}
        with self.watch.span(SEND, "start summing shared gradients"):
            for owner, params in self.by_owner.items():
                shapes = [self._shape(p, self.rows) for p in params]
                take = functools.partial(map, self._take_gradient, params)
                sum_ = self.way.gather(owner, shapes, take)
                self.under_way.append((owner, sum_))
                if owner != self.group.stage:
                    self.bytes_sent += sum_.bytes

    @staticmethod
    def _shape(p: nn.Parameter, rows: Mapping[nn.Parameter, Tensor]) -> torch.Size:
        """Of what travels of it."""
        return torch.Size((rows[p].numel(), *p.shape[1:])) if p in rows else p.shape

    def _take_gradient(self, p: nn.Parameter) -> Tensor:
        """What is sent of it; what is left is the owner's alone."""
        grad, p.grad = p.grad, None
        if p in self.rows:
            if grad is None:
                return p.new_zeros(self.rows[p].numel(), *p.shape[1:])
            block, p.grad = row_sets.split_off(grad, self.rows[p])
            return block
        return torch.zeros_like(p) if grad is None else grad

    def finish_reduce(self) -> None:
        for owner, sum_ in self._arrived("shared gradients"):
            if owner != self.group.stage:
                continue
            for p, grad in self._pieces(sum_.flat, owner, self.rows):
                if p in self.rows:
                    grad = sparse_rows(self.rows[p], grad, p)
                if p.grad is not None:  # its own, or what came late
                    p.grad += grad
                else:
                    p.grad = grad.clone() if sum_.lent else grad
        self.stale = True

    def _pieces(self, flat: Tensor, owner: int, rows: Mapping[nn.Parameter, Tensor]):
        """The parameters of an owner and their parts of what was sent, whole or some rows."""
        for p in self.by_owner[owner]:
            shape = self._shape(p, rows)
            yield p, flat[: shape.numel()].view(shape)
            flat = flat[shape.numel() :]

    def tell_changed(self) -> None:
        """After an update's gradients are complete: which rows of them there are."""
        if not self.rows:
            return
        none = torch.empty(0, dtype=torch.long)
        sets = []
        for p in self.rows:
            mine = self.ownership.owners[p] == self.group.stage
            sets.append((p.grad.indices()[0].cpu() if mine else none, p.size(0)))
        unions, _ = row_sets.union(sets, self.group.meta)
        self.changed = {p: rows.to(p.device) for p, rows in zip(self.rows, unions)}

    def start_refresh(self) -> None:
        """Send the weights of the last update to where they are needed."""
        if not (self.stale and self.ownership.dirty):
            return
        changed = self.changed
        with self.watch.span(SEND, "start refreshing shared weights"):
            for owner, params in self.by_owner.items():
                new = [p.detach()[changed[p]] if p in changed else p.detach() for p in params]
                transfer = self.way.spread(owner, new)
                self.under_way.append((owner, transfer))
                if owner == self.group.stage:
                    self.bytes_sent += transfer.bytes * (len(self.group.ranks) - 1)
        self.stale = False

    @torch.no_grad()
    def finish_refresh(self) -> None:
        for owner, transfer in self._arrived("shared weights"):
            if owner != self.group.stage:
                for p, new in self._pieces(transfer.flat, owner, self.changed):
                    if p in self.changed:
                        p.index_copy_(0, self.changed[p], new)
                    else:
                        p.copy_(new)

    def _arrived(self, what: str):
        under_way, self.under_way = self.under_way, []
        for owner, transfer in under_way:
            with self.watch.span(WAIT, f"wait for {what}"):
                transfer.wait()
                yield owner, transfer


class Transfer:
    """Something on its way: after `wait` it is in `flat`, at the one or those who get it.

    `more` is to be added to it. `lent`: somebody else will write there in the next update.
    """

    def __init__(
        self, flat: Tensor, works: Sequence[Any], more: Sequence[Tensor] = (), lent: bool = False
    ):
        self.flat, self.works, self.more, self.lent = flat, works, more, lent

    @property
    def bytes(self) -> int:
        return self.flat.numel() * self.flat.element_size()

    def wait(self) -> None:
        for work in self.works:
            work.wait()
        for part in self.more:
            self.flat += part


class Messages:
    """gloo's own reduce sends more than twice the tensor and takes three times as long as sending
    it, so with gloo everyone just sends, and the owner gets the sum of what the others have."""

    def __init__(self, group: Group, handle: Any, like: Tensor):
        self.group, self.handle, self.like = group, handle, like

    def gather(self, owner: int, shapes: Sequence[torch.Size], take: Take) -> Transfer:
        """Sum of what the workers `take`; with gloo, of what all but the owner do."""
        rank, handle = self.group.ranks[owner], self.handle
        if dist.get_backend(handle) != "gloo":
            flat = flatten(list(take()))
            return Transfer(flat, [dist.reduce(flat, rank, group=handle, async_op=True)])
        if self.group.stage != owner:
            flat = flatten(list(take()))
            return Transfer(flat, [dist.isend(flat, rank, group=handle, tag=owner)])
        # What comes is added to its own gradients, which may not be complete yet.
        size = sum(map(torch.Size.numel, shapes))
        others = [r for r in self.group.ranks if r != rank]
        parts = [self.like.new_empty(size) for _ in others]
        works = [dist.irecv(part, r, group=handle, tag=owner) for part, r in zip(parts, others)]
        return Transfer(parts[0], works, parts[1:])

    def spread(self, owner: int, tensors: Sequence[Tensor]) -> Transfer:
        """What the owner has of them."""
        flat = flatten(list(tensors))
        rank = self.group.ranks[owner]
        return Transfer(flat, [dist.broadcast(flat, rank, group=self.handle, async_op=True)])


class Memory(Messages):
    """For each owner as many numbers as its parameters have, at each worker's place."""

    def __init__(self, *args: Any, places: Mapping[int, Tensor]):
        super().__init__(*args)
        self.places = places
        """owner → worker → what it writes; the owner writes the weights"""

    def gather(self, owner: int, shapes: Sequence[torch.Size], take: Take) -> Transfer:
        rank, stage, word = self.group.ranks[owner], self.group.stage, torch.zeros(1)
        size = sum(map(torch.Size.numel, shapes))
        places = self.places[owner][:, :size]
        if stage != owner:
            _write(places[stage], take())
            return Transfer(places[stage], [dist.isend(word, rank, group=self.handle, tag=owner)])
        others = [s for s in range(len(self.group.ranks)) if s != owner]
        works = [
            dist.irecv(torch.zeros(1), self.group.ranks[s], group=self.handle, tag=owner)
            for s in others
        ]
        first, *more = (places[s] for s in others)
        return Transfer(first, works, more, lent=True)

    def spread(self, owner: int, tensors: Sequence[Tensor]) -> Transfer:
        flat = self.places[owner][owner, : sum(t.numel() for t in tensors)]
        if owner == self.group.stage:
            _write(flat, tensors)
        rank, word = self.group.ranks[owner], torch.zeros(1)
        return Transfer(flat, [dist.broadcast(word, rank, group=self.handle, async_op=True)])


def _write(place: Tensor, tensors: Iterable[Tensor]) -> None:
    for tensor in tensors:
        place[: tensor.numel()].view(tensor.shape).copy_(tensor)
        place = place[tensor.numel() :]


def connect(
    group: Group, handle: Any, by_owner: Mapping[int, Sequence[nn.Parameter]], share: bool
) -> Messages | None:
    """How the parameters of each owner travel; memory where all workers of a group can have it."""
    params = [p for theirs in by_owner.values() for p in theirs]
    if not params:
        return None
    sizes = {owner: sum(p.numel() for p in theirs) for owner, theirs in by_owner.items()}
    workers, like = len(group.ranks), params[0].detach()
    memory = None
    if share and dist.get_backend(handle) == "gloo":
        memory = shared_memory(handle, sum(sizes.values()) * workers * like.element_size(), params)
    way = "by messages" if memory is None else "through memory that the workers share"
    logger.info(f"gradients and weights of attention and softmax go {way}")
    if memory is None:
        return Messages(group, handle, like)
    blocks = memory.view(like.dtype).split([size * workers for size in sizes.values()])
    places = {owner: block.view(workers, -1) for owner, block in zip(sizes, blocks)}
    return Memory(group, handle, like, places=places)


def all_groups(ranks: list[int]) -> list[list[int]]:
    """The groups of stages of the whole job, given one of them."""
    size = len(ranks)
    return [list(range(r, r + size)) for r in range(0, dist.get_world_size(), size)]

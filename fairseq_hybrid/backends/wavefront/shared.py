"""Parameters that several stages use: gradients on their way to the owners of slices, weights back.

Between machines by messages; between CPU workers of one machine through memory that they share:
what would pass through a socket is then written once and read once, and the message only says that
it is there.

    user    gradients → its own place in the memory | ready →            | weights, read there
    owner                                           adds them up there | step | weights → | ready →

No place is written while somebody reads it. A user writes gradients after it has read the weights
that the owner made of those before; an owner writes weights after it has heard of gradients that
the others computed with the weights before.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from fairseq_hybrid.backends import row_sets
from fairseq_hybrid.backends.wavefront.ownership import Group, Ownership
from fairseq_hybrid.backends.wavefront.schedule import REDUCE, REFRESH, Action
from fairseq_hybrid.comm.stopwatch import WAIT
from fairseq_hybrid.comm.sums import shared_memory
from fairseq_hybrid.comm.transport import Arrival, Transport, flatten
from fairseq_hybrid.optim.rows import sparse_rows

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Slice:
    """Rows of a parameter that one stage owns."""

    parameter: nn.Parameter
    rows: range


class Shared:
    """Parameters that several stages use.

    The actions `REDUCE` and `REFRESH` of a schedule are posted here. The sums are complete after
    `finish_reduce`, the weights after `finish_refresh`.

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
        dtype: torch.dtype | None = None,
    ):
        """`dtype`: what gradients are rounded to on their way."""
        self.ownership, self.group, self.watch = ownership, ownership.group, watch
        stages = range(len(self.group.ranks))
        shared = [p for p in ownership.names.values() if len(users[p]) > 1]
        self.slices = {
            owner: [Slice(p, ownership.rows[p][owner]) for p in shared if ownership.rows[p][owner]]
            for owner in stages
        }
        self.owners = tuple(owner for owner in stages if self.slices[owner])
        self.users = tuple(stages) if shared else ()
        # Of its own: nccl runs the messages of a group one after the other.
        handle = dist.new_subgroups_by_enumeration(all_groups(self.group.ranks))[0]
        self.channel = connect(self.group, handle, self.slices, share_memory, dtype)
        self.accumulating = False
        """whether gradients stay where they are (--update-freq)"""
        self.gradients: list[Arrival] = []
        self.weights: list[tuple[int, Arrival]] = []
        self.stale = False
        """whether an update has been made that the others have not heard of"""
        self.noted: dict[nn.Parameter, list[Tensor]] = {}
        """rows that get a gradient in this update, of parameters of which not all do"""
        self.rows: dict[nn.Parameter, Tensor] = {}
        self.changed: dict[nn.Parameter, Tensor] = {}

    @property
    def bytes_sent(self) -> int:
        return self.channel.bytes_sent

    def open(self, device: torch.device) -> None:
        self.channel.transport.open(device)

    @property
    def slice_bytes(self) -> dict[str, list[float]]:
        """That a link carries for each owner, if all rows travel."""
        numbers = [
            sum(self._size(piece, {}) for piece in pieces) for pieces in self.slices.values()
        ]
        gradient, weight = self.channel.bytes_of_a_number
        return {REDUCE: [n * gradient for n in numbers], REFRESH: [n * weight for n in numbers]}

    def post(self, actions: Sequence[Action]) -> None:
        """Both ends' part in transfers that stand together in a schedule."""
        mine = self.group.stage
        for action in actions:
            if action.op == REDUCE:
                if self.accumulating:
                    continue
                if action.stage == mine:
                    pieces = [self._gradient(piece) for piece in self.slices[action.peer]]
                    self.channel.send_gradients(pieces, action.peer)
                else:
                    size = sum(self._size(piece, self.rows) for piece in self.slices[mine])
                    self.gradients.append(self.channel.receive_gradients(size, action.stage))
            elif self.stale:
                if action.stage == mine:
                    pieces = [self._weights(piece) for piece in self.slices[mine]]
                    self.channel.send_weights(pieces, action.peer)
                else:
                    owner = action.stage
                    size = sum(self._size(piece, self.changed) for piece in self.slices[owner])
                    self.weights.append((owner, self.channel.receive_weights(size, owner)))

    # Gradients

    def note_rows(self, p: nn.Parameter, rows: Tensor) -> None:
        """The same on all workers: these rows get a gradient, the others do not."""
        self.noted.setdefault(p, []).append(rows)

    def begin_reduce(self) -> None:
        """Before the first `REDUCE` of an update."""
        if self.accumulating:
            return
        noted, self.noted = self.noted, {}
        known = {piece.parameter for pieces in self.slices.values() for piece in pieces}
        self.rows = {p: torch.cat(sets).unique() for p, sets in noted.items() if p in known}

    def _within(self, piece: Slice, rows: Tensor) -> slice:
        """The part of some ascending rows that lies in a slice."""
        ends = torch.tensor([piece.rows.start, piece.rows.stop], device=rows.device)
        return slice(*torch.searchsorted(rows, ends).tolist())

    def _size(self, piece: Slice, rows: Mapping[nn.Parameter, Tensor]) -> int:
        """Numbers that travel of a slice, whole or some rows."""
        p, count = piece.parameter, len(piece.rows)
        if p in rows:
            within = self._within(piece, rows[p])
            count = within.stop - within.start
        return count * (p.numel() // p.size(0))

    def _gradient(self, piece: Slice) -> Tensor:
        """This worker's, of the rows of a slice."""
        p = piece.parameter
        if p not in self.rows:
            rows = slice(piece.rows.start, piece.rows.stop)
            return torch.zeros_like(p[rows]) if p.grad is None else p.grad[rows]
        rows = self.rows[p][self._within(piece, self.rows[p])]
        if p.grad is None:
            return p.new_zeros(rows.numel(), *p.shape[1:])
        return row_sets.split_off(p.grad, rows)[0]

    def finish_reduce(self) -> None:
        """Leave the sums in the slices, and no gradient of what others own."""
        received = []
        for arrival in self.gradients:
            with self.watch.span(WAIT, "wait for shared gradients"):
                arrival.wait()
            received.append(arrival.into)
        place = 0
        for piece in self.slices[self.group.stage]:
            size = self._size(piece, self.rows)
            theirs = [flat[place : place + size] for flat in received]
            place += size
            self._add(piece, theirs)
        for pieces in self.slices.values():
            for piece in pieces:
                if self.ownership.mine.get(piece.parameter) is not piece.parameter:
                    piece.parameter.grad = None
        self.gradients.clear()
        self.channel.drain()
        self.stale = True

    def _add(self, piece: Slice, theirs: Sequence[Tensor]) -> None:
        p, target = piece.parameter, self.ownership.mine[piece.parameter]
        if p not in self.rows:
            total = self._gradient(piece)
            if target is not p:
                total = total.clone()
            for flat in theirs:
                total += flat.view_as(total)
            target.grad = total
            return
        rows = self.rows[p][self._within(piece, self.rows[p])]
        own, rest = None, None
        if p.grad is not None:
            own, rest = row_sets.split_off(p.grad, rows)
        total = p.new_zeros(rows.numel(), *p.shape[1:]) if own is None else own
        for flat in theirs:
            total += flat.view_as(total)
        target.grad = sparse_rows(rows - piece.rows.start, total, target)
        if target is p and rest is not None:  # rows that only this worker has
            target.grad = target.grad + rest

    # Weights

    def tell_changed(self) -> None:
        """After an update's gradients are complete: which rows of them there are."""
        if not self.rows:
            return
        none = torch.empty(0, dtype=torch.long)
        sets = []
        for p in self.rows:
            target = self.ownership.mine.get(p)
            mine = none
            if target is not None:
                first = self.ownership.rows[p][self.group.stage].start
                mine = target.grad.indices()[0].cpu() + first
            sets.append((mine, p.size(0)))
        unions, _ = row_sets.union(sets, self.group.meta)
        self.changed = {p: rows.to(p.device) for p, rows in zip(self.rows, unions)}

    def begin_refresh(self) -> None:
        """Before the `REFRESH`es of an update: are there new weights?"""
        self.stale = self.stale and self.ownership.dirty
        self.channel.begin_weights()

    def _weights(self, piece: Slice) -> Tensor:
        p = piece.parameter.detach()
        if piece.parameter not in self.changed:
            return p[piece.rows.start : piece.rows.stop]
        changed = self.changed[piece.parameter]
        return p[changed[self._within(piece, changed)]]

    @torch.no_grad()
    def finish_refresh(self) -> None:
        for owner, arrival in self.weights:
            with self.watch.span(WAIT, "wait for shared weights"):
                arrival.wait()
            place = 0
            for piece in self.slices[owner]:
                size = self._size(piece, self.changed)
                self._put(piece, arrival.into[place : place + size])
                place += size
        self.weights.clear()
        self.stale = False

    def _put(self, piece: Slice, new: Tensor) -> None:
        p = piece.parameter
        if p in self.changed:
            rows = self.changed[p][self._within(piece, self.changed[p])]
            p.index_copy_(0, rows, new.view(-1, *p.shape[1:]))
        else:
            mine = p[piece.rows.start : piece.rows.stop]
            mine.copy_(new.view_as(mine))


class Messages:
    """Slices as messages, gradients rounded to `transport.dtype`; they are added up as `like`."""

    def __init__(self, transport: Transport, like: Tensor):
        self.transport, self.like, self.bytes_sent = transport, like, 0

    @property
    def bytes_of_a_number(self) -> tuple[int, int]:
        """That a link carries: of a gradient, of a weight."""
        return self.transport.message_dtype(self.like).itemsize, self.like.element_size()

    def send_gradients(self, pieces: Sequence[Tensor], owner: int) -> None:
        flat = flatten(list(pieces))
        self.bytes_sent += flat.numel() * self.transport.message_dtype(flat).itemsize
        self.transport.exchange([(flat, None, owner)])

    def receive_gradients(self, size: int, user: int) -> Arrival:
        return self._receive(size, user)

    def send_weights(self, pieces: Sequence[Tensor], user: int) -> None:
        flat = flatten(list(pieces))
        self.bytes_sent += flat.numel() * flat.element_size()
        self.transport.exchange([(flat, None, user)], exact=True)

    def receive_weights(self, size: int, owner: int) -> Arrival:
        return self._receive(size, owner, exact=True)

    def _receive(self, size: int, peer: int, exact: bool = False) -> Arrival:
        into = self.like.new_empty(size)
        (arrival,) = self.transport.exchange([(None, into, peer)], exact=exact)
        assert arrival is not None
        return arrival

    def begin_weights(self) -> None:
        """Of a new update."""

    def drain(self) -> None:
        self.transport.drain()


class Memory(Messages):
    """For each worker as many numbers as there are in all slices, and once more for the weights;
    the message is a word."""

    def __init__(
        self, transport: Transport, like: Tensor, memory: Tensor, first: Mapping[int, int], me: int
    ):
        """`first`: where the slices of each owner begin."""
        super().__init__(transport, like)
        workers = len(transport.ranks)
        self.gradients, self.first, self.me = memory.view(workers + 1, -1), first, me
        self.weights = self.gradients[workers]
        self.written = False

    bytes_of_a_number = (0, 0)

    def send_gradients(self, pieces: Sequence[Tensor], owner: int) -> None:
        self.bytes_sent += _write(self.gradients[self.me, self.first[owner] :], pieces)
        self._say(owner)

    def receive_gradients(self, size: int, user: int) -> Arrival:
        return self._hear(self.gradients[user, self.first[self.me] :][:size], user)

    def begin_weights(self) -> None:
        self.written = False

    def send_weights(self, pieces: Sequence[Tensor], user: int) -> None:
        place = self.weights[self.first[self.me] :]
        size = sum(piece.numel() for piece in pieces)
        if not self.written:
            _write(place, pieces)
            self.written = True
        self.bytes_sent += size * self.like.element_size()
        self._say(user)

    def receive_weights(self, size: int, owner: int) -> Arrival:
        return self._hear(self.weights[self.first[owner] :][:size], owner)

    def _say(self, peer: int) -> None:
        self.transport.exchange([(torch.zeros(1), None, peer)], exact=True)

    def _hear(self, place: Tensor, peer: int) -> Arrival:
        (word,) = self.transport.exchange([(None, torch.zeros(1), peer)], exact=True)
        assert word is not None
        return Arrival(word, place, place)


def _write(place: Tensor, tensors: Sequence[Tensor]) -> int:
    """Returns the bytes."""
    size = 0
    for tensor in tensors:
        place[: tensor.numel()].view(tensor.shape).copy_(tensor)
        place = place[tensor.numel() :]
        size += tensor.numel() * tensor.element_size()
    return size


def connect(
    group: Group,
    handle: Any,
    slices: Mapping[int, Sequence[Slice]],
    share: bool,
    dtype: torch.dtype | None,
) -> Messages:
    """How slices travel: through memory where all workers of a group can have it."""
    params = list({piece.parameter: None for pieces in slices.values() for piece in pieces})
    transport = Transport(group.ranks, handle, dtype)
    if not params:
        return Messages(transport, torch.zeros(0))
    first, size = {}, 0
    for owner, pieces in slices.items():
        first[owner] = size
        size += sum(len(s.rows) * (s.parameter.numel() // s.parameter.size(0)) for s in pieces)
    like, workers, memory = params[0].detach(), len(group.ranks), None
    if share:
        memory = shared_memory(handle, size * (workers + 1) * like.element_size(), params)
    way = "by messages" if memory is None else "through memory that the workers share"
    logger.info(f"gradients and weights of attention and softmax go {way}")
    if memory is None:
        return Messages(transport, like)
    return Memory(transport, like, memory.view(like.dtype), first, group.stage)


def can_share(group: Group, params: Sequence[Tensor]) -> bool:
    """Whether all workers of a group can have the same memory."""
    gloo = dist.get_backend(group.meta) == dist.get_backend(group.handle) == "gloo"
    return gloo and shared_memory(group.meta, 1, params) is not None


def all_groups(ranks: list[int]) -> list[list[int]]:
    """The groups of stages of the whole job, given one of them."""
    size = len(ranks)
    return [list(range(r, r + size)) for r in range(0, dist.get_world_size(), size)]

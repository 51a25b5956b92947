"""Messages between the workers of a group, on a stand-in for a process group of either kind.

It has both ends in one process, matches the messages of two workers in the order in which they were
posted, and moves a message when its receiver waits for it, so that nothing is right by haste. That
gloo does the same is shown by test_gradients.py.
"""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch

from fairseq_hybrid.comm import transport
from fairseq_hybrid.comm.transport import Transport

RANKS = [4, 7, 5]
"""global ranks of the group's workers"""


class Wire:
    """What stands for torch.distributed, at `rank` for the moment."""

    def __init__(self, backend: str):
        self.backend, self.rank = backend, RANKS[0]
        self.posted: dict = defaultdict(lambda: ([], []))
        """(source, target) → what is sent, what is to be received"""
        self.batches: list[int] = []
        self.waits = 0

    def get_backend(self, group) -> str:
        return self.backend

    def isend(self, tensor, peer, group=None):
        assert tensor.is_contiguous()
        self.posted[self.rank, peer][0].append(tensor)
        return SimpleNamespace(wait=self._sent)

    def _sent(self) -> None:
        self.waits += 1

    def irecv(self, tensor, peer, group=None):
        assert tensor.is_contiguous()
        place = self.posted[peer, self.rank]
        place[1].append(tensor)
        number = len(place[1]) - 1
        return SimpleNamespace(wait=lambda: self._land(place, number))

    def _land(self, place, number: int) -> None:
        sent, into = place[0][number], place[1][number]
        assert sent.dtype == into.dtype
        assert sent.shape == into.shape
        into.copy_(sent)

    def P2POp(self, op, tensor, peer, group):
        return SimpleNamespace(op=op, tensor=tensor, peer=peer, group=group)

    def batch_isend_irecv(self, operations) -> list:
        """nccl's: one work for all."""
        self.batches.append(len(operations))
        works = [op.op(op.tensor, op.peer) for op in operations]
        return [SimpleNamespace(wait=lambda: [work.wait() for work in works])]


@pytest.fixture(params=["gloo", "nccl"])
def wire(request, monkeypatch) -> Wire:
    found = Wire(request.param)
    # Bound once, as Transport asks which of them it is.
    found.isend, found.irecv = found.isend, found.irecv
    monkeypatch.setattr(transport, "dist", found)
    return found


def pair(wire: Wire, dtype=None):
    """What worker 0 and worker 1 exchange with."""

    def at(place: int):
        worker = Transport(RANKS, "group", dtype)

        def exchange(messages, **how):
            wire.rank = RANKS[place]
            return worker.exchange(messages, **how)

        return worker, exchange

    return at(0), at(1)


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def test_messages_match_in_the_order_they_were_posted(wire):
    """Of any shape, without tags; whichever is awaited first."""
    (one, send), (other, receive) = pair(wire)
    texts = [numbers(n) for n in (5, 3, 3, 8)]
    into = [torch.zeros_like(text) for text in texts]
    assert send([(text, None, 1) for text in texts[:3]]) == [None] * 3
    send([(texts[3], None, 1)])
    arrivals = receive([(None, place, 0) for place in into])
    for arrival in reversed(arrivals):
        arrival.wait()
    for place, text in zip(into, texts):
        assert torch.equal(place, text)
    one.drain()
    assert not one.under_way
    assert (one.bytes_sent, other.bytes_sent) == (4 * 19, 0)


def test_both_ways_at_once(wire):
    (_, here), (_, there) = pair(wire)
    a, b = numbers(4), numbers(6)
    got_a, got_b = torch.zeros(4), torch.zeros(6)
    mine = here([(a, None, 1), (None, got_b, 1)])
    theirs = there([(None, got_a, 0), (b, None, 0)])
    assert [arrival is None for arrival in mine] == [True, False]
    assert [arrival is None for arrival in theirs] == [False, True]
    mine[1].wait()
    theirs[0].wait()
    assert torch.equal(got_a, a)
    assert torch.equal(got_b, b)
    assert wire.batches == ([2, 2] if wire.backend == "nccl" else [])


def test_an_empty_message_is_none(wire):
    """There is nothing to match then, at either end."""
    (one, send), (_, receive) = pair(wire)
    nothing, text, into = torch.zeros(0, 3), numbers(2), torch.zeros(2)
    send([(nothing, None, 1), (text, None, 1)])
    empty, arrival = receive([(None, torch.zeros(0, 3), 0), (None, into, 0)])
    empty.wait()
    arrival.wait()
    assert torch.equal(into, text)
    assert send([(nothing, None, 1)]) == [None]
    assert one.bytes_sent == 8
    assert wire.batches == ([1, 1] if wire.backend == "nccl" else [])


def test_what_does_not_lie_in_one_piece(wire):
    """Neither where it is sent nor where it lands."""
    (_, send), (_, receive) = pair(wire)
    text, into = numbers(6, 4), torch.zeros(4, 6)
    send([(text[:, :2], None, 1)])
    (arrival,) = receive([(None, into.T[:, 1:3], 0)])
    assert not into.any()
    arrival.wait()
    assert torch.equal(into.T[:, 1:3], text[:, :2])
    assert not into[0].any()
    assert not into[3].any()


def test_rounding(wire):
    """Floating-point messages have half the size, others and exact ones stay as they are."""
    (one, send), (_, receive) = pair(wire, torch.bfloat16)
    text, words = numbers(50), torch.arange(50)
    into, exact, more = torch.zeros(50), torch.zeros(50), torch.zeros(50, dtype=torch.long)
    send([(text, None, 1), (words, None, 1)])
    send([(text, None, 1)], exact=True)
    arrivals = receive([(None, into, 0), (None, more, 0)])
    arrivals += receive([(None, exact, 0)], exact=True)
    for arrival in arrivals:
        arrival.wait()
    assert torch.equal(into, text.bfloat16().float())
    assert not torch.equal(into, text)
    assert torch.equal(exact, text)
    assert torch.equal(more, words)
    assert one.bytes_sent == 50 * (2 + 8 + 4)


def test_a_drain_waits_for_what_was_sent(wire):
    (one, send), _ = pair(wire)
    send([(numbers(3), None, 1), (numbers(4), None, 2)])
    assert wire.waits == 0
    assert len(one.under_way) == 2
    one.drain()
    assert wire.waits >= 2
    one.drain()

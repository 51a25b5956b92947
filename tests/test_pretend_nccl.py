"""The pretend nccl: right programs run, each kind of wrong one is refused (pretend_nccl.py)."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from workers import WorkerError, run_workers


def run(function, world: int = 2, slots: int = 1, *args, kill: bool = True) -> list:
    group = {"PROCESS_GROUP": "pretend_nccl", "PRETEND_NCCL_SLOTS": str(slots)}
    return run_workers(function, world, *args, timeout=60, kill=kill, **group)


def refusal(function, world: int = 2, slots: int = 1) -> str:
    with pytest.raises(WorkerError) as caught:
        run(function, world, slots, kill=False)
    assert not caught.value.hung
    errors = "\n".join(caught.value.errors.values())
    assert "WrongProgramError" in errors
    return errors


def numbers(*shape: int) -> torch.Tensor:
    """Other ones on every rank."""
    return torch.arange(1.0, 1 + torch.Size(shape).numel()).view(shape) + 10 * dist.get_rank()


# Right programs


def collectives() -> dict:
    rank, world = dist.get_rank(), dist.get_world_size()
    found = {"backend": dist.get_backend()}

    def keep(name: str, *tensors: torch.Tensor) -> None:
        found[name] = torch.cat([tensor.flatten().clone() for tensor in tensors]).tolist()

    for op in (dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.MAX):
        x = numbers(2)
        dist.all_reduce(x, op)
        keep(f"all_reduce {op.name}", x)
    x = numbers(2)
    work = dist.all_reduce(x, async_op=True)
    assert x.isnan().all()
    work.wait()
    keep("asynchronous", x)
    dist.broadcast(x := numbers(2), 1)
    keep("broadcast", x)
    dist.reduce(x := numbers(2), 1)
    found["reduce"] = x.tolist() if rank == 1 else []
    parts = [torch.empty(2) for _ in range(world)]
    dist.all_gather(parts, numbers(2))
    keep("all_gather", *parts)
    dist.reduce_scatter(x := torch.empty(2), [numbers(2) + i for i in range(world)])
    keep("reduce_scatter", x)
    dist.all_to_all(parts, [numbers(2) + 100 * i for i in range(world)])
    keep("all_to_all", *parts)
    dist.barrier()
    objects = [None] * world
    dist.all_gather_object(objects, {"rank": rank})
    found["objects"] = [each["rank"] for each in objects]
    scale = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1, bias=False))
    scale(numbers(1, 2)).sum().backward()
    keep("data parallel", scale.module.weight.grad)
    return found


def test_collectives():
    for rank, found in enumerate(run(collectives)):
        assert found == {
            "backend": "pretend_nccl",
            "all_reduce SUM": [12, 14],
            "all_reduce AVG": [6, 7],
            "all_reduce MAX": [11, 12],
            "asynchronous": [12, 14],
            "broadcast": [11, 12],
            "reduce": [12, 14] if rank == 1 else [],
            "all_gather": [1, 2, 11, 12],
            "reduce_scatter": [12 + 2 * rank, 14 + 2 * rank],
            "all_to_all": [1 + 100 * rank, 2 + 100 * rank, 11 + 100 * rank, 12 + 100 * rank],
            "objects": [0, 1],
            "data parallel": [6, 7],
        }


def messages() -> list:
    """Between neighbours, one by one and in batches, which are ends of one ring."""
    rank, world = dist.get_rank(), dist.get_world_size()
    following, before = (rank + 1) % world, (rank - 1) % world
    pairs = [dist.new_group(sorted((one, (one + 1) % world))) for one in range(world)]
    x, y, z = numbers(3), torch.empty(3), torch.empty(2, dtype=torch.bfloat16)
    for ready in range(world):  # communicators of their own, made in one order
        if ready in (rank, before):
            dist.all_reduce(torch.ones(1), group=pairs[ready])
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, x, following),
            dist.P2POp(dist.irecv, y, before),
            dist.P2POp(dist.irecv, z, before),
            dist.P2POp(dist.isend, torch.full((2,), rank, dtype=torch.bfloat16), following),
        ]
    )
    assert y.isnan().all()
    [work.wait() for work in works]
    if rank % 2:
        dist.send(x, following, group=pairs[rank])
        dist.recv(x, before, group=pairs[before])
    else:
        dist.recv(x2 := torch.empty(3), before, group=pairs[before])
        dist.send(x, following, group=pairs[rank])
        x = x2
    return [y.tolist(), z.tolist(), x.tolist()]


@pytest.mark.parametrize("world", [4])
def test_messages(world):
    for rank, found in enumerate(run(messages, world)):
        before = (rank - 1) % world
        sent = [10 * before + i for i in (1, 2, 3)]
        assert found == [sent, [before] * 2, sent]


def receives_posted_early() -> list:
    """Each rank waits for the other's message, and sends on another communicator meanwhile."""
    rank = dist.get_rank()
    lanes = [dist.new_group() for _ in range(2)]
    for lane in lanes:
        dist.barrier(lane)
    work = dist.irecv(x := torch.empty(2), 1 - rank, group=lanes[1 - rank])
    sent = dist.isend(numbers(2), 1 - rank, group=lanes[rank])
    work.wait()
    sent.wait()
    return x.tolist()


@pytest.mark.parametrize("slots", [2, 8])
def test_receives_may_be_posted_early_where_there_are_slots(slots):
    assert run(receives_posted_early, 2, slots) == [[11, 12], [1, 2]]


# Wrong programs


def test_with_one_slot_receives_posted_early_are_refused_with_a_picture():
    text = refusal(receives_posted_early)
    assert "nothing moves any more (PRETEND_NCCL_SLOTS=1)" in text
    for rank, other in ((0, 1), (1, 0)):
        receive = f"receive of 2 float32 from rank {other}, waits for rank {other}, which has no"
        assert f"communicator {2 - rank} of ranks [0, 1]: {receive} slot for it" in text
        send = f"send of 2 float32 to rank {other}, waits for a slot, taken by communicator"
        assert f"communicator {rank + 1} of ranks [0, 1]: {send} {2 - rank}" in text


def both_send() -> None:
    dist.send(numbers(3), 1 - dist.get_rank())


def both_receive() -> None:
    dist.recv(numbers(3), 1 - dist.get_rank())


def other_size() -> None:
    send_or_receive(torch.ones(3), torch.ones(4))


def other_type() -> None:
    send_or_receive(torch.ones(3), torch.ones(3).double())


def send_or_receive(sent: torch.Tensor, received: torch.Tensor) -> None:
    if dist.get_rank():
        dist.recv(received, 0)
    else:
        dist.send(sent, 1)


def other_collective() -> None:
    if dist.get_rank():
        dist.all_reduce(numbers(3))
    else:
        dist.broadcast(numbers(3), 0)


def other_root() -> None:
    dist.broadcast(numbers(3), dist.get_rank())


def other_reduction() -> None:
    dist.all_reduce(numbers(3), dist.ReduceOp.MAX if dist.get_rank() else dist.ReduceOp.SUM)


def sum_of_other_size() -> None:
    dist.all_reduce(numbers(3 + dist.get_rank()))


def message_against_collective() -> None:
    if dist.get_rank():
        dist.all_reduce(numbers(3))
    else:
        dist.send(numbers(3), 1)


def other_order() -> None:
    """What tags would keep apart."""
    big, small = torch.ones(4), torch.ones(2)
    way = dist.irecv if dist.get_rank() else dist.isend
    works = [way(t, 1 - dist.get_rank()) for t in ((small, big), (big, small))[dist.get_rank()]]
    [work.wait() for work in works]


def tag() -> None:
    send_with(tag=3)


def send_with(**how) -> None:
    if dist.get_rank():
        dist.recv(numbers(3), 0, **how)
    else:
        dist.send(numbers(3), 1, **how)


def any_source() -> None:
    dist.irecv(numbers(3))


def unknown_type() -> None:
    dist.all_reduce(torch.ones(3, dtype=torch.int16))


def not_contiguous() -> None:
    send_or_receive(torch.ones(3, 2).t(), torch.ones(2, 3))


def unknown_reduction() -> None:
    dist.all_reduce(torch.ones(3, dtype=torch.int64), dist.ReduceOp.BOR)


def changed_while_it_is_sent() -> None:
    x = numbers(3)
    if dist.get_rank():
        dist.recv(x, 0)
    else:
        work = dist.isend(x, 1)
        x += 1
        work.wait()


WRONG = {
    both_send: "rank {0} is at send of 3 float32 to rank {1}, rank {1} at send of 3 float32 to",
    both_receive: "rank {0} is at receive of 3 float32 from rank {1}, rank {1} at receive of",
    other_size: "at send of 3 float32 to rank 1, rank 1 at receive of 4 float32 from rank 0",
    other_type: "at send of 3 float32 to rank 1, rank 1 at receive of 3 float64 from rank 0",
    other_collective: "rank {0} is at",
    other_root: "rank {0} is at broadcast {0} float32 3, rank {1} at broadcast {1} float32 3",
    other_reduction: "which do not fit",
    sum_of_other_size: "which do not fit",
    message_against_collective: "which do not fit",
    other_order: "at send of 2 float32 to rank 1, rank 1 at receive of 4 float32 from rank 0",
    tag: "with tag 3: nccl has no tags",
    any_source: "receive from any rank: nccl has to know from which",
    unknown_type: "all_reduce of int16, which nccl does not know",
    not_contiguous: "send of a tensor that is not contiguous",
    unknown_reduction: "nccl does not reduce by BOR",
    changed_while_it_is_sent: "rank 0 changed what it sends while it was under way",
}


@pytest.mark.parametrize("program", WRONG, ids=lambda program: program.__name__)
def test_is_refused(program):
    text = refusal(program)
    assert any(WRONG[program].format(*ranks) in text for ranks in ((0, 1), (1, 0)))
    assert "communicator 0" in text


def one_end_only() -> None:
    """Nobody waits for it, so it shows at the end."""
    lane = dist.new_group()
    dist.barrier(lane)
    if dist.get_rank() == 0:
        dist.isend(numbers(3), 1, group=lane)


def test_a_message_with_one_end_only_is_refused():
    text = refusal(one_end_only)
    assert "send of 3 float32 to rank 1, waits for rank 1, which has put nothing there" in text


def a_ring_of_sends() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    dist.barrier()
    dist.send(numbers(3), (rank + 1) % world)
    dist.recv(numbers(3), (rank - 1) % world)


def test_a_ring_of_sends_is_refused_with_a_picture():
    text = refusal(a_ring_of_sends, 3, slots=8)
    for rank, other in ((0, 1), (1, 2), (2, 0)):
        assert f"rank {rank}, communicator 0 of ranks [0, 1, 2]: send of 3 float32 to" in text
        assert f"waits for rank {other}, which is at another message" in text


def communicators_in_other_order() -> None:
    """Each is made by its first operation, at which the host waits for all."""
    groups = [dist.new_group() for _ in range(2)]
    for group in groups[:: 1 if dist.get_rank() else -1]:
        dist.all_reduce(numbers(3), group=group, async_op=True)


def test_communicators_made_in_other_orders_are_refused_with_a_picture():
    text = refusal(communicators_in_other_order, slots=8)
    assert "rank 0, communicator 2 of ranks [0, 1]: open, waits for rank 1, which has put" in text
    assert "rank 1, communicator 1 of ranks [0, 1]: open, waits for rank 0, which has put" in text


def host_waits_elsewhere() -> None:
    """A host of one rank waits for another group, which the other rank's never comes to."""
    meta = dist.new_group(backend="gloo")
    if dist.get_rank():
        dist.barrier(meta)
    dist.all_reduce(numbers(3))
    dist.barrier(meta)


def test_a_host_that_waits_for_another_group_is_found():
    text = refusal(host_waits_elsewhere)
    assert "rank 0, communicator 0 of ranks [0, 1]: open, waits for rank 1, which has put" in text

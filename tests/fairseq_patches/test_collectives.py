"""fairseq's object collectives between two real processes over gloo."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from workers import WorkerError, run_workers


def exchange() -> tuple[list, dict]:
    """A worker: what it gathers, and what it gets from worker 0."""
    from fairseq.distributed import utils

    import fairseq_hybrid  # noqa: F401  (with the entries that the environment says)

    rank, group = dist.get_rank(), utils.get_global_group()
    mine = {"rank": rank, "text": "x" * 100_000 * rank, "t": torch.ones(2) * rank}
    gathered = utils.all_gather_list(mine, group=group)
    state = {"n": 3, "w": torch.arange(5)} if rank == 0 else None
    return gathered, utils.broadcast_object(state, src_rank=0, group=group)


def test_objects_travel_between_cpu_workers(bare_server):
    for gathered, received in run_workers(exchange, 2, server=bare_server):
        assert [g["rank"] for g in gathered] == [0, 1]
        assert [len(g["text"]) for g in gathered] == [0, 100_000], "no size limit on the way"
        assert gathered[1]["t"].tolist() == [1.0, 1.0]
        assert received["n"] == 3
        assert received["w"].tolist() == [0, 1, 2, 3, 4]


def test_they_do_not_without_the_entry(bare_server):
    with pytest.raises(WorkerError) as error:
        run_workers(exchange, 2, server=bare_server, FAIRSEQ_HYBRID_WITHOUT="gather")
    assert error.value.hung == []

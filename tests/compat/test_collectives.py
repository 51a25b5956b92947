"""fairseq's object collectives between two real processes over gloo."""

from __future__ import annotations

import sys

import pytest
from jobs import run

SCRIPT = """
import sys
import torch, torch.distributed as dist, torch.multiprocessing as mp

def work(rank, folder):
    import fairseq_hybrid
    from fairseq.distributed import utils
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    group = utils.get_global_group()
    mine = {"rank": rank, "text": "x" * 100_000 * rank, "t": torch.ones(2) * rank}
    gathered = utils.all_gather_list(mine, group=group)
    assert [g["rank"] for g in gathered] == [0, 1]
    assert [len(g["text"]) for g in gathered] == [0, 100_000], "no size limit on the way"
    assert gathered[1]["t"].tolist() == [1.0, 1.0]
    state = {"n": 3, "w": torch.arange(5)} if rank == 0 else None
    received = utils.broadcast_object(state, src_rank=0, group=group)
    assert received["n"] == 3 and received["w"].tolist() == [0, 1, 2, 3, 4]
    dist.barrier()
    print(f"rank {rank} is done", flush=True)

if __name__ == "__main__":
    mp.spawn(work, args=(sys.argv[1],), nprocs=2)
"""


@pytest.mark.parametrize(("off", "works"), [("", True), ("gather", False)])
def test_objects_travel_between_cpu_workers(tmp_path, off, works):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    result = run(sys.executable, script, tmp_path, FAIRSEQ_HYBRID_WITHOUT=off)
    if works:
        result.ok()
        assert result.out.count("is done") == 2
    else:
        assert result.code != 0
        assert "is done" not in result.out

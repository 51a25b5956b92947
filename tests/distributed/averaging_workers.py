"""A worker of test_averaging.py: two models that drift apart and meet.

python averaging_workers.py FOLDER RANK STATE
"""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path

import torch
import torch.distributed as dist
from fairseq.optim import FairseqOptimizer
from fairseq.optim.adam import Adam

sys.path.insert(0, str(Path(__file__).parents[2]))

from fairseq_hybrid.distributed.averaging import AveragingParallel


class Optimizer(FairseqOptimizer):
    def __init__(self, params):
        super().__init__(Namespace())
        self._optimizer = Adam(params, lr=0.1)


def snapshot(model, optimizer) -> dict:
    states = optimizer.optimizer.state.values()
    return {
        "weights": [p.detach().clone() for p in model.parameters()],
        "averages": [state["exp_avg"].clone() for state in states],
        "steps": [state["step"] for state in states],
    }


def main(folder: str, rank: str, state: str) -> None:
    dist.init_process_group("gloo", f"file://{folder}/store", rank=int(rank), world_size=2)
    torch.manual_seed(0)
    module = torch.nn.Linear(3, 2)
    model = AveragingParallel(module, dist.group.WORLD, interval=3, warmup=2, state=state)
    optimizer = Optimizer(list(module.parameters()))
    torch.manual_seed(1 + int(rank))
    notes = {}
    for update in range(1, 9):
        model.update = update
        optimizer.zero_grad()
        model(torch.randn(4, 3)).square().sum().backward()
        model.all_reduce_grads()
        optimizer.step()
        notes[update, "before"] = snapshot(module, optimizer)
        model.after_update(optimizer)
        notes[update, "after"] = snapshot(module, optimizer)
    torch.save(notes, f"{folder}/{rank}.pt")


if __name__ == "__main__":
    main(*sys.argv[1:])

"""A worker of test_async.py: pushes known gradients, notes what it fetches.

python async_workers.py FOLDER WORLD RANK STALENESS [RANK THAT FAILS]
"""

from __future__ import annotations

import random
import sys
import time
from argparse import Namespace
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[2]))

from fairseq.optim import FairseqOptimizer

from fairseq_hybrid.distributed.asynchronous import AsyncParallel
from fairseq_hybrid.optim import rows
from fairseq_hybrid.optim.mixins import mix_in

UPDATES, WORDS = 20, 9


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table = torch.nn.Parameter(torch.randn(WORDS, 2))
        self.layer = torch.nn.Parameter(torch.randn(3))

    def softmax_parameters(self):
        return (self.table, None)

    def rows_read(self, words):
        return {self.table: words}

    def use_row_gradients(self):
        pass

    def forward(self, words):
        return self.table[words].sum() + self.layer.sum()


class Optimizer(FairseqOptimizer):
    def __init__(self, params):
        super().__init__(Namespace())
        self._optimizer = torch.optim.SGD(params, lr=0.5)
        mix_in(self, rows.RowSteps)


def gradient(rank: int, update: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows of the table, their gradient, and that of the layer: whatever the parameters are."""
    draw = torch.Generator().manual_seed(1000 * rank + update)
    taken = torch.randperm(WORDS, generator=draw)[:4].sort().values
    return taken, torch.randn(4, 2, generator=draw), torch.randn(3, generator=draw)


def main(folder: str, world: int, rank: int, staleness: int, fails: int = -1) -> None:
    dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=world)
    model = AsyncParallel(Model(), staleness=staleness).train()
    optimizer = Optimizer(model.server.params) if rank == 0 else None
    model.start(optimizer, lambda: 0.5)
    model.use_row_gradients()
    random.seed(rank)
    for update in range(UPDATES):
        taken, of_rows, of_layer = gradient(rank, update)
        model(words=taken)
        time.sleep(0.003 * rank * random.random())  # of unequal speed
        model.module.table.grad = rows.sparse_rows(taken, of_rows, model.module.table)
        model.module.layer.grad = of_layer
        model.push()
        if rank == fails and update == UPDATES // 2:
            raise ArithmeticError("as the test asks")
    model.drain()
    torch.save(model.module.state_dict(), f"{folder}/{rank}.pt")
    if rank == 0:
        torch.save({"clock": model.server.clock}, f"{folder}/server.pt")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))

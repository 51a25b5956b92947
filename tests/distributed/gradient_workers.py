"""A worker of test_gradients.py: gradients of one update, for every case, saved to a file.

python gradient_workers.py FOLDER WORLD RANK        one of WORLD processes
python gradient_workers.py FOLDER WORLD reference   one process does what all of them do
"""

from __future__ import annotations

import contextlib
import sys
from argparse import Namespace
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist

sys.path[:0] = [str(Path(__file__).parents[1] / "models"), str(Path(__file__).parents[2])]

from hybrid_lstm_reference import TinyTask, batch, tiny_model  # noqa: E402

from fairseq_hybrid.distributed.hybrid import WavefrontParallel  # noqa: E402

LENGTHS = (  # source and target sentences of each rank's batch: no two shapes alike
    ((3, 6, 1, 4), (5, 2, 7, 4)),
    ((9, 2), (1, 3)),
    ((4,), (8,)),
    ((2, 2, 5), (6, 6, 6)),
)


@dataclass(frozen=True)
class Case:
    stages: int
    chunk: int | None = None
    head_on_last: bool = False
    accumulate: int = 1
    options: dict = field(default_factory=dict)

    @property
    def name(self) -> str:
        kind = "model_parallel" if self.head_on_last else "hybrid"
        options = "".join(f" {k}={v}" for k, v in self.options.items())
        return f"{kind} {self.stages} chunk={self.chunk} x{self.accumulate}{options}"


VARIANTS: tuple[dict, ...] = (
    {},
    {"input_feeding": True},
    {"encoder_bidirectional_first": True},
    {"input_feeding": True, "encoder_bidirectional_first": True},
    {"share_all_embeddings": True},
    {"share_decoder_input_output_embed": True, "decoder_out_embed_dim": 5},
    {"share_all_embeddings": True, "input_feeding": True},
    {"residual": False},
    {"encoder_freeze_embed": True},
)


def cases(world: int) -> list[Case]:
    four = {"encoder_layers": 4}
    found = [
        Case(world, chunk, last, options=four | options)
        for options in VARIANTS
        for chunk, last in ((2, False), (3, True))
    ]
    found += [Case(world, chunk, options=four) for chunk in (None, 1, 5, 100)]
    found += [Case(world, 2, accumulate=3, options=four | o) for o in (VARIANTS[0], VARIANTS[4])]
    found += [Case(world, 2, True, accumulate=2, options=four | VARIANTS[4])]
    if world == 4:
        found += [Case(2, 2, options=four | o) for o in VARIANTS[:5]]
        found += [Case(2, 2, True, options=four), Case(1, 2, options=four)]
        found += [Case(4, 2, options={"encoder_layers": 7, "encoder_bidirectional_first": True})]
    return found


def sample(task, rank: int, turn: int) -> dict:
    source, target = LENGTHS[(rank + turn) % len(LENGTHS)]
    prev = batch(task, target, eos_first=True, seed=rank + 10 * turn + 100)
    net_input = {
        "src_tokens": batch(task, source, left_pad=True, seed=rank + 10 * turn),
        "src_lengths": torch.tensor(source),
        "prev_output_tokens": prev,
    }
    pad, shifted = task.target_dictionary.pad(), torch.full_like(prev, task.target_dictionary.pad())
    for row, new in zip(prev, shifted):
        words = row[row != pad]
        new[: len(words)] = torch.cat((words[1:], words[:1]))
    return {"net_input": net_input, "target": shifted}


def loss_of(model, sample) -> torch.Tensor:
    output = model(**sample["net_input"])
    targets = model.get_targets(sample, output)
    pad = TinyTask().target_dictionary.pad()
    return torch.nn.functional.cross_entropy(
        output[0].flatten(0, -2), targets.flatten(), ignore_index=pad, reduction="sum"
    )


def reference(case: Case, world: int) -> dict:
    task = TinyTask()
    model = tiny_model(task, **case.options)
    loss = 0.0
    for turn in range(case.accumulate):
        for rank in range(world):
            part = loss_of(model, sample(task, rank, turn))
            (part / world).backward()
            loss += part.item()
    trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
    grads = {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in trained.items()}
    norm = torch.stack([g.norm() for g in grads.values()]).norm()
    return {"loss": loss, "grads": grads, "norm": norm}


def parallel(case: Case, rank: int) -> dict:
    task = TinyTask()
    model = WavefrontParallel(
        tiny_model(task, **case.options),
        dist.group.WORLD,
        stages=case.stages,
        chunk=case.chunk,
        head_on_last=case.head_on_last,
    )
    model.train()
    loss = 0.0
    for turn in range(case.accumulate):
        last = turn == case.accumulate - 1
        with contextlib.nullcontext() if last else model.no_sync():
            part = loss_of(model, sample(task, rank, turn))
            part.backward()
            loss += part.item()
    model.all_reduce_grads()
    model.lanes.drain()
    grads = {n: p.grad for n, p in model.module.named_parameters() if p.grad is not None}
    owners = {n: model.ownership.owners[p] for n, p in model.module.named_parameters()}
    return {
        "loss": loss,
        "grads": grads,
        "norm": model.ownership.norm(),
        "stage": model.group.stage,
        "owners": owners,
        "sent": model.bytes_sent,
        "ideal": model.ideal,
    }


def main(args: Namespace) -> None:
    torch.set_num_threads(1)
    if args.rank == "reference":
        results = {case.name: reference(case, args.world) for case in cases(args.world)}
    else:
        dist.init_process_group(
            "gloo", f"file://{args.folder}/store", rank=int(args.rank), world_size=args.world
        )
        results = {case.name: parallel(case, int(args.rank)) for case in cases(args.world)}
        dist.barrier()
    torch.save(results, f"{args.folder}/{args.rank}.pt")


if __name__ == "__main__":
    main(Namespace(folder=sys.argv[1], world=int(sys.argv[2]), rank=sys.argv[3]))

"""Gradients of one update: in one process, and on workers of the wavefront, for every case."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from fairseq.criterions import CRITERION_REGISTRY
from fairseq.distributed import ModuleProxyWrapper
from hybrid_lstm_reference import TinyTask, batch, tiny_model

from fairseq_hybrid.backends.wavefront.backend import WavefrontParallel
from fairseq_hybrid.criterions.sampled_softmax import SampledSoftmaxConfig, SampledSoftmaxCriterion
from fairseq_hybrid.models import hybrid_lstm
from fairseq_hybrid.models.attention import Memory
from fairseq_hybrid.optim.rows import RowSharing

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
    depths: tuple[int, ...] | None = None
    """--hybrid-layers"""
    options: dict = field(default_factory=dict)
    mixed: bool = False
    """float32 weights under autocast to bfloat16, instead of float64"""
    sampled: bool = False
    """softmax over some words, gradients of their rows"""
    messages: bool = False
    """--sums-through messages"""
    slices: bool | tuple[float, ...] = True
    """of what all stages use"""
    in_place: bool = False
    """fairseq's label-smoothed criterion, in place (criterions/cross_entropy.py)"""

    @property
    def task(self) -> TinyTask:
        return TinyTask(60 if self.sampled else 11)

    def criterion(self):
        if self.in_place:
            return CRITERION_REGISTRY["label_smoothed_cross_entropy"](self.task, False, 0.1)
        if not self.sampled:
            return loss_of
        cfg = SampledSoftmaxConfig(
            sample_frequent=0,
            sample_random=8,
            sample_distribution="uniform",
            label_smoothing=0.1,
        )
        cfg.sentence_avg, cfg.seed = False, 1
        return SampledSoftmaxCriterion(cfg, self.task)

    @property
    def name(self) -> str:
        kind = "model_parallel" if self.head_on_last else "hybrid"
        options = "".join(f" {k}={v}" for k, v in self.options.items())
        options += f" layers={self.depths}" if self.depths else ""
        mixed = " mixed" if self.mixed else " sampled" if self.sampled else ""
        mixed += " messages" if self.messages else ""
        mixed += " in place" if self.in_place else ""
        mixed += f" slices={self.slices}" if self.slices is not True else ""
        return f"{kind} {self.stages} chunk={self.chunk} x{self.accumulate}{options}{mixed}"

    def model(self, task):
        dtype = torch.float32 if self.mixed else torch.float64
        model = tiny_model(task, dtype, **self.options)
        for module in model.modules() if self.mixed else ():
            if isinstance(module, torch.nn.LSTM):
                module.register_forward_pre_hook(lower)
        return model

    @contextlib.contextmanager
    def precision(self):
        if not self.mixed:
            yield
            return
        # (oneDNN's LSTM takes no bfloat16 on some machines)
        with torch.autocast("cpu", torch.bfloat16), torch.backends.mkldnn.flags(enabled=False):
            yield


def lower(lstm, inputs: tuple) -> tuple:
    """Under autocast a GPU's LSTM computes in half precision and says so; a CPU's does not."""
    x, *states = inputs
    return x.to(torch.bfloat16), *(tuple(s.to(torch.bfloat16) for s in pair) for pair in states)


def feeding_in_float32(layers, head, x, sizes, states, memory):
    """The time loop of input feeding, kept out of autocast, which it cannot stand."""
    states = [(h.float(), c.float()) for h, c in states]
    memory = Memory(memory.keys_BSH.float(), memory.values_BSH.float(), memory.mask_BS)
    with torch.autocast("cpu", enabled=False):
        return run_with_feeding(layers, head, x.float(), sizes, states, memory)


run_with_feeding = hybrid_lstm.run_with_feeding


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
    for o in (VARIANTS[0], VARIANTS[1], VARIANTS[4], VARIANTS[5], VARIANTS[6]):
        found.append(Case(world, 2, options=four | o, sampled=True))
    found += [Case(world, 2, accumulate=2, options=four | VARIANTS[4], sampled=True)]
    found += [Case(2, 2, depths=(1, 3), options=four | o) for o in (*VARIANTS[:2], VARIANTS[3])]
    found += [Case(2, 2, last, depths=(3, 1), options=four | VARIANTS[2]) for last in (False, True)]
    found += [Case(world, 2, options=four | o, messages=True) for o in (VARIANTS[0], VARIANTS[4])]
    found += [Case(world, 2, options=four, sampled=True, messages=True)]
    for o, last in ((0, False), (1, False), (4, False), (5, True), (6, True)):
        found.append(Case(world, 2, last, options=four | VARIANTS[o], in_place=True))
    found += [Case(world, 2, accumulate=2, options=four | VARIANTS[4], in_place=True)]
    uneven = tuple(range(world))  # stage 0 owns nothing
    for o in (VARIANTS[0], VARIANTS[1], VARIANTS[5]):
        found.append(Case(world, 2, options=four | o, slices=uneven, messages=True))
        found.append(Case(world, 2, options=four | o, slices=uneven, sampled=True))
    found += [Case(world, 2, options=four, slices=False, sampled=s) for s in (False, True)]
    if world == 2:
        found += [
            Case(2, 3, last, options=four, mixed=True, in_place=True) for last in (False, True)
        ]
        for o in (*VARIANTS[:2], VARIANTS[3]):
            found.append(Case(2, 2, options=four | o, mixed=True))
        for o in (VARIANTS[2], VARIANTS[7]):
            found.append(Case(2, 3, True, options=four | o, mixed=True))
        # Steps of one word: another kernel, which answers in the type of what it gets.
        found += [Case(2, 1, options=four | o, mixed=True) for o in VARIANTS[:2]]
    if world == 4:
        found += [Case(2, 2, options=four | o) for o in VARIANTS[:5]]
        found += [Case(2, 2, True, options=four), Case(1, 2, options=four)]
        found += [Case(2, 2, options=four | o, sampled=True) for o in (VARIANTS[0], VARIANTS[4])]
        found += [Case(4, 1, options=four, mixed=True), Case(2, 2, options=four, mixed=True)]
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
    return {"net_input": net_input, "target": shifted, "ntokens": int(shifted.ne(pad).sum())}


def loss_of(model, sample) -> tuple[torch.Tensor]:
    output = model(**sample["net_input"])
    targets = model.get_targets(sample, output)
    pad = TinyTask().target_dictionary.pad()
    rows, targets = output[0].flatten(0, -2), targets.flatten()
    loss = torch.nn.functional.cross_entropy
    return (loss(rows, targets, ignore_index=pad, reduction="sum"),)


def dense(grad: torch.Tensor) -> torch.Tensor:
    return grad.to_dense() if grad.is_sparse else grad


class Joined(RowSharing):
    """A model whose criterion is told the words of all workers."""

    def __init__(self, model, words):
        self.model, self.words = model, words

    def __getattr__(self, name):
        return getattr(self.model, name)

    def __call__(self, **net_input):
        return self.model(**net_input)

    def union_of_words(self, words):
        return self.words


def reference(case: Case, world: int) -> dict:
    task = case.task
    model = case.model(task)
    loss, criterions = 0.0, [case.criterion() for _ in range(world)]
    for turn in range(case.accumulate):
        samples = [sample(task, rank, turn) for rank in range(world)]
        words = torch.cat([s["target"].flatten() for s in samples]).unique()
        shared = Joined(model, words) if case.sampled else model
        for criterion, batch_of_rank in zip(criterions, samples):
            with case.precision():
                part = criterion(shared, batch_of_rank)[0]
            (part / world).backward()
            loss += part.item()
    trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
    grads = {
        n: torch.zeros_like(p) if p.grad is None else dense(p.grad) for n, p in trained.items()
    }
    norm = torch.stack([g.norm() for g in grads.values()]).norm()
    return {"loss": loss, "grads": grads, "norm": norm}


def parallel(case: Case, rank: int) -> dict:
    task, criterion = case.task, case.criterion()
    model = WavefrontParallel(
        case.model(task),
        dist.group.WORLD,
        stages=case.stages,
        depths=case.depths,
        chunk=case.chunk,
        head_on_last=case.head_on_last,
        share_memory=not case.messages,
        slices=case.slices,
    )
    model.train()
    seen, loss = ModuleProxyWrapper(model), 0.0  # as fairseq's trainer has it
    for turn in range(case.accumulate):
        last = turn == case.accumulate - 1
        with contextlib.nullcontext() if last else model.no_sync():
            with case.precision():
                batch = sample(task, rank, turn)
                if case.head_on_last:
                    batch["net_input"]["target"] = batch["target"]
                part = criterion(seen, batch)[0]
            part.backward()
            loss += part.item()
    model.all_reduce_grads()
    names = {p: n for n, p in model.ownership.names.items()}
    found = {names[p]: mine.grad for p, mine in model.ownership.mine.items()}
    rows = {names[p]: rows for p, rows in model.ownership.rows.items() if p in names}
    others = {n for n, p in model.ownership.names.items() if n not in found and p.grad is not None}
    return {
        "loss": loss,
        "grads": {name: dense(grad) for name, grad in found.items()},
        "rows": {name: g.indices().numel() for name, g in found.items() if g.is_sparse},
        "norm": model.grad_norm(model.gradient_groups([], 1.0)),
        "stage": model.group.stage,
        "owned": rows,
        "others": others,
        "sent": model.bytes_sent,
        "ideal": model.ideal,
    }


def feeding_in_float32_if_mixed(*inputs):
    mixed = torch.is_autocast_enabled("cpu")
    return (feeding_in_float32 if mixed else run_with_feeding)(*inputs)


def all_references(world: int) -> dict:
    """By the case's name, what one process gets that does what all workers do."""
    hybrid_lstm.run_with_feeding = feeding_in_float32_if_mixed
    return {case.name: reference(case, world) for case in cases(world)}


def all_parallel(world: int) -> dict:
    """By the case's name, what this worker gets."""
    hybrid_lstm.run_with_feeding = feeding_in_float32_if_mixed
    return {case.name: parallel(case, dist.get_rank()) for case in cases(world)}

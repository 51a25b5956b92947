"""A few updates with gradients that come one late, for every case: on workers, and simulated.

The simulation knows nothing of stages, chunks or messages: it takes the model apart into what is
late and what is not, keeps the gradients of the former for an update, and that is all.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from fairseq.distributed import ModuleProxyWrapper
from fairseq.optim.adam import FairseqAdam, FairseqAdamConfig
from gradient_cases import loss_of, sample
from hybrid_lstm_reference import TinyTask, tiny_model

from fairseq_hybrid.backends.wavefront.decoupled import DecoupledParallel
from fairseq_hybrid.models.lstm_layer import run_layers
from fairseq_hybrid.models.packing import Packing
from fairseq_hybrid.models.parallel_parts import join_state
from fairseq_hybrid.optim.optimizer import wrap

UPDATES = 10
DRAINS = (5, UPDATES - 1)
"""updates after which somebody looks at the weights"""
EMPTY = (3, 1)
"""update and worker whose batch counts nothing"""


@dataclass(frozen=True)
class Case:
    stages: int
    chunk: int | None = None
    accumulate: int = 1
    shrink: float = 1.0
    clip: float = 0.5
    depths: tuple[int, ...] | None = None
    dtype: torch.dtype = torch.float64
    options: dict = field(default_factory=dict)
    timely: bool = False
    """nothing is late: of the simulation alone"""
    messages: bool = False
    """--sums-through messages"""

    @property
    def name(self) -> str:
        options = "".join(f" {k}={v}" for k, v in self.options.items())
        options += f" layers={self.depths}" if self.depths else ""
        options += f" shrink={self.shrink}" if self.shrink != 1 else ""
        options += " unclipped" if not self.clip else ""
        options += " float32" if self.dtype == torch.float32 else ""
        options += " messages" if self.messages else ""
        return f"{self.stages} chunk={self.chunk} x{self.accumulate}{options}"

    def model(self) -> torch.nn.Module:
        return tiny_model(TinyTask(), self.dtype, encoder_layers=4, **self.options).train()

    def batch(self, update: int, turn: int, rank: int) -> tuple[dict, float]:
        """And what its loss is multiplied by."""
        empty = (update, rank) == EMPTY and turn == self.accumulate - 1
        return sample(TinyTask(), rank, self.accumulate * update + turn), 0.0 if empty else 1.0

    def sample_size(self, update: int, world: int) -> float:
        """Not that of two updates alike."""
        batches = [self.batch(update, t, r) for t in range(self.accumulate) for r in range(world)]
        return (1 + update % 3) * sum(b["ntokens"] * counts for b, counts in batches)


VARIANTS: tuple[dict, ...] = (
    {"encoder_bidirectional_first": True},
    {"share_all_embeddings": True},
    {"share_decoder_input_output_embed": True, "decoder_out_embed_dim": 5},
    {"residual": False, "encoder_freeze_embed": True},
)


def cases(world: int) -> list[Case]:
    found = [Case(world, chunk) for chunk in (None, 1, 3)]
    found += [Case(world, 2, options=options) for options in VARIANTS]
    found += [Case(world, 2, accumulate=3, options=o) for o in ({}, VARIANTS[1])]
    found += [Case(world, shrink=0.5, options=VARIANTS[1]), Case(world, clip=0.0)]
    found += [Case(world, dtype=torch.float32), Case(world, messages=True)]
    if world == 2:
        found += [Case(2, 2, depths=(1, 3)), Case(2, depths=(3, 1), options=VARIANTS[0])]
    if world == 4:
        found += [Case(2, 2), Case(2, 2, accumulate=2, options=VARIANTS[1]), Case(1, 2)]
        found += [Case(2, options=VARIANTS[0])]
    return found


def adam(model: torch.nn.Module) -> FairseqAdam:
    cfg = FairseqAdamConfig(adam_betas="(0.9, 0.98)", fp16_adam_stats=False)
    cfg.tpu, cfg.lr = False, [0.02]
    return FairseqAdam(cfg, [p for p in model.parameters() if p.requires_grad])


# One process


def recurrent(parts, inputs: dict) -> tuple[torch.Tensor, torch.Tensor, Packing, Packing]:
    """Top states of encoder and decoder, in the words of `ParallelParts`."""
    src = Packing.from_tokens(inputs["src_tokens"], parts.source_pad)
    tgt = Packing.from_tokens(inputs["prev_output_tokens"], parts.target_pad)
    x_ME = parts.embed_source(src.pack(inputs["src_tokens"]))
    x_NE = parts.embed_target(tgt.pack(inputs["prev_output_tokens"]))
    enc_MH, states = run_layers(parts.encoder_layers, x_ME, src.batch_sizes)
    states = [join_state(state, src, tgt) for state in states]
    dec_NH, _ = run_layers(parts.decoder_layers, x_NE, tgt.batch_sizes, states)
    return enc_MH, dec_NH, src, tgt


class Simulation:
    def __init__(self, case: Case, world: int):
        self.case, self.world = case, world
        self.model = case.model()
        self.optimizer = adam(self.model)
        self.late: dict[torch.nn.Parameter, torch.Tensor] = {}
        self.losses, self.norms = [], []

    def gradients(self, update: int, turn: int) -> tuple[dict, dict]:
        """Of the head and of the rest, summed over the workers' batches."""
        parts, found = self.model.parallel_parts(), ({}, {})
        for rank in range(self.world):
            batch, counts = self.case.batch(update, turn, rank)
            *states, src, tgt = recurrent(parts, batch["net_input"])
            enc_MH, dec_NH = tops = [state.detach().requires_grad_() for state in states]
            logits_NV, _ = parts.head(dec_NH, tgt, enc_MH, src)
            targets = tgt.pack(batch["target"])
            loss = counts * torch.nn.functional.cross_entropy(logits_NV, targets, reduction="sum")
            self.losses[-1] += loss.item()
            self.collect(found[0], loss)
            self.collect(found[1], *states, grads=[top.grad for top in tops])
        return found

    def collect(self, into: dict, *ends: torch.Tensor, grads: list | None = None) -> None:
        self.optimizer.zero_grad()
        torch.autograd.backward(ends, grads)
        for p in self.model.parameters():
            if p.grad is not None:
                into[p] = into.get(p, 0) + p.grad

    def update(self, update: int) -> None:
        self.losses.append(0.0)
        scale = 1 / self.case.sample_size(update, self.world)
        step, self.late = {p: self.case.shrink * g for p, g in self.late.items()}, {}
        for turn in range(self.case.accumulate):
            head, rest = self.gradients(update, turn)
            last = turn == self.case.accumulate - 1 and not self.case.timely
            for into, grads in ((step, head), (self.late if last else step, rest)):
                for p, grad in grads.items():
                    into[p] = into.get(p, 0) + scale * grad
        self.step(step)

    def drain(self) -> None:
        step, self.late = {p: self.case.shrink * g for p, g in self.late.items()}, {}
        self.step(step)

    def step(self, grads: dict) -> None:
        norm = torch.stack([g.norm() for g in grads.values()]).norm()
        self.norms.append(norm.item())
        clip = min(1.0, self.case.clip / (norm.item() + 1e-6)) if self.case.clip else 1.0
        self.optimizer.zero_grad()
        for p, grad in grads.items():
            p.grad = grad * clip
        self.optimizer.step()


def reference(case: Case, world: int) -> dict:
    simulation = Simulation(case, world)
    for update in range(UPDATES):
        simulation.update(update)
        if update in DRAINS and not case.timely:
            simulation.drain()
    return {
        "losses": simulation.losses,
        "norms": simulation.norms,
        "weights": simulation.model.state_dict(),
        "steps": steps_of(simulation.optimizer, simulation.model.named_parameters()),
    }


def steps_of(optimizer: FairseqAdam, parameters: Iterable[tuple]) -> dict[str, int]:
    names = {p: name for name, p in parameters}
    return {names[p]: state["step"] for p, state in optimizer.optimizer.state.items()}


# Workers


def parallel(case: Case, rank: int, world: int) -> dict:
    """What fairseq's trainer does."""
    model = DecoupledParallel(
        case.model(),
        dist.group.WORLD,
        stages=case.stages,
        depths=case.depths,
        chunk=case.chunk,
        shrink=case.shrink,
        share_memory=not case.messages,
    )
    seen = ModuleProxyWrapper(model.train())
    optimizer = wrap(adam(model.module), model)
    model.attach(optimizer, torch.nn.Module())
    losses, norms, ideal = [], [], []
    for update in range(UPDATES):
        losses.append(0.0)
        optimizer.zero_grad()
        for turn in range(case.accumulate):
            last = turn == case.accumulate - 1
            with contextlib.nullcontext() if last else model.no_sync():
                batch, counts = case.batch(update, turn, rank)
                loss = counts * loss_of(seen, batch)[0]
                loss.backward()
                losses[-1] += loss.item()
        model.all_reduce_grads()
        optimizer.multiply_grads(world / case.sample_size(update, world))
        norms.append(optimizer.clip_grad_norm(case.clip).item())
        optimizer.step()
        ideal.append(model.ideal)
        if update in DRAINS:
            optimizer.zero_grad()
            assert model.drain()
            norms.append(optimizer.clip_grad_norm(case.clip).item())
            optimizer.step()
            model.ownership.refresh()
            optimizer.zero_grad()
            assert not model.drain()
    slices = {n: model.ownership.mine.get(p, p) for n, p in model.ownership.names.items()}
    return {
        "losses": losses,
        "norms": norms,
        "weights": model.module.state_dict(),
        "steps": steps_of(optimizer, slices.items()),
        "ideal": ideal,
        "under way": len(model.transport.under_way),
    }


def all_references(world: int) -> dict:
    """By the case's name, what one process gets that simulates all workers."""
    results = {case.name: reference(case, world) for case in cases(world)}
    return {**results, "timely": reference(Case(world, timely=True), world)}


def all_parallel(world: int) -> dict:
    """By the case's name, what this worker gets."""
    return {case.name: parallel(case, dist.get_rank(), world) for case in cases(world)}

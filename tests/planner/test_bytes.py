"""What the planner says is sent is what the backends count."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from fairseq.distributed import ModuleProxyWrapper
from gradient_cases import loss_of, sample
from hybrid_lstm_reference import TinyTask, tiny_model
from tiny_jobs import Flat
from workers import run_workers

from fairseq_hybrid.backends.wavefront.backend import WavefrontParallel
from fairseq_hybrid.planner.job import Model, shape
from fairseq_hybrid.planner.plan import HYBRID, MODEL_PARALLEL, Plan
from fairseq_hybrid.planner.programs import Update

CHUNK = 3
CASES = [
    (HYBRID, (2, 2), {}),
    (HYBRID, (1, 3), {"share_all_embeddings": True}),
    (HYBRID, (2, 2), {"input_feeding": True}),
    (MODEL_PARALLEL, (2, 2), {"encoder_bidirectional_first": True}),
]


def counted() -> list[int]:
    """In each case, by this worker, in the second update: it begins with new weights."""
    return [_second_update(*case) for case in CASES]


def _second_update(backend: str, layers: tuple[int, ...], options: dict) -> int:
    last = backend == MODEL_PARALLEL
    model = WavefrontParallel(
        tiny_model(dtype=torch.float32, encoder_layers=4, **options),
        dist.group.WORLD,
        stages=len(layers),
        depths=layers,
        chunk=CHUNK,
        head_on_last=last,
    )
    model.train()
    before = 0
    for _ in range(2):
        before = model.bytes_sent
        batch = sample(TinyTask(), dist.get_rank(), 0)
        if last:
            batch["net_input"]["target"] = batch["target"]
        loss_of(ModuleProxyWrapper(model), batch)[0].backward()
        model.all_reduce_grads()
    return model.bytes_sent - before


@pytest.mark.parametrize("workers", [2, 4])
def test_bytes_are_those_that_the_backends_count(workers):
    everyones = run_workers(counted, workers)
    for case, found in zip(CASES, zip(*everyones)):
        backend, layers, options = case
        model = Model(tiny_model(dtype=torch.float32, encoder_layers=4, **options))
        batches = [shape(sample(TinyTask(), rank, 0), model.parts) for rank in range(workers)]
        plan = Plan(backend, workers, layers, CHUNK)
        timeline = Update(plan, model, batches, Flat()).timeline()
        assert timeline.sent == pytest.approx(found, abs=1), case

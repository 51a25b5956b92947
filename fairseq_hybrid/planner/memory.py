"""Memory of a worker, roughly: weights, gradients, optimizer state, and what backward needs.

Every worker keeps all weights. A worker of `hybrid` or `model_parallel` has gradients of what it
computes with and optimizer state (two numbers per weight, as Adam has) of what it owns; under data
parallelism it has both for everything, and a buffer of the gradients to sum. A decoupled one has
the activations of two updates, and copies of its layers for each. Activations are counted tensor by
tensor; what allocators and libraries need beside that is not.
"""

from __future__ import annotations

from collections.abc import Sequence

from fairseq_hybrid.backends.wavefront.options import stacked
from fairseq_hybrid.backends.wavefront.schedule import DECODER, ENCODER
from fairseq_hybrid.planner.job import FLOAT, BatchShape, Model
from fairseq_hybrid.planner.plan import DATA_PARALLEL, MODEL_PARALLEL, Plan

OPTIMIZER_NUMBERS = 2
"""numbers that the optimizer keeps per weight"""
LAYER_ROW = 7
"""times the hidden size that a layer keeps of a row beside its input: gates, cell, output, mask"""
HEAD_ROW = 6
"""times the hidden size that the head keeps of a row"""
LOGITS = 3
"""logits, their log-probabilities, and the gradient of one of them"""


def of_workers(plan: Plan, model: Model, batches: Sequence[BatchShape]) -> list[float]:
    """Bytes of each worker."""
    return [
        _stage(plan, model, batches[first : first + plan.stages], stage)
        for first in range(0, plan.workers, plan.stages)
        for stage in range(plan.stages)
    ]


def _stage(plan: Plan, model: Model, batches: Sequence[BatchShape], stage: int) -> float:
    head_on_last = plan.backend == MODEL_PARALLEL
    shares = model.shares(plan.layers, head_on_last)
    weights = sum(p.numel() for p in model.module.parameters())
    numbers = weights + shares.used[stage] + OPTIMIZER_NUMBERS * shares.owned[stage]
    if plan.backend == DATA_PARALLEL:
        numbers += model.numbers
    numbers += _layers(plan, model, batches, stage)
    if not plan.exact:
        numbers += _layers(plan, model, batches, stage)
        numbers += 2 * model.layer_numbers(stacked(plan.layers)[stage])
    if not head_on_last:
        numbers += _head(model, batches[stage])
    elif stage == plan.stages - 1:
        numbers += sum(_head(model, batch) for batch in batches)
    return numbers * FLOAT


def _layers(plan: Plan, model: Model, batches: Sequence[BatchShape], stage: int) -> float:
    layers = {ENCODER: model.parts.encoder_layers, DECODER: model.parts.decoder_layers}
    return sum(
        batch.rows(part) * (layers[part][i].lstm.input_size + LAYER_ROW * model.hidden)
        for part in model.sides
        for i in stacked(plan.layers)[stage]
        for batch in batches
    )


def _head(model: Model, batch: BatchShape) -> float:
    rows, hidden = batch.rows(DECODER), model.hidden
    numbers = rows * (LOGITS * model.parts.head.output.out_features + HEAD_ROW * hidden)
    if model.feeding:
        numbers += rows * model.layers * (1 + LAYER_ROW) * hidden
    return numbers

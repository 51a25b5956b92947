"""What is to be trained, as the planner sees it: a model's parts and the shapes of its batches.

The batches are the first ones of an epoch of the user's data, as fairseq makes them, so that their
padding, their lengths and how these vary are those of the training to come.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any, NamedTuple

from fairseq import tasks, utils
from fairseq.models import ARCH_MODEL_REGISTRY
from torch import nn

from fairseq_hybrid.backends.wavefront.options import head_is_sliced, stacked
from fairseq_hybrid.backends.wavefront.placement import owned_rows, users_of
from fairseq_hybrid.backends.wavefront.schedule import DECODER, ENCODER, WHOLE, Unit
from fairseq_hybrid.errors import UserError
from fairseq_hybrid.models.lstm_layer import LSTMLayer
from fairseq_hybrid.models.packing import Packing
from fairseq_hybrid.models.parallel_parts import ParallelParts

FLOAT = 4
"""bytes"""
UPDATES = 3
"""of all workers, whose batches are looked at"""


class BatchShape(NamedTuple):
    """How many sentences still run at each time, on both sides."""

    source: tuple[int, ...]
    target: tuple[int, ...]

    @property
    def sentences(self) -> int:
        return self.source[0]

    def sizes(self, part: str) -> tuple[int, ...]:
        return self.target if part == DECODER else self.source

    def rows(self, part: str) -> int:
        return sum(self.sizes(part))

    def chunks(self, part: str, chunk: int) -> int:
        return -(-len(self.sizes(part)) // chunk)

    def unit(self, unit: Unit, chunk: int) -> tuple[int, ...]:
        """The sizes of a unit of the wavefront."""
        sizes = self.sizes(unit.part)
        if unit.part == WHOLE:
            return sizes
        return sizes[unit.chunk * chunk : (unit.chunk + 1) * chunk]


class Shares(NamedTuple):
    """Which numbers of the model lie on which stage."""

    owned: tuple[int, ...]
    """by stage: those it keeps gradient and optimizer state of"""
    used: tuple[int, ...]
    """by stage: those it computes with, and has gradients of"""
    shared: tuple[int, ...]
    """by stage: those it owns that other stages compute with too"""


@dataclass(frozen=True)
class Model:
    """A model and its parts."""

    module: nn.Module
    slices: bool = True
    """whether what all stages use is cut between them (--hybrid-head)"""

    @functools.cached_property
    def parts(self) -> ParallelParts:
        return self.module.parallel_parts()

    @property
    def layers(self) -> int:
        return len(self.parts.encoder_layers)

    @property
    def hidden(self) -> int:
        return self.parts.encoder_layers[-1].hidden_size

    @property
    def feeding(self) -> bool:
        return not self.parts.decoder_splits

    @property
    def sides(self) -> tuple[str, ...]:
        """What passes through the stages."""
        return (ENCODER,) if self.feeding else (ENCODER, DECODER)

    @functools.cached_property
    def numbers(self) -> int:
        """of all parameters that are trained"""
        return sum(p.numel() for p in self.module.parameters() if p.requires_grad)

    def layers_of(self, depths: Iterable[int], part: str) -> list[LSTMLayer]:
        """Those of a stage that run a part of a batch."""
        parts = self.parts
        if part == DECODER:
            return [parts.decoder_layers[i] for i in depths]
        whole = parts.whole_sentence_layers
        return [parts.encoder_layers[i] for i in depths if (i < whole) == (part == WHOLE)]

    def layer_numbers(self, depths: Iterable[int]) -> int:
        """Of a stage's layers."""
        parts = self.parts
        layers = [parts.encoder_layers[i] for i in depths]
        if not self.feeding:
            layers += [parts.decoder_layers[i] for i in depths]
        return sum(p.numel() for layer in layers for p in layer.parameters())

    def units(self, number: int, batch: BatchShape, chunk: int) -> list[Unit]:
        """Of a batch, in all."""
        units = [
            Unit(number, part, k) for part in self.sides for k in range(batch.chunks(part, chunk))
        ]
        return [Unit(number, WHOLE, 0), *units] if self.parts.whole_sentence_layers else units

    def shares(self, depths: Sequence[int], head_on_last: bool) -> Shares:
        """What the stages have to do with which parameters (wavefront/placement.py)."""
        trained = [p for p in self.module.parameters() if p.requires_grad]
        users = users_of(self.module.parameters(), self.parts, stacked(depths), head_on_last)
        rows = owned_rows(users, self.parts, len(depths), self.slices)
        stages = range(len(depths))

        def owned(stage: int, params: Iterable[nn.Parameter]) -> int:
            return sum(len(rows[p][stage]) * (p.numel() // p.size(0)) for p in params)

        shared = [p for p in trained if len(users[p]) > 1]
        return Shares(
            owned=tuple(owned(s, trained) for s in stages),
            used=tuple(sum(p.numel() for p in trained if s in users[p]) for s in stages),
            shared=tuple(owned(s, shared) for s in stages),
        )


@dataclass(frozen=True)
class Job:
    model: Model
    updates: tuple[tuple[BatchShape, ...], ...]
    """some updates: a batch of each worker"""

    @property
    def workers(self) -> int:
        return len(self.updates[0])

    @property
    def batches(self) -> list[BatchShape]:
        return [batch for update in self.updates for batch in update]

    @property
    def words(self) -> float:
        """Target words of an update of all workers, on average."""
        return sum(batch.rows(DECODER) for batch in self.batches) / len(self.updates)

    @property
    def longest(self) -> int:
        """Time steps of the longest sentence."""
        return max(len(batch.sizes(part)) for batch in self.batches for part in (ENCODER, DECODER))


def load_job(cfg: Any, workers: int, updates: int = UPDATES) -> tuple[Job, list[dict]]:
    """The job of a training configuration, and the batches it looked at."""
    validate_plannable(cfg)
    task = tasks.setup_task(cfg.task)
    task.load_dataset(cfg.dataset.train_subset)
    module = task.build_model(cfg.model)
    samples = list(islice(_samples(cfg, task, module), updates * workers))
    if not samples:
        raise UserError(f"{cfg.task.data} has no sentence that fits: raise --max-tokens")
    model = Model(module, head_is_sliced(cfg))
    shapes = [shape(sample, model.parts) for sample in samples]
    updates = tuple(tuple(shapes[i : i + workers]) for i in range(0, len(shapes), workers))
    return Job(model, updates), samples


def validate_plannable(cfg: Any) -> None:
    """Refuse what cannot be planned."""
    arch = getattr(cfg.model, "_name", None) or getattr(cfg.model, "arch", None)
    if not hasattr(ARCH_MODEL_REGISTRY.get(arch), "parallel_parts"):
        raise UserError(
            f"--arch {arch} cannot be split, so there is nothing to plan: use hybrid_lstm"
        )
    if cfg.criterion._name == "sampled_softmax":
        raise UserError(
            "--criterion sampled_softmax cannot be planned: plan with another criterion"
        )
    if cfg.dataset.max_tokens is None and cfg.dataset.batch_size is None:
        raise UserError("give the size of a batch: --max-tokens N or --batch-size N")


def with_feeding(cfg: Any, job: Job, feeding: bool) -> Job:
    """The same job for the model with, or without, input feeding."""
    if job.model.feeding == feeding:
        return job
    wanted = copy.deepcopy(cfg.model)
    wanted.input_feeding = feeding
    module = tasks.setup_task(cfg.task).build_model(wanted)
    return Job(Model(module, job.model.slices), job.updates)


def shape(sample: dict, parts: ParallelParts) -> BatchShape:
    words = sample["net_input"]
    source = Packing.from_tokens(words["src_tokens"], parts.source_pad)
    target = Packing.from_tokens(words["prev_output_tokens"], parts.target_pad)
    return BatchShape(tuple(source.batch_sizes.tolist()), tuple(target.batch_sizes.tolist()))


def _samples(cfg: Any, task: Any, module: nn.Module) -> Iterator[dict]:
    """The batches of the first epoch in their order, and again if there are too few."""
    dataset = cfg.dataset
    epoch = task.get_batch_iterator(
        dataset=task.dataset(dataset.train_subset),
        max_tokens=dataset.max_tokens,
        max_sentences=dataset.batch_size,
        max_positions=utils.resolve_max_positions(
            task.max_positions(), module.max_positions(), dataset.max_tokens
        ),
        ignore_invalid_inputs=True,
        required_batch_size_multiple=dataset.required_batch_size_multiple,
        seed=cfg.common.seed,
        epoch=1,
    ).next_epoch_itr(shuffle=True)
    return cycle(epoch)

"""The measurements of a profile, made by as many workers as will train (see profile.py).

Worker 0 measures while the others wait: each kind of LSTM layer by time steps and sentences,
forward and backward; the head with the criterion; the embeddings; copying; the optimizer; some
whole updates; the wavefront with a single stage. Then all compute at the same time, which shows how
much they slow each other down, then they send, and then they make some whole data-parallel updates.
The pieces are those that training runs: `LSTMLayer`, the model's head, fairseq's criterion and
trainer.
"""

from __future__ import annotations

import copy
import functools
import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from fairseq import tasks
from fairseq.distributed import ModuleProxyWrapper
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from fairseq_hybrid.backends.wavefront.backend import WavefrontParallel
from fairseq_hybrid.models.lstm_layer import LSTMLayer
from fairseq_hybrid.models.packing import Packing
from fairseq_hybrid.models.products import linear
from fairseq_hybrid.models.split_lstm import SplitLayer, can_split
from fairseq_hybrid.planner.costs import ALL_REDUCE, COPY, FORWARD, HEAD, Line, full_steps, kind_of
from fairseq_hybrid.planner.job import FLOAT, Model, shape
from fairseq_hybrid.planner.plan import DATA_PARALLEL
from fairseq_hybrid.planner.timing import (
    Pair,
    median,
    medians,
    pair_of,
    progress,
    seconds_of,
    slow_down,
    together,
    transport,
)
from fairseq_hybrid.trainer import HybridTrainer

STEPS = (2, 8, 24)
SHARES = (0.25, 0.5, 1.0)
"""of the most sentences that a batch has"""
COPIED = 1 << 24
"""bytes"""
CHUNKS = (8, 2)
"""for what a unit takes beside its layers"""
TIMED_UPDATES, TURNS, TURNS_BUDGET = 2, (2, 16), 4.0
"""data-parallel updates: of how many sets of batches, how often each at least and at most, and the
seconds in which that should be done"""


def measure_worker(cfg: Any, samples: list[dict], path: str) -> None:
    """A worker's part; worker 0 writes the result."""
    logging.disable(logging.INFO)  # what fairseq says of the model and the trainer of each
    bench = Bench(cfg, samples)
    measured = bench.alone() if dist.get_rank() == 0 else {}
    dist.barrier()
    slower = bench.together()
    link, busy, all_reduce = transport(bench.numbers * FLOAT)
    together = bench.data_parallel(measured.get("whole"))
    if dist.get_rank() == 0:
        measured.update(slow_down=slower, link=link, message_cpu=busy, together=together)
        measured["lines"][ALL_REDUCE] = all_reduce
        Path(path).write_text(json.dumps(measured))


class Bench:
    """The model, its trainer and the batches, in one worker."""

    def __init__(self, cfg: Any, samples: list[dict]):
        self.cfg = cfg
        self.trainer = build_trainer(cfg, workers=1)
        module = self.trainer.get_model()
        self.clip = cfg.optimization.clip_norm
        self.model, self.samples = Model(module), samples
        self.parallel = WavefrontParallel(module, dist.group.WORLD, stages=1)
        self.shapes = [shape(sample, self.model.parts) for sample in samples]
        self.largest = max(samples, key=lambda sample: sample["ntokens"])
        self.sentences = max(batch.sentences for batch in self.shapes)
        self.numbers = self.model.numbers

    def alone(self) -> dict[str, Any]:
        some = self.samples[: max(2, len(self.samples) // 3)]
        progress(f"{len(some)} whole updates")
        self._update_seconds(some[0])  # makes buffers and optimizer state
        whole = [median(functools.partial(self._update_seconds, sample)) for sample in some]
        progress("embeddings, copying and the optimizer")
        lines = {
            "copy": Line(0.0, median(self._copy_seconds) / COPIED),
            "update": Line(0.0, median(self._step_seconds) / self.numbers),
            **lines_of("embed", [self._embed(sample) for sample in self._half_and_whole()]),
        }
        progress("attention, softmax and loss")
        lines.update(lines_of("head", [self._head(sample) for sample in self._half_and_whole()]))
        rows = self.largest["ntokens"]
        lines["output weights"] = Line(0.0, median(lambda: self._output_seconds(rows)) / rows)
        progress("the wavefront on one worker")
        units = [(chunk, median(functools.partial(self._unit_seconds, chunk))) for chunk in CHUNKS]
        wavefront = {"batch": index_of(self.samples, self.largest), "chunks": units}
        return {"whole": whole, "lines": lines, "layers": self._layers(), "wavefront": wavefront}

    # Layers

    def _layers(self) -> dict[str, dict[str, dict]]:
        parts = self.model.parts
        layers = [*parts.encoder_layers, *(() if self.model.feeding else parts.decoder_layers)]
        kinds = {kind_of(layer): layer for layer in layers}
        padded = any(full_steps(s) < len(s) for batch in self.shapes for s in batch)
        tables = {}
        for kind, layer in kinds.items():
            progress(f"LSTM layer {kind}")
            runs = {"dense": run_dense, "packed": run_packed, "split": run_split}
            if layer.bidirectional or not padded:
                del runs["dense" if layer.bidirectional else "packed"]
            if not can_split(layer):
                del runs["split"]
            tables[kind] = {name: self._table(layer, run) for name, run in runs.items()}
        return tables

    def _table(self, layer: LSTMLayer, run: Callable[..., Sequence[float]]) -> dict[str, Any]:
        sentences = sorted({max(1, round(share * self.sentences)) for share in SHARES})
        grid = [[medians(functools.partial(run, layer, t, b)) for b in sentences] for t in STEPS]
        times = ([list(column) for column in zip(*map(list, row))] for row in grid)
        named = zip(("forward", "backward", "weights"), map(list, zip(*times)))
        return {"steps": STEPS, "sentences": sentences, **dict(named)}

    # The rest of an update

    def _half_and_whole(self) -> list[dict]:
        half = {key: _thin_out(value) for key, value in self.largest.items()}
        half["net_input"] = {k: _thin_out(v) for k, v in self.largest["net_input"].items()}
        half["ntokens"] = shape(half, self.model.parts).rows("decoder")
        return [half, self.largest]

    def _head(self, sample: dict) -> tuple[int, Sequence[float]]:
        return sample["ntokens"], medians(lambda: self._run_head(sample))

    def _run_head(self, sample: dict) -> Pair:
        stand_in = HeadOnly(self.model, sample)
        return pair_of(lambda: self.trainer.criterion(stand_in, sample)[0], Tensor.backward)

    def _output_seconds(self, rows: int) -> float:
        """The gradient of the output weights, as late_gradients.py computes it."""
        output = self.model.parts.head.output
        x, dy = torch.randn(rows, output.in_features), torch.randn(rows, output.out_features)
        return seconds_of(lambda: linear(dy.t(), x.t()))

    def _unit_seconds(self, chunk: int) -> float:
        """Forward and backward as a wavefront with a single stage."""
        self.parallel.chunk = chunk
        wrapper, criterion = ModuleProxyWrapper(self.parallel), self.trainer.criterion
        return seconds_of(lambda: criterion(wrapper, self.largest)[0].backward())

    def _embed(self, sample: dict) -> tuple[int, Sequence[float]]:
        parts, words = self.model.parts, sample["net_input"]
        sides = [(parts.embed_source, words["src_tokens"].flatten())]
        if not self.model.feeding:
            sides.append((parts.embed_target, words["prev_output_tokens"].flatten()))

        def run() -> Pair:
            self.model.module.zero_grad()
            return pair_of(
                lambda: [embed(tokens) for embed, tokens in sides],
                lambda xs: torch.autograd.backward(xs, [torch.ones_like(x) for x in xs]),
            )

        return sum(tokens.numel() for _, tokens in sides), medians(run)

    def _copy_seconds(self) -> float:
        pieces = [torch.ones(COPIED // 4 // FLOAT) for _ in range(4)]
        return seconds_of(lambda: torch.cat(pieces))

    def _step_seconds(self) -> float:
        for p in self.model.module.parameters():
            p.grad = torch.full_like(p, 1e-4) if p.requires_grad else None

        def step() -> None:
            self.trainer.optimizer.multiply_grads(0.5)
            self.trainer.clip_grad_norm(self.clip)
            self.trainer.optimizer.step()
            self.trainer.zero_grad()

        return seconds_of(step)

    def _update_seconds(self, sample: dict) -> float:
        return seconds_of(lambda: self.trainer.train_step([sample]))

    # Contention

    def together(self) -> dict[str, float]:
        """How much longer a kind of work takes while all workers do it."""
        layer, half = self.model.parts.encoder_layers[-1], self._half_and_whole()[0]
        jobs = {
            FORWARD: lambda: sum(run_layer(layer, STEPS[1], self.sentences, layer.bidirectional)),
            HEAD: lambda: sum(self._run_head(half)),
            COPY: self._step_seconds,
        }
        progress(f"{dist.get_world_size()} workers at once")
        return {kind: slow_down(job) for kind, job in jobs.items()}

    def data_parallel(self, whole: list[float] | None) -> list[float]:
        """Seconds of updates of all workers under legacy_ddp, on the first batches; worker 0 knows
        how long one of its own takes."""
        workers, rank = dist.get_world_size(), dist.get_rank()
        least, most = TURNS
        turns = [whole and min(most, max(least, int(TURNS_BUDGET / TIMED_UPDATES / whole[0])))]
        dist.broadcast_object_list(turns)
        progress(f"{turns[0]} data-parallel updates")
        trainer, seconds = build_trainer(self.cfg, workers), []
        for first in range(0, len(self.samples), workers)[:TIMED_UPDATES]:
            mine = [self.samples[(first + rank) % len(self.samples)]]
            seconds.append(together(functools.partial(trainer.train_step, mine), turns[0]))
        return seconds


def build_trainer(cfg: Any, workers: int) -> HybridTrainer:
    """Of this worker alone, or of all of them under legacy_ddp."""
    cfg = copy.deepcopy(cfg)
    dt = cfg.distributed_training
    dt.distributed_world_size, dt.ddp_backend = workers, DATA_PARALLEL
    task = tasks.setup_task(cfg.task)
    module = task.build_model(cfg.model)
    module.train()
    trainer = HybridTrainer(cfg, task, module, task.build_criterion(cfg.criterion))
    trainer.begin_epoch(1)
    return trainer


class HeadOnly:
    """Stands in for the model in a criterion: the results of its LSTM layers are given."""

    def __init__(self, model: Model, sample: dict):
        self.model, words = model, sample["net_input"]
        parts, tgt = model.parts, words["prev_output_tokens"]
        self.words = tgt
        self.src = Packing.from_tokens(words["src_tokens"], parts.source_pad)
        self.tgt = Packing.from_tokens(tgt, parts.target_pad)
        self.enc_MH = self._random(self.src.rows_N.numel())
        self.dec_NH = self._random(self.tgt.rows_N.numel())
        self.states = [(self._random(tgt.size(0)), self._random(tgt.size(0)))
                       for _ in range(model.layers)]  # fmt: skip

    def _random(self, rows: int) -> Tensor:
        return torch.randn(rows, self.model.hidden, requires_grad=True)

    def __call__(self, features_only: bool = False, **_: Any) -> tuple[Tensor, dict]:
        parts, how = self.model.parts, {"features_only": features_only}
        if self.model.feeding:
            return parts.decode(self.words, self.enc_MH, self.src, self.states, **how)
        vectors, attention = parts.head.vectors(self.dec_NH, self.tgt, self.enc_MH, self.src)
        score = parts.head.features if features_only else parts.head.logits
        return parts.net_output(score(vectors), attention, self.tgt)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model.module, name)


def run_layer(layer: LSTMLayer, steps: int, sentences: int, packed: bool) -> Pair:
    """One pass over a unit; packed: over sentences that end one after the other."""
    sizes = falling(steps, sentences) if packed else torch.full((steps,), sentences)
    first = int(sizes[0])
    x = torch.randn(int(sizes.sum()), layer.lstm.input_size, requires_grad=True)
    h, c = (torch.zeros(first, layer.hidden_size, requires_grad=True) for _ in range(2))

    def forward() -> Tensor:
        if packed and not layer.bidirectional:
            return layer.dropout(layer.lstm(PackedSequence(x, sizes), (h[None], c[None]))[0].data)
        return layer(x, sizes, None if layer.bidirectional else (h, c))[0]

    return pair_of(forward, lambda y: y.backward(torch.ones_like(y)))


run_dense = functools.partial(run_layer, packed=False)
run_packed = functools.partial(run_layer, packed=True)


def run_split(layer: LSTMLayer, steps: int, sentences: int) -> tuple[float, float, float]:
    """The same as a stage of a wavefront does it, and the gradients of the weights."""
    packing = Packing.from_tokens(torch.ones(sentences, steps, dtype=torch.long), pad=0)
    split = SplitLayer(layer, packing, torch.randn(steps * sentences, layer.lstm.input_size), None)
    forward = seconds_of(lambda: split.forward(0, steps))
    split.begin_backward(None)
    backward = seconds_of(lambda: split.backward(0, steps, torch.ones_like(split.h_NH)))
    return forward, backward, seconds_of(split.weight_gradients)


def falling(steps: int, mean: int) -> Tensor:
    """Batch sizes that fall to 1, with this mean."""
    return torch.linspace(2 * mean - 1, 1, steps).round().long()


def index_of(samples: list[dict], one: dict) -> int:
    """(`index` would compare the tensors in them.)"""
    return next(i for i, sample in enumerate(samples) if sample is one)


def _thin_out(value: Any) -> Any:
    """Every second sentence."""
    return value[::2] if torch.is_tensor(value) and value.dim() else value


def lines_of(name: str, points: Sequence[tuple[int, Sequence[float]]]) -> dict[str, Line]:
    """Seconds by rows, in both directions."""
    return {
        name: Line.through([(rows, pair[0]) for rows, pair in points]),
        f"{name} back": Line.through([(rows, pair[1]) for rows, pair in points]),
    }

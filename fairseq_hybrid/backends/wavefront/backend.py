"""``--ddp-backend hybrid`` and ``model_parallel``: LSTM layers spread over workers.

The workers form a grid, replicas x stages. A stage has some of the encoder layers and the decoder
layers that start from their states; the workers of a group, one per stage, pass the batches of all
of them through their layers as a wavefront in time (schedule.py, wavefront.py). Then

* hybrid          every worker computes attention, softmax and loss of its own batch, and the
                  gradients of that part are summed while the reverse wavefront runs;
* model_parallel  the last stage does so for all batches.

Gradients, optimizer state and checkpoints: ownership.py. In evaluation the wrapper is the model
itself. One update is the same, up to the order of summation, as under ``legacy_ddp``.

    fairseq-train ... --arch hybrid_lstm --ddp-backend hybrid --distributed-world-size 4
"""

from __future__ import annotations

import functools
import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from fairseq_hybrid.backends import row_sets
from fairseq_hybrid.backends.base import Backend, Sample, with_gradient
from fairseq_hybrid.backends.registry import register_backend
from fairseq_hybrid.backends.wavefront import executor as wavefront
from fairseq_hybrid.backends.wavefront import schedule
from fairseq_hybrid.backends.wavefront.options import (
    check,
    layer_ranges,
    stacked,
    stages_of,
)
from fairseq_hybrid.backends.wavefront.ownership import Group, Ownership
from fairseq_hybrid.backends.wavefront.report import Report
from fairseq_hybrid.backends.wavefront.schedule import DECODER, ENCODER, STATE, TOP, UP, WHOLE
from fairseq_hybrid.backends.wavefront.shared import Shared
from fairseq_hybrid.backends.wavefront.simulate import (
    SimulatedUpdate,
    UpdateCosts,
    simulate,
    synchronous,
)
from fairseq_hybrid.comm.lanes import Lanes, flatten
from fairseq_hybrid.comm.stopwatch import COMPUTE, SEND, WAIT, Stopwatch
from fairseq_hybrid.comm.sums import ring_bytes
from fairseq_hybrid.config import AUTO, DECOUPLED
from fairseq_hybrid.models.late_gradients import LateGradients
from fairseq_hybrid.models.packing import Packing
from fairseq_hybrid.models.parallel_parts import ParallelParts
from fairseq_hybrid.models.split_lstm import can_split
from fairseq_hybrid.optim.optimizer import GradientGroup, HybridOptimizer
from fairseq_hybrid.optim.rows import parts, sparse_rows

logger = logging.getLogger(__name__)

UNIT_OVERHEAD = 48
"""rows whose computation takes as long as what a unit costs beside them (reading the weights and
adding to their gradients): a rough figure for CPU"""
SPLIT_OVERHEAD = 8
"""the same where the weights' gradients come at the end (models/split_lstm.py)"""
CHUNKS = (1, 2, 3, 4, 6, 8, 12, 16, 32, 64)
"""lengths to choose from"""


SEED_STEP = 1_000_003
"""between the seeds of two workers: more than there are updates"""


@register_backend(
    "hybrid",
    help="LSTM layers spread over the workers, attention and softmax data-parallel",
    check=check,
)
def hybrid(cfg, model, process_group, device):
    return build(cfg, model, process_group, device, head_on_last=False)


@register_backend(
    "model_parallel",
    help="LSTM layers spread over the workers, attention and softmax on the last one",
    check=check,
)
def model_parallel(cfg, model, process_group, device):
    return build(cfg, model, process_group, device, head_on_last=True)


def build(cfg, model, process_group, device, head_on_last) -> nn.Module:
    wrapper, more = WavefrontParallel, {}
    if cfg.hybrid_schedule == DECOUPLED:
        from fairseq_hybrid.backends.wavefront.decoupled import (
            DecoupledParallel,  # made of what is here
        )

        wrapper, more = DecoupledParallel, {"shrink": cfg.decoupled_shrink}
    return wrapper(
        model.to(device),
        process_group,
        stages=stages_of(cfg),
        depths=[int(n) for n in cfg.hybrid_layers.split(",")] if cfg.hybrid_layers else None,
        chunk=None if cfg.hybrid_chunk == "auto" else int(cfg.hybrid_chunk),
        head_on_last=head_on_last,
        share_memory=cfg.sums_through == AUTO,
        trace=cfg.hybrid_trace,
        **more,
    )


class WavefrontParallel(Backend):
    """The model, its layers spread over the workers while it trains."""

    takes_row_gradients = True
    sharded = saves_together = True
    needs_every_batch = True  # the workers depend on each other within an update

    def __init__(
        self,
        module: nn.Module,
        process_group: Any,
        *,
        stages: int,
        depths: Sequence[int] | None = None,
        chunk: int | None = None,
        head_on_last: bool = False,
        share_memory: bool = True,
        trace: str | None = None,
    ):
        """`depths`: how many of the encoder layers each stage has (None: equal shares); `trace`: a
        file for a timeline."""
        super().__init__(module, process_group)
        self.chunk, self.head_on_last, self.share_memory = chunk, head_on_last, share_memory
        self.parts: ParallelParts = module.parallel_parts()
        self.watch = Stopwatch()
        self.empty = False
        """whether this worker has no batch left and only keeps the others company"""
        self.row_notes: dict[nn.Parameter, list[Tensor]] = {}
        """rows of shared parameters that get a gradient in this update, where not all do"""
        self.replica_bytes = 0
        self.ideal = 1.0
        self.chunks: dict[tuple, int] = {}
        """shape of batches → the best length of chunks"""
        self.late_gradients = LateGradients()
        self.postpones = False
        """whether the output weights' gradient of this batch can come late"""
        self.between = wavefront.Between(self._at_turn, self._late_gradients)
        layers = len(self.parts.encoder_layers)
        self.ranges = stacked(depths) if depths else layer_ranges(layers, stages)
        self.splits = False
        """whether the layers' weights get their gradients when all units are done"""
        self._make_groups(process_group, stages)
        self._place_layers()
        self.report = Report(self, trace)

    # Set-up

    def _make_groups(self, process_group: Any, stages: int) -> None:
        world, rank = dist.get_world_size(), dist.get_rank()
        grid = [list(range(first, first + stages)) for first in range(0, world, stages)]
        columns = [list(ranks) for ranks in zip(*grid)]
        self.world, self.replicas = world, len(grid)
        make = dist.new_subgroups_by_enumeration
        self.group = Group(
            stage=rank % stages,
            ranks=grid[rank // stages],
            handle=make(grid)[0],
            meta=make(grid, backend="gloo")[0],
        )
        self.column = make(columns)[0] if self.replicas > 1 else None
        self.everyone_meta = dist.new_group(backend="gloo")
        last, homes = stages - 1, [stages - 1] if self.head_on_last else range(stages)
        wanted = [(s, s + 1, UP) for s in range(last)]
        wanted += [(last, home, TOP) for home in homes if home != last]
        if not self.parts.decoder_splits:
            wanted += [(s, h, STATE) for s in range(stages) for h in homes if s != h]
        wanted += [(target, source, kind) for source, target, kind in wanted]
        self.lanes = Lanes(grid, self.group.handle, wanted)

    def _place_layers(self) -> None:
        parts, stages = self.parts, len(self.group.ranks)
        mine, whole = self.ranges[self.group.stage], parts.whole_sentence_layers
        encoder = [parts.encoder_layers[i] for i in mine]
        wholes = encoder[:whole] if self.group.stage == 0 else []
        self.stage = wavefront.Stage(
            index=self.group.stage,
            count=stages,
            layers={
                WHOLE: wholes,
                ENCODER: encoder[len(wholes) :],
                DECODER: [parts.decoder_layers[i] for i in mine] if parts.decoder_splits else [],
            },
            depths=[len(r) for r in self.ranges],
            hidden=parts.encoder_layers[-1].hidden_size,
            embed={ENCODER: parts.embed_source, DECODER: parts.embed_target},
            decodes=parts.decoder_splits,
            lanes=self.lanes,
            watch=self.watch,
        )
        users = users_of(self.module.parameters(), parts, self.ranges, self.head_on_last)
        self.ownership = Ownership(self.module, owners(users, parts), self.group)
        self.last_has_output = self.ownership.owners[parts.head.output.weight] == stages - 1
        self.after_units = set(self.ownership.owned) if self.stage.last else set()
        """whose gradients nobody else waits for, so that they can be computed at the end"""
        self.shared = Shared(users, self.ownership, self.watch, share_memory=self.share_memory)

    # Training

    def begin_update(self, number: int) -> None:
        super().begin_update(number)
        self.report.begin(number)

    def metrics(self) -> dict[str, float]:
        return self.report.end()

    def seed(self, seed: int) -> int:
        """Another one on every worker: they have layers of one model, and with one seed their
        dropouts would leave out the same units of the same words."""
        return seed + SEED_STEP * dist.get_rank()

    def prepare_sample(self, sample: Sample, dummy: bool) -> tuple[Sample, bool]:
        """The last stage may compute the loss of all batches. If its own is empty fairseq would
        not count that loss: so its batch counts nothing, and the stage leaves its rows out."""
        if not self.head_on_last:
            return sample, dummy
        self.empty = dummy
        sample = {**sample, "net_input": {**sample["net_input"], "target": sample["target"]}}
        if dummy:
            sample = {**sample, "ntokens": 0, "nsentences": 0, "target": sample["target"][:0]}
        return sample, False

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Tensor,
        prev_output_tokens: Tensor,
        features_only: bool = False,
        target: Tensor | None = None,
    ):
        """`target`: of this batch, for the stage that computes the loss of all of them."""
        if not (self.training and torch.is_grad_enabled()):
            return self.module(src_tokens, src_lengths, prev_output_tokens, features_only)
        autocast = torch.is_autocast_enabled(src_tokens.device.type)
        layers = self.parts.encoder_layers[self.parts.whole_sentence_layers :]
        self.splits = all(map(can_split, layers))
        by_rows = self.parts.target_embedding.sparse  # criterions/sampled_softmax.py
        self.postpones = self.stage.decodes and not (by_rows or autocast)
        self.shared.start_refresh()
        with self.watch.span(SEND, "exchange batches"):
            more = (target,) if self.head_on_last else ()
            tokens = self._exchange(src_tokens, prev_output_tokens, *more)
        batches = self._batches(tokens, src_tokens.device)
        plan = self._plan(batches)
        tops = self._wavefront(plan, batches)
        self.shared.finish_refresh()
        if by_rows and not self.stage.decodes:  # everyone looks up words of its own batch
            words = torch.cat([tgt.flatten() for _, tgt, *_ in tokens]).to(src_tokens.device)
            self._note_rows(self.parts.target_embedding.weight, words)
        return self._heads(tops, tokens, batches, features_only)

    def _wavefront(self, plan: schedule.Schedule, batches: list[wavefront.Batch]) -> list[Tensor]:
        """What the heads need of the forward pass; the backward pass starts from that."""
        self.ideal = self._simulated(plan, batches).efficiency
        return wavefront.run(self.stage, plan, batches, self.between)

    def _exchange(self, *texts: Tensor) -> list[list[Tensor]]:
        """Source, target (and whatever is given) words of all batches of the group, on the host."""
        meta, workers = self.group.meta, self.stage.count
        shape = torch.tensor([*(n for text in texts for n in text.shape), self.empty])
        shapes = [torch.empty_like(shape) for _ in range(workers)]
        dist.all_gather(shapes, shape, group=meta)
        shapes = [s.tolist() for s in shapes]
        self.empty_batches = [bool(shape.pop()) for shape in shapes]
        shapes = [list(zip(shape[::2], shape[1::2])) for shape in shapes]
        sizes = [[rows * columns for rows, columns in shape] for shape in shapes]
        words = torch.zeros(max(map(sum, sizes)), dtype=torch.int32)
        words[: sum(text.numel() for text in texts)] = torch.cat([t.flatten() for t in texts]).cpu()
        gathered = [torch.empty_like(words) for _ in range(workers)]
        dist.all_gather(gathered, words, group=meta)
        return [
            [part.view(at) for part, at in zip(got[: sum(size)].long().split(size), shape)]
            for got, size, shape in zip(gathered, sizes, shapes)
        ]

    def _batches(
        self, tokens: Sequence[Sequence[Tensor]], device: torch.device
    ) -> list[wavefront.Batch]:
        packings = [
            {
                ENCODER: Packing.from_tokens(src, self.parts.source_pad),
                DECODER: Packing.from_tokens(tgt, self.parts.target_pad),
            }
            for src, tgt, *_ in tokens
        ]
        parts = (ENCODER, DECODER) if self.stage.decodes else (ENCODER,)
        chunk = self.chunk or self._chunk_length(
            [{part: p[part] for part in parts} for p in packings]
        )
        last = self.stage.count - 1
        batches = []
        for i, (packing, pair) in enumerate(zip(packings, tokens)):
            steps = {part: packing[part].steps for part in parts}
            cuts = {
                part: [*range(0, n, chunk if self.chunk else schedule.even(n, chunk))]
                for part, n in steps.items()
            }
            words = dict(zip((ENCODER, DECODER), pair))
            batches.append(
                wavefront.Batch(
                    home=last if self.head_on_last else i,
                    packing={part: p.to(device) for part, p in packing.items()},
                    tokens={
                        part: packing[part].pack(words[part]).to(device)
                        for part in (parts if self.stage.first else ())
                    },
                    cuts={
                        part: [*cuts[part], packing[part].steps] if part in cuts else [0]
                        for part in packing
                    },
                )
            )
        return batches

    def _chunk_length(self, packings: Sequence[Mapping[str, Packing]]) -> int:
        """The one with which the simulated update is shortest, of batches that are all alike and
        about as these are on average: so it need not be found anew for every update."""
        many, parts = len(packings), packings[0]
        steps = {part: _rough(sum(p[part].steps for p in packings) / many) for part in parts}
        rows = {part: sum(p[part].rows_N.numel() for p in packings) / many for part in parts}
        sentences = _rough(sum(rows.values()) / max(sum(steps.values()), 1))
        key = many, sentences, *steps.items()
        if key not in self.chunks:
            longest = max(steps.values())
            lengths = sorted({min(length, longest) for length in CHUNKS})
            self.chunks[key] = min(lengths, key=lambda n: self._seconds(many, steps, sentences, n))
        return self.chunks[key]

    def _seconds(self, many: int, steps: Mapping[str, int], sentences: int, length: int) -> float:
        """What an update of `many` batches without padding takes, in the simulation's units."""
        last = self.stage.count - 1
        batches = [
            EvenBatch(last if self.head_on_last else i, dict(steps), sentences, length)
            for i in range(many)
        ]
        return self._simulated_seconds(self._plan(batches), batches)

    def _simulated_seconds(self, plan: schedule.Schedule, batches: Sequence[Any]) -> float:
        return self._simulated(plan, batches).seconds

    def _simulated(self, plan: schedule.Schedule, batches: Sequence[Any]) -> SimulatedUpdate:
        late = {plan.stages - 1} if self.last_has_output and self.postpones else ()
        return simulate(synchronous(plan, late), self._update_costs(batches))

    def _plan(self, batches: Sequence[Any]) -> schedule.Schedule:
        return schedule.wavefront(
            self.stage.count,
            [(b.chunks(ENCODER), b.chunks(DECODER)) for b in batches],
            [batch.home for batch in batches],
            whole=self.parts.whole_sentence_layers > 0,
            states_home=not self.stage.decodes,
        )

    def _update_costs(self, batches: Sequence[Any]) -> UpdateCosts:
        """A layer's forward pass over a row is 1, and so is either half of its backward pass."""
        parts, output = self.parts, self.parts.head.output
        words = output.out_features * output.in_features / (8 * self.stage.hidden**2)
        overhead = SPLIT_OVERHEAD if self.splits else UNIT_OVERHEAD

        @functools.cache
        def unit(stage: int, unit: schedule.Unit) -> float:
            layers = self._layers(stage, unit)
            return self._cost(stage, unit, batches) + layers * overhead

        def rows(stage: int) -> int:
            return sum(batch.rows(DECODER) for batch in batches if batch.home == stage)

        def weights(stage: int) -> float:
            layers = self.stage.depths[stage]
            both = [part for part in (ENCODER, DECODER) if part == ENCODER or self.stage.decodes]
            return (
                self.splits * layers * sum(batch.rows(part) for batch in batches for part in both)
            )

        def head(stage: int) -> float:
            decoder = 0 if self.stage.decodes else 3 * len(parts.decoder_layers)
            return rows(stage) * ((3 if self.postpones else 4) * words + decoder)

        return UpdateCosts(
            forward=unit,
            backward=lambda stage, u: (1 if self.splits else 2) * unit(stage, u),
            weights=weights,
            head=head,
            output=lambda stage: self.postpones * rows(stage) * words,
        )

    def _cost(self, stage: int, unit: schedule.Unit, batches: Sequence[Any]) -> float:
        """Layers times rows."""
        rows = batches[unit.batch].chunk(unit)[0]
        return (rows.stop - rows.start) * self._layers(stage, unit)

    def _layers(self, stage: int, unit: schedule.Unit) -> int:
        layers, whole = self.stage.depths[stage], self.parts.whole_sentence_layers
        if unit.part == WHOLE:
            return whole
        return layers - whole if unit.part == ENCODER and stage == 0 else layers

    def _heads(self, tops: list[Tensor], tokens, batches: list[wavefront.Batch], features_only):
        """Attention, softmax and what fairseq gets to see, for the batches at home here."""
        home = [i for i, batch in enumerate(batches) if batch.home == self.stage.index]
        if not home:  # no rows, and the loss that is no loss starts the reverse pass
            output = self.parts.head.output
            width = output.in_features if features_only else output.out_features
            nothing = tops[0][:0].unsqueeze(1).expand(0, width)
            no_targets = torch.empty(0, dtype=torch.long, device=nothing.device)
            return nothing, {"attn": [None], "targets": no_targets}
        if not self.head_on_last:
            return self._head(tops, batches[home[0]], tokens[home[0]][1], features_only)
        scored, targets = [], []
        per_batch = len(tops) // len(home)
        for n, i in enumerate(home):
            mine = tops[n * per_batch : (n + 1) * per_batch]
            scored.append(self._vectors(mine, batches[i], tokens[i][1], features_only))
            packing, pad = batches[i].packing[DECODER], self.parts.target_pad
            targets.append(packed_targets(tokens[i][2], packing, pad, self.empty_batches[i]))
        rows = torch.cat(scored)
        if self.stage.decodes:
            rows = self.parts.head.features(rows) if features_only else self._logits(rows)
        return rows, {"attn": [None], "targets": torch.cat(targets)}

    def _head(self, tops: list[Tensor], batch: wavefront.Batch, words: Tensor, features_only):
        if not self.stage.decodes:
            return self._decode(tops, batch, words, features_only=features_only)
        (enc_MH, dec_NH), head = tops, self.parts.head
        src, tgt = batch.packing[ENCODER], batch.packing[DECODER]
        out_NH, attn_BTS = head.vectors(dec_NH, tgt, enc_MH, src)
        score = head.features if features_only else self._logits
        return self.parts.net_output(score(out_NH), attn_BTS, tgt)

    def _logits(self, out_NH: Tensor) -> Tensor:
        """`head.logits`, the gradient of its weights when there is time for it."""
        head = self.parts.head
        return self.late_gradients.linear(head.output, head.features(out_NH))

    def _vectors(
        self, tops: list[Tensor], batch: wavefront.Batch, words: Tensor, features_only: bool
    ) -> Tensor:
        """What the head scores; with input feeding, which ends with that, the result."""
        if not self.stage.decodes:
            return self._decode(tops, batch, words, features_only=features_only)[0]
        src, tgt = batch.packing[ENCODER], batch.packing[DECODER]
        return self.parts.head.vectors(tops[1], tgt, tops[0], src)[0]

    def _decode(self, tops: list[Tensor], batch: wavefront.Batch, words: Tensor, **how):
        enc_MH, *stacks = tops
        states = [(h, c) for stack in stacks for h, c in zip(stack[::2], stack[1::2])]
        src = batch.packing[ENCODER]
        return self.parts.decode(words.to(enc_MH.device), enc_MH, src, states, **how)

    def get_targets(self, sample, net_output):
        """The targets of the rows `forward` gave logits for."""
        targets = net_output[1].get("targets")
        return self.module.get_targets(sample, net_output) if targets is None else targets

    # Gradients of some rows (criterions/sampled_softmax.py)

    def union_of_words(self, words: Tensor) -> Tensor:
        """The words that any worker has, in ascending order."""
        vocabulary = self.parts.head.output.out_features
        (union,), _ = row_sets.union([(words.cpu(), vocabulary)], self.everyone_meta)
        return union.to(words.device)

    def note_sample(self, words_S: Tensor) -> None:
        """The words, the same on all workers, whose output weights get a gradient."""
        self._note_rows(self.module.softmax_parameters()[0], words_S)

    def _note_rows(self, weight: nn.Parameter, rows: Tensor) -> None:
        self.row_notes.setdefault(weight, []).append(rows)

    # Gradients

    def _at_turn(self) -> None:
        self._late_gradients(but=self.after_units)
        self._start_reduce()

    def _late_gradients(self, **but: Any) -> None:
        with self.watch.span(COMPUTE, "output weights"):
            self.late_gradients.compute(**but)

    def _start_reduce(self) -> None:
        if not self.accumulating:
            noted, self.row_notes = self.row_notes, {}
            rows = {p: torch.cat(sets).unique() for p, sets in noted.items()}
            self.shared.start_reduce({p: r for p, r in rows.items() if p.requires_grad})

    def all_reduce_grads(self) -> None:
        """Complete the gradients: the mean over all workers, as under legacy_ddp.

        (The sum, unless `mean_gradients`: who scales them divides them with the rest.)
        """
        if self.accumulating:
            return
        self.shared.finish_reduce()
        owned = self.ownership.owned
        for p in owned:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            elif p.grad.is_sparse:
                p.grad = p.grad.coalesce()
        if self.column is not None and owned:
            self._sum_over_replicas(owned)
        if owned and self.mean_gradients:
            torch._foreach_div_([parts(p.grad) for p in owned], float(self.world))
        self.shared.tell_changed()
        self.ownership.dirty = True

    def _sum_over_replicas(self, owned: list[nn.Parameter]) -> None:
        sparse = [p for p in owned if p.grad.is_sparse]
        rows: dict[nn.Parameter, Tensor] = {}
        if sparse:
            sets = [(p.grad.indices()[0], p.size(0)) for p in sparse]
            unions, size = row_sets.union(sets, self.column)
            self.replica_bytes += 2 * (self.replicas - 1) * size // self.replicas
            rows = dict(zip(sparse, unions))
        blocks = [row_sets.split_off(p.grad, rows[p])[0] if p in rows else p.grad for p in owned]
        flat = flatten(blocks)
        with self.watch.span(WAIT, "sum over replicas"):
            dist.all_reduce(flat, group=self.column)
        self.replica_bytes += ring_bytes(flat, self.replicas)
        for p, block, total in zip(owned, blocks, flat.split([b.numel() for b in blocks])):
            total = total.view_as(block)
            p.grad = sparse_rows(rows[p], total, p) if p in rows else total

    def attach(self, optimizer: HybridOptimizer, criterion: nn.Module) -> None:
        super().attach(optimizer, criterion)
        self.mean_gradients = not optimizer.scales_once

    def gradient_groups(self, params: Sequence[nn.Parameter], factor: Any) -> list[GradientGroup]:
        """Those that this worker owns, then those that are the same on all workers."""
        owned = factor if self.mean_gradients else factor / self.world
        whole = with_gradient(self.criterion_params)
        return [(with_gradient(self.ownership.owned), owned), (whole, factor)]

    def grad_norm(self, groups: Sequence[GradientGroup]) -> Tensor:
        *shares, whole = groups
        return self.ownership.norm(shares, whole)

    # Validation, saving, loading

    def full_parameters(self, optimizer: HybridOptimizer, *averages: Mapping[str, Tensor]) -> None:
        self.ownership.refresh(*averages)

    def optimizer_state(self, optimizer: HybridOptimizer) -> dict[str, Any] | None:
        return self.ownership.gather_state(optimizer.inner)

    def load_optimizer_state(self, optimizer: HybridOptimizer) -> None:
        self.ownership.forget(optimizer.inner)

    @property
    def bytes_sent(self) -> int:
        return self.lanes.bytes_sent + self.shared.bytes_sent + self.replica_bytes


@dataclass(frozen=True)
class EvenBatch:
    """As much of a batch as a simulation needs, all of its sentences of one length."""

    home: int
    steps: dict[str, int]
    sentences: int
    length: int
    """of a chunk"""

    def chunks(self, part: str) -> int:
        return -(-self.steps.get(part, 0) // self.length)

    def rows(self, part: str) -> int:
        return self.steps.get(part, 0) * self.sentences

    def chunk(self, unit: schedule.Unit) -> tuple[slice, None]:
        steps = self.steps[ENCODER if unit.part == WHOLE else unit.part]
        chunks = 1 if unit.part == WHOLE else -(-steps // self.length)
        return slice(0, -(-steps // chunks) * self.sentences), None


def _rough(number: float) -> int:
    """To two binary digits after the first: neighbours share one simulation."""
    grain = 2 ** max(int(number).bit_length() - 3, 0)
    return max(round(number / grain) * grain, 1)


def users_of(
    parameters: Iterable[nn.Parameter],
    parts: ParallelParts,
    ranges: Sequence[range],
    head_on_last: bool,
) -> dict[nn.Parameter, set[int]]:
    """Parameter → the stages that compute with it."""
    users: dict[nn.Parameter, set[int]] = {p: set() for p in parameters}
    last = len(ranges) - 1
    heads = {last} if head_on_last else set(range(last + 1))

    def use(module: nn.Module, stages: set[int]) -> None:
        for p in module.parameters():
            users[p] |= stages

    for stage, layers in enumerate(ranges):
        for i in layers:
            use(parts.encoder_layers[i], {stage})
            use(parts.decoder_layers[i], {stage} if parts.decoder_splits else heads)
    use(parts.source_embedding, {0})
    use(parts.target_embedding, {0} if parts.decoder_splits else heads)
    use(parts.head, heads)
    return users


def owners(users: dict[nn.Parameter, set[int]], parts: ParallelParts) -> dict[nn.Parameter, int]:
    """Who keeps gradient and optimizer state: of the users, the one with the least to keep so far,
    but stage 0 for the embeddings, which it needs when an update begins."""
    first = {id(parts.source_embedding.weight)}
    if parts.decoder_splits:
        first.add(id(parts.target_embedding.weight))
    chosen: dict[nn.Parameter, int] = {}
    load: dict[int, int] = defaultdict(int)
    for p, stages in sorted(users.items(), key=lambda item: (len(item[1]), -item[0].numel())):
        chosen[p] = 0 if id(p) in first else min(stages or {0}, key=lambda s: (load[s], -s))
        load[chosen[p]] += p.numel()
    return chosen


def packed_targets(target_BT: Tensor, packing: Packing, pad: int, empty: bool) -> Tensor:
    """The targets of a batch's rows, where its packing is; of an empty batch's, padding, which
    criterions leave out."""
    words = torch.full_like(target_BT, pad) if empty else target_BT
    return packing.pack(words.to(packing.rows_N.device))

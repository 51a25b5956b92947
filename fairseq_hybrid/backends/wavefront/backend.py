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

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from fairseq_hybrid.backends import row_sets
from fairseq_hybrid.backends.base import Backend, Sample, with_gradient
from fairseq_hybrid.backends.registry import register_backend
from fairseq_hybrid.backends.wavefront.builders import synchronous
from fairseq_hybrid.backends.wavefront.costs import (
    EvenBatch,
    UpdateCosts,
    agree,
    measure,
    measure_link,
    rough,
)
from fairseq_hybrid.backends.wavefront.executor import Executor
from fairseq_hybrid.backends.wavefront.flow import Batch, Flow, Stage
from fairseq_hybrid.backends.wavefront.options import (
    check,
    layer_ranges,
    stacked,
    stages_of,
)
from fairseq_hybrid.backends.wavefront.ownership import Group, Ownership
from fairseq_hybrid.backends.wavefront.placement import owned_rows, users_of
from fairseq_hybrid.backends.wavefront.report import Report
from fairseq_hybrid.backends.wavefront.schedule import (
    DECODER,
    ENCODER,
    WHOLE,
    Schedule,
    Shape,
    even,
)
from fairseq_hybrid.backends.wavefront.shared import Shared, can_share
from fairseq_hybrid.backends.wavefront.simulate import Timeline, simulate
from fairseq_hybrid.comm.stopwatch import SEND, WAIT, Stopwatch
from fairseq_hybrid.comm.sums import ring_bytes
from fairseq_hybrid.comm.transport import Transport, flatten
from fairseq_hybrid.config import AUTO, BF16, DECOUPLED, SLICED
from fairseq_hybrid.models.late_gradients import LateGradients
from fairseq_hybrid.models.packing import Packing
from fairseq_hybrid.models.parallel_parts import ParallelParts
from fairseq_hybrid.models.split_lstm import can_split
from fairseq_hybrid.optim.optimizer import GradientGroup, HybridOptimizer
from fairseq_hybrid.optim.rows import parts, sparse_rows

logger = logging.getLogger(__name__)

CHUNKS = (1, 2, 3, 4, 6, 8, 12, 16, 32, 64)
"""lengths to choose from"""
SEED_STEP = 1_000_003
"""between the seeds of two workers: more than there are updates"""


@register_backend(
    "hybrid",
    help="LSTM layers spread over the workers, attention and softmax data-parallel",
    validate=check,
)
def hybrid(cfg, model, process_group, device):
    return build(cfg, model, process_group, device, head_on_last=False)


@register_backend(
    "model_parallel",
    help="LSTM layers spread over the workers, attention and softmax on the last one",
    validate=check,
)
def model_parallel(cfg, model, process_group, device):
    return build(cfg, model, process_group, device, head_on_last=True)


def build(cfg, model, process_group, device, head_on_last) -> nn.Module:
    wrapper: type[WavefrontParallel] = WavefrontParallel
    more: dict[str, Any] = {}
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
        slices=cfg.hybrid_head == SLICED,
        dtype=torch.bfloat16 if cfg.hybrid_messages == BF16 else None,
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
        slices: bool | Sequence[float] = True,
        dtype: torch.dtype | None = None,
    ):
        """`depths`: how many of the encoder layers each stage has (None: equal shares); `trace`: a
        file for a timeline; `slices`: whether what all stages use is cut, or in which shares;
        `dtype`: what activations and gradients are rounded to on their way."""
        super().__init__(module, process_group)
        self.slices, self.dtype = slices, dtype
        self.chunk, self.head_on_last, self.share_memory = chunk, head_on_last, share_memory
        self.parts: ParallelParts = module.parallel_parts()
        self.watch = Stopwatch()
        self.empty = False
        """whether this worker has no batch left and only keeps the others company"""
        self.replica_bytes = 0
        self.ideal = 1.0
        self.chosen: dict[tuple, tuple[int, float, tuple[int, ...]]] = {}
        """shape of batches → the best length of chunks, the simulated efficiency, and the stages
        whose output weights' gradient comes late"""
        self.late_gradients = LateGradients()
        self.late: tuple[int, ...] = ()
        self.postpones = False
        """whether the output weights' gradient of this batch can come late"""
        layers = len(self.parts.encoder_layers)
        self.ranges = stacked(depths) if depths else layer_ranges(layers, stages)
        self.splits = False
        """whether the layers' weights get their gradients when all units are done"""
        self._make_groups(process_group, stages)
        self._place_layers()
        self.report = Report(self, trace)
        self._measure()

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
        self.transport = Transport(self.group.ranks, make(grid)[0], self.dtype)

    def _place_layers(self) -> None:
        parts, stages = self.parts, len(self.group.ranks)
        mine, whole = self.ranges[self.group.stage], parts.whole_sentence_layers
        encoder = [parts.encoder_layers[i] for i in mine]
        wholes = encoder[:whole] if self.group.stage == 0 else []
        self.stage = Stage(
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
            watch=self.watch,
        )
        users = users_of(self.module.parameters(), parts, self.ranges, self.head_on_last)
        share = self.share_memory and self.dtype is None
        share = share and can_share(self.group, list(self.module.parameters()))
        slices = self.slices
        if slices is True and not share:  # where links are what is short, all have as much to send
            slices = [1.0] * stages
        rows = owned_rows(users, parts, stages, slices)
        self.ownership = Ownership(self.module, rows, self.group)
        self.shared = Shared(
            users, self.ownership, self.watch, share_memory=share, dtype=self.dtype
        )

    def _measure(self) -> None:
        """Open all communicators, in one order on all workers, and learn what things cost."""
        for channel in (self.transport, self.shared):
            channel.open(self.ownership.device)
        for group in (self.group.handle, *([self.column] if self.column is not None else [])):
            dist.all_reduce(torch.zeros(1, device=self.ownership.device), group=group)
        layer, output = self.parts.encoder_layers[-1], self.parts.head.output
        rank = dist.get_rank()
        mine = measure(layer, output) if rank == 0 else [0.0] * 7
        like = output.weight.detach()
        link = measure_link(self.group.ranks, self.transport.group, like)
        self.measured = agree([*mine, *link], self.everyone_meta)

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
        with self.watch.span(SEND, "exchange batches"):
            more = (target,) if self.head_on_last else ()
            tokens = self._exchange(src_tokens, prev_output_tokens, *more)
        batches = self._batches(tokens, src_tokens.device)
        self.shared.accumulating = self.accumulating
        tops = self._executor(batches).run()
        if by_rows and not self.stage.decodes:  # everyone looks up words of its own batch
            words = torch.cat([tgt.flatten() for _, tgt, *_ in tokens]).to(src_tokens.device)
            self.shared.note_rows(self.parts.target_embedding.weight, words)
        return self._heads(tops, tokens, batches, features_only)

    def _executor(self, batches: list[Batch]) -> Executor:
        """Of the update that these batches belong to."""
        flows = {0: Flow(self.stage, batches)}
        return self._execute(synchronous(self._shape(batches), self.late), flows)

    def _execute(self, plan: Schedule, flows: dict[int, Flow]) -> Executor:
        late = self._late_gradients
        return Executor(self.stage, plan, flows, self.transport, self.shared, late)

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

    def _batches(self, tokens: Sequence[Sequence[Tensor]], device: torch.device) -> list[Batch]:
        packings = [
            {
                ENCODER: Packing.from_tokens(src, self.parts.source_pad),
                DECODER: Packing.from_tokens(tgt, self.parts.target_pad),
            }
            for src, tgt, *_ in tokens
        ]
        parts = (ENCODER, DECODER) if self.stage.decodes else (ENCODER,)
        chunk = self._choose([{part: p[part] for part in parts} for p in packings])
        last = self.stage.count - 1
        batches = []
        for i, (packing, pair) in enumerate(zip(packings, tokens)):
            steps = {part: packing[part].steps for part in parts}
            cuts = {
                part: [*range(0, n, chunk if self.chunk else even(n, chunk))]
                for part, n in steps.items()
            }
            words = dict(zip((ENCODER, DECODER), pair))
            batches.append(
                Batch(
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

    def _choose(self, packings: Sequence[Mapping[str, Packing]]) -> int:
        """The length of chunks with which the simulated update is shortest, of batches that are all
        alike and about as these are on average: so it need not be found anew for every update."""
        many, parts = len(packings), packings[0]
        steps = {part: rough(sum(p[part].steps for p in packings) / many) for part in parts}
        rows = {part: sum(p[part].rows_N.numel() for p in packings) / many for part in parts}
        sentences = rough(sum(rows.values()) / max(sum(steps.values()), 1))
        key = self.chunk, many, sentences, self.postpones, self.splits, *steps.items()
        if key not in self.chosen:
            longest, last = max(steps.values()), self.stage.count - 1
            lengths = [self.chunk] if self.chunk else sorted({min(n, longest) for n in CHUNKS})

            def tried(length: int, late: tuple[int, ...]) -> tuple[float, int, float, tuple]:
                homes = [last if self.head_on_last else i for i in range(many)]
                batches = [EvenBatch(home, steps, sentences, length) for home in homes]
                timeline = self._simulated(batches, late)
                return timeline.seconds, length, 1 - timeline.idle, late

            best = min(tried(length, ()) for length in lengths)
            if self.postpones:
                upper = [tuple(range(stage, last + 1)) for stage in range(1, last + 1)]
                best = min([best, *(tried(best[1], late) for late in upper)])
            self.chosen[key] = best[1:]
        chunk, self.ideal, self.late = self.chosen[key]
        return chunk

    def _simulated(self, batches: Sequence[Any], late: Sequence[int]) -> Timeline:
        plan, costs = synchronous(self._shape(batches), late), self._update_costs(batches)
        return simulate(plan.actions, costs, self.measured.link, self.stage.count)

    def _shape(self, batches: Sequence[Any]) -> Shape:
        return Shape(
            self.stage.count,
            tuple((b.chunks(ENCODER), b.chunks(DECODER)) for b in batches),
            tuple(batch.home for batch in batches),
            whole=self.parts.whole_sentence_layers > 0,
            states_home=not self.stage.decodes,
            owners=self.shared.owners,
            users=self.shared.users,
        )

    def _update_costs(self, batches: Sequence[Any]) -> UpdateCosts:
        size = (self.dtype or self.ownership.dtype).itemsize
        return UpdateCosts(
            self.measured,
            batches,
            depths=self.stage.depths,
            whole=self.parts.whole_sentence_layers,
            decodes=self.stage.decodes,
            decoder_layers=len(self.parts.decoder_layers),
            splits=self.splits,
            postpones=self.postpones,
            row_bytes=self.stage.hidden * size,
            slices=self.shared.slice_bytes,
        )

    def _heads(self, tops: list[Tensor], tokens, batches: list[Batch], features_only):
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

    def _head(self, tops: list[Tensor], batch: Batch, words: Tensor, features_only):
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
        self, tops: list[Tensor], batch: Batch, words: Tensor, features_only: bool
    ) -> Tensor:
        """What the head scores; with input feeding, which ends with that, the result."""
        if not self.stage.decodes:
            return self._decode(tops, batch, words, features_only=features_only)[0]
        src, tgt = batch.packing[ENCODER], batch.packing[DECODER]
        return self.parts.head.vectors(tops[1], tgt, tops[0], src)[0]

    def _decode(self, tops: list[Tensor], batch: Batch, words: Tensor, **how):
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
        self.shared.note_rows(self.module.softmax_parameters()[0], words_S)

    # Gradients

    def _late_gradients(self) -> None:
        self.late_gradients.compute()

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
        self.ownership.adopt(optimizer.optimizer)

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
        self.ownership.keep_share(optimizer.inner)

    @property
    def bytes_sent(self) -> int:
        return self.transport.bytes_sent + self.shared.bytes_sent + self.replica_bytes


def packed_targets(target_BT: Tensor, packing: Packing, pad: int, empty: bool) -> Tensor:
    """The targets of a batch's rows, where its packing is; of an empty batch's, padding, which
    criterions leave out."""
    words = torch.full_like(target_BT, pad) if empty else target_BT
    return packing.pack(words.to(packing.rows_N.device))

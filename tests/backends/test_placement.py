"""Which stage computes with a parameter, and which one owns which of its rows."""

from __future__ import annotations

import pytest
import torch
from hybrid_lstm_reference import TinyTask, tiny_model

from fairseq_hybrid.backends.wavefront.options import layer_ranges
from fairseq_hybrid.backends.wavefront.placement import cut, owned_rows, users_of

VARIANTS: list[dict] = [
    {},
    {"input_feeding": True},
    {"share_all_embeddings": True},
    {"share_decoder_input_output_embed": True, "decoder_out_embed_dim": 5},
    {"share_all_embeddings": True, "input_feeding": True},
]
HEAD = "decoder.head.output.weight"


class Placed:
    def __init__(self, stages: int, options: dict, slices=True, head_on_last: bool = False):
        model = tiny_model(TinyTask(60), encoder_layers=8, **options)
        self.parts, self.stages = model.parallel_parts(), stages
        self.named = dict(model.named_parameters())
        ranges = layer_ranges(8, stages)
        self.users = users_of(model.parameters(), self.parts, ranges, head_on_last)
        self.rows = owned_rows(self.users, self.parts, stages, slices)

    def owners(self, p: torch.nn.Parameter) -> list[int]:
        return [stage for stage, rows in enumerate(self.rows[p]) if rows]

    def load(self, stage: int) -> int:
        """How many numbers it owns."""
        return sum(len(rows[stage]) * (p.numel() // p.size(0)) for p, rows in self.rows.items())


@pytest.mark.parametrize("slices", [True, False, "uneven"])
@pytest.mark.parametrize("options", VARIANTS, ids=map(str, VARIANTS))
@pytest.mark.parametrize("head_on_last", [False, True])
def test_every_row_has_one_owner_that_uses_it(options, slices, head_on_last):
    for stages in (1, 2, 3, 4, 8):
        shares = [float(s) for s in range(1, stages + 1)] if slices == "uneven" else slices
        placed = Placed(stages, options, shares, head_on_last)
        assert placed.rows.keys() == set(placed.named.values())
        for p, rows in placed.rows.items():
            assert len(rows) == stages
            assert [row for mine in rows for row in mine] == [*range(p.size(0))]
            assert {s for s in placed.owners(p)} <= placed.users[p]
            if len(placed.users[p]) == 1 or slices is False:
                assert len(placed.owners(p)) == 1


@pytest.mark.parametrize("options", VARIANTS, ids=map(str, VARIANTS))
def test_embeddings_lie_on_stage_0_and_layers_are_whole(options):
    """Where words are looked up before anything can arrive; kernels want their weights in one
    piece."""
    placed = Placed(4, options)
    parts = placed.parts
    assert placed.owners(parts.source_embedding.weight) == [0]
    if parts.decoder_splits:
        assert placed.owners(parts.target_embedding.weight) == [0]
    for name, p in placed.named.items():
        if ".layers." in name:
            assert len(placed.owners(p)) == 1, name


def test_all_own_about_as_much():
    """But for those that have more of their own already: they get nothing of the rest."""
    for stages in (2, 3, 4, 8):
        placed = Placed(stages, {})
        loads = [placed.load(stage) for stage in range(stages)]
        cut_ = [p for p in placed.rows if len(placed.users[p]) == stages]
        with_some = {s for p in cut_ for s in placed.owners(p)}
        assert HEAD in {name for name, p in placed.named.items() if any(p is q for q in cut_)}
        level = max(loads[s] for s in with_some)
        row = sum(p.numel() // p.size(0) for p in cut_)
        for stage in range(stages):  # rows are not divided
            assert loads[stage] >= level - 2 * row
            assert stage in with_some or loads[stage] >= level - row


def test_given_shares():
    placed = Placed(4, {}, [0.0, 1.0, 2.0, 5.0])
    p = placed.named[HEAD]
    assert p.size(0) == 64
    assert placed.rows[p] == (range(0), range(8), range(8, 24), range(24, 64))


def test_cut():
    assert cut(10, [1, 1]) == (range(5), range(5, 10))
    assert cut(10, [0, 1, 0]) == (range(0), range(10), range(10, 10))
    assert [len(rows) for rows in cut(2, [1, 1, 1, 1])] == [0, 1, 1, 0]
    assert [len(rows) for rows in cut(7, [0, 0])] == [0, 7]
    for rows in range(20):
        pieces = cut(rows, [0.1, 0.2, 0.7])
        assert [row for piece in pieces for row in piece] == [*range(rows)]

"""One update over real processes: the gradients of a single process, to 1e-9 in float64, and in
mixed precision to that of bfloat16."""

from __future__ import annotations

import pytest
import torch
from gradient_cases import all_parallel, all_references, cases
from workers import run_workers

BFLOAT16 = torch.finfo(torch.bfloat16).eps


def run_all(world: int) -> dict:
    """Results of every process, by rank and "reference"."""
    (reference,) = run_workers(all_references, 1, world)
    return {"reference": reference, **dict(enumerate(run_workers(all_parallel, world, world)))}


@pytest.fixture(scope="module")
def results():
    return {world: run_all(world) for world in (2, 4)}


everything = [(world, case) for world in (2, 4) for case in cases(world)]


@pytest.mark.parametrize(
    ("world", "case"), everything, ids=[f"{world}: {case.name}" for world, case in everything]
)
def test_gradients_are_those_of_one_process(results, world, case):
    name, close = case.name, 4 * BFLOAT16 if case.mixed else 1e-9
    expected = results[world]["reference"][name]
    workers = [results[world][rank][name] for rank in range(world)]
    assert sum(w["loss"] for w in workers) == pytest.approx(
        expected["loss"], rel=BFLOAT16 if case.mixed else 1e-6 if case.sampled else 1e-12
    )
    for worker in workers:
        assert worker["norm"].item() == pytest.approx(expected["norm"].item(), rel=close)
        mine = {name: rows[worker["stage"]] for name, rows in worker["owned"].items()}
        mine = {name: rows for name, rows in mine.items() if rows}
        assert worker["grads"].keys() == mine.keys()
        assert not worker["others"]  # nothing of what others own
        for parameter, rows in mine.items():
            want = expected["grads"][parameter]
            assert want.abs().max() > 1e-6
            got, want = worker["grads"][parameter], want[rows.start : rows.stop]
            assert got.dtype == want.dtype
            if case.mixed:  # numbers are rounded one by one, so small ones may well be nothing
                assert (got - want).norm() < close * want.norm(), parameter
            else:
                torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-11, msg=parameter)
    for parameter, grad in expected["grads"].items():  # every row has one owner
        owned = [row for rows in workers[0]["owned"][parameter] for row in rows]
        assert owned == [*range(grad.size(0))]


def test_with_a_sampled_softmax_gradients_are_of_some_rows(results):
    """Gradients are of rows of the sample and of the words read."""
    name = "hybrid 2 chunk=2 x1 encoder_layers=4"
    for tied in ("", " share_all_embeddings=True"):
        workers = [results[2][rank][f"{name}{tied} sampled"] for rank in (0, 1)]
        rows = {n: count for worker in workers for n, count in worker["rows"].items()}
        assert ("decoder.head.output.weight" in rows) == (not tied)
        assert "encoder.embed_tokens.weight" in rows
        assert all(0 < count < 64 for count in rows.values())
        assert all(not worker["rows"] for worker in (results[2][rank][name] for rank in (0, 1)))


def owners(rows: tuple[range, ...]) -> list[int]:
    return [stage for stage, mine in enumerate(rows) if mine]


def test_what_one_stage_uses_it_owns_and_the_head_is_sliced(results):
    owned = results[4][0]["hybrid 4 chunk=2 x1 encoder_layers=4"]["owned"]
    assert owners(owned["encoder.layers.1.lstm.weight_hh_l0"]) == [1]
    assert owners(owned["decoder.layers.2.lstm.weight_hh_l0"]) == [2]
    assert owners(owned["encoder.embed_tokens.weight"]) == [0]
    assert owners(owned["decoder.embed_tokens.weight"]) == [0]
    assert len(owners(owned["decoder.head.output.weight"])) > 1
    tied = results[4][0]["hybrid 4 chunk=2 x1 encoder_layers=4 share_all_embeddings=True"]["owned"]
    assert owners(tied["encoder.embed_tokens.weight"]) == [0]  # it is the output's weight, too
    whole = results[4][0]["hybrid 4 chunk=2 x1 encoder_layers=4 slices=False"]["owned"]
    assert len(owners(whole["decoder.head.output.weight"])) == 1


def test_layers_lie_where_they_are_told_to(results):
    owned = results[2][0]["hybrid 2 chunk=2 x1 encoder_layers=4 layers=(1, 3)"]["owned"]
    stages = [0, 1, 1, 1]
    for side in ("encoder", "decoder"):
        weights = [f"{side}.layers.{i}.lstm.weight_hh_l0" for i in range(4)]
        assert [owners(owned[weight]) for weight in weights] == [[stage] for stage in stages]

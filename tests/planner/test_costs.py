"""Times between the points of measurement, and from descriptions of devices."""

from __future__ import annotations

import json

import pytest
from tiny_jobs import job

from fairseq_hybrid.errors import UserError
from fairseq_hybrid.planner import devices
from fairseq_hybrid.planner.costs import (
    COPY,
    FORWARD,
    UPDATE,
    LayerTimes,
    Line,
    MeasuredCosts,
    interpolate,
    kind_of,
    ring,
)
from fairseq_hybrid.planner.devices import DEVICES, ProjectedCosts

MINE = {
    **{"name": "mine", "count": 3, "flops": 1e9, "memory_bandwidth": 1e9, "memory": 1e9},
    **{"kernel": 1e-5, "step": 1e-4, "latency": 1e-3, "bandwidth": 1e6},
}


def test_lines_do_not_begin_below_nothing():
    assert Line.through([(1, 3), (3, 7)]) == Line(1, 2)
    assert Line.through([(1, 1), (3, 6)]) == Line(0, 2)  # would be -1.5 at none
    assert Line.through([(1, 5), (2, 4)]) == Line(0, 2)  # noise: more takes less


def test_tables_are_straight_between_the_points_and_beyond():
    assert [interpolate((2, 4, 8), (1, 2, 6), x) for x in (1, 3, 6, 10)] == [0.5, 1.5, 4, 8]
    assert interpolate((2,), (5,), 4) == 10
    table = LayerTimes((2, 4), (1, 3), ((1, 3), (2, 6)), ((2, 6), (4, 12)))
    assert table(3, 2, backward=False) == 3
    assert table(3, 2, backward=True) == 6
    assert LayerTimes((2, 4), (1, 3), ((0, 3), (4, 6)), ())(1, 1, backward=False) == 0


def profile(model) -> dict:
    table = {"steps": (1, 2), "sentences": (1, 2), "backward": ((0, 0), (0, 0))}
    dense = {**table, "forward": ((1, 2), (2, 4))}  # a second for each row
    packed = {**table, "forward": ((10, 20), (20, 40))}
    kinds = {kind_of(layer) for layer in model.parts.encoder_layers}
    return {
        "link": (0.5, 4.0),
        "layers": {kind: {"dense": dense, "packed": packed} for kind in kinds},
        "lines": {"meet": (1.0, 0.25)},
        "workers": 3,
        "slow_down": {"forward": 1.5, "head": 1.2, "copy": 2.0},
    }


def test_a_unit_is_dense_as_long_as_all_sentences_run():
    model = job(2).model
    costs, layer = MeasuredCosts(profile(model)), model.parts.encoder_layers[1]
    assert costs.layer(layer, (3, 3), backward=False) == 6
    assert costs.layer(layer, (3, 3, 2, 1), backward=False) == 6 + 10 * 3


def test_a_stage_of_a_wavefront_may_have_a_kernel_of_its_own():
    model, layer = job(2).model, job(2).model.parts.encoder_layers[1]
    without = profile(model)
    assert MeasuredCosts(without).chunk(layer, (3, 3, 2, 1), backward=False) == 6 + 10 * 3
    for tables in without["layers"].values():
        tables["split"] = {**tables["dense"], "backward": ((2, 4), (4, 8))}
        tables["split"]["weights"] = ((0.5, 1), (1, 2))
    split = MeasuredCosts(without)
    assert split.chunk(layer, (3, 3, 2, 1), backward=False) == 9
    assert split.chunk(layer, (3, 3, 2, 1), backward=True) == 18
    assert split.weights(layer, (3, 3, 2, 1)) == 4.5
    assert MeasuredCosts(profile(model)).weights(layer, (3, 3, 2, 1)) == 0
    assert split.layer(layer, (3, 3), backward=False) == 6


def test_the_more_workers_compute_the_slower_they_are():
    costs = MeasuredCosts(profile(job(2).model))
    assert [costs.slow_down(FORWARD, busy) for busy in (1, 2, 3)] == [1, 1.25, 1.5]
    assert costs.slow_down(UPDATE, 3) == costs.slow_down(COPY, 3) == 2
    assert costs.all_reduce(1, 100) == 0
    assert costs.all_reduce(2, 100) == 1 + 0.25 * ring(2, 100)


# Devices


@pytest.mark.parametrize("given", ["4xV100-nvlink", "8xH100", "4xcpu-1gbit"])
def test_named_devices(given):
    count, _, name = given.partition("x")
    assert devices.parse_devices(given) == (DEVICES[name], int(count))


def test_a_device_from_a_file(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(MINE))
    device, count = devices.parse_devices(str(path))
    assert (device.name, count, device.step) == ("mine", 3, 1e-4)


@pytest.mark.parametrize("given", ["4xFOO", "V100-nvlink", "0xH100", "missing.json", "x"])
def test_an_unknown_device_is_one_line(given):
    with pytest.raises(UserError) as error:
        devices.parse_devices(given)
    assert f"--devices {given} is neither known nor a file: give 4xV100" in str(error.value)


@pytest.mark.parametrize(
    "content",
    [
        *("", "[]", "3", json.dumps({**MINE, "extra": 1}), json.dumps({**MINE, "flops": -1})),
        *(json.dumps({**MINE, "flops": "fast"}), json.dumps({**MINE, "count": 0})),
        json.dumps({key: value for key, value in MINE.items() if key != "step"}),
    ],
)
def test_a_file_that_describes_no_device_is_one_line(tmp_path, content):
    path = tmp_path / "mine.json"
    path.write_text(content)
    with pytest.raises(UserError, match=r"does not describe a device: give it count and name"):
        devices.parse_devices(str(path))


def test_projections_count_operations():
    device = devices.Device(**{key: value for key, value in MINE.items() if key != "count"})
    costs, model = ProjectedCosts(device), job(2).model
    layer = model.parts.encoder_layers[1]  # 6 to 6: 4 gates of 6 by 12
    forward = costs.layer(layer, (3, 3, 2), backward=False)
    assert forward == pytest.approx(2 * 8 * 4 * 6 * 12 / 1e9 + 3 * 1e-4)
    assert costs.layer(layer, (3, 3, 2), backward=True) == pytest.approx(2 * forward)
    assert costs.update(10) == pytest.approx(devices.UPDATE_PASSES * 40 / 1e9)
    assert costs.all_reduce(3, 9e6) == pytest.approx(4 * 1e-3 + 2 * 2 / 3 * 9)
    assert costs.projected

"""Timelines as pictures, measured ones from a trace, and the page."""

from __future__ import annotations

import json
from argparse import Namespace
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from matplotlib.image import imread
from tiny_jobs import Flat, job

from fairseq_hybrid.backends.wavefront.simulate import WAIT as WAITING
from fairseq_hybrid.errors import UserError
from fairseq_hybrid.planner import choose, command, page, panels, pictures, tables, traces
from fairseq_hybrid.planner.costs import BACKWARD, FORWARD, HEAD, UPDATE
from fairseq_hybrid.planner.plan import HYBRID


@pytest.fixture(scope="module")
def ranked():
    return choose.ranked(job(4), Flat())


@pytest.fixture(scope="module")
def shown(ranked):
    plan = next(p for p in ranked if p.plan.backend == HYBRID and p.plan.stages == 2)
    panel = panels.Panel("predicted", plan.timeline, tables.layer_labels(plan))
    return [panel, panel._replace(title="measured")]


def event(name: str, category: str, begin: float, end: float, worker: int = 0) -> dict:
    return {
        **{"name": name, "cat": category, "ph": "X", "ts": 1e6 + begin, "dur": end - begin},
        **{"pid": worker, "tid": 0 if category == "update" else 1},
    }


def trace(workers: int = 2) -> dict:
    """Three updates; the second one, of median length, has everything in it."""
    events = []
    for worker in range(workers):
        name = {"name": f"worker {worker}, stage {worker % 2}"}
        events.append({"name": "process_name", "ph": "M", "pid": worker, "args": name})
        events += [
            event("update 6", "update", 0, 50, worker),
            event("forward encoder 0.0", "compute", 1, 49, worker),
            event("update 7", "update", 100, 200, worker),
            event("exchange batches", "communication", 100, 105, worker),
            event("forward encoder 0.0", "compute", 110, 130, worker),
            event("wait for head", "wait", 130, 140, worker),
            event("backward encoder 0.0", "compute", 160, 180, worker),
            event("weight gradients weight gradients", "compute", 180, 190, worker),
            event("update 8", "update", 300, 700, worker),
        ]
    return {"traceEvents": events}


def test_a_trace_becomes_a_timeline_without_holes(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(trace()))
    read = traces.read_trace(str(path))
    assert (read.update, read.stages, read.timeline.workers) == ("update 7", 2, 2)
    assert read.timeline.seconds == pytest.approx(100e-6)
    mine = [
        (s.kind, round(1e6 * s.begin), round(1e6 * s.end))
        for s in read.timeline.spans
        if s.worker == 1
    ]
    assert mine == [
        (traces.SENDING, 0, 5),
        (traces.OTHER, 5, 10),
        (FORWARD, 10, 30),
        (WAITING, 30, 40),
        (HEAD, 40, 60),
        (BACKWARD, 60, 80),
        (BACKWARD, 80, 90),
        (UPDATE, 90, 100),
    ]
    assert read.timeline.idle == pytest.approx(0.1)
    assert traces.read_updates(str(path)) == [read], "the others are cut off"


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"traceEvents": []}'])
def test_what_is_no_trace_is_one_line(tmp_path, content):
    path = tmp_path / "trace.json"
    path.write_text(content)
    with pytest.raises(UserError, match=r"--trace .* is not a timeline: make it with"):
        traces.read_trace(str(path))
    with pytest.raises(UserError, match="--trace missing: no such file"):
        traces.read_trace("missing")


def test_a_trace_stands_beside_the_prediction_of_its_stages_and_chunks(ranked):
    for stages, chunk, exact in ((2, 2, True), (4, 4, True), (2, 8, True), (2, 2, False)):
        wanted = next(
            p for p in ranked
            if p.plan.backend == HYBRID and (p.plan.stages, p.plan.chunk) == (stages, chunk)
            and p.plan.exact == exact
        )  # fmt: skip
        found = command.prediction_like(
            traces.Trace(wanted.timeline, stages, "update 7"), ranked, "t.json"
        )
        assert found is wanted
    other = traces.Trace(ranked[0].timeline, 3, "update 7")
    with pytest.raises(UserError, match=r"--trace t\.json has 4 workers in 3 stages, which is not"):
        command.prediction_like(other, ranked, "t.json")


def test_the_picture_says_what_it_shows(shown, tmp_path):
    figure = pictures.figure(shown)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["predicted", "measured"]
    assert figure.axes[-1].get_xlabel() == "ms since the update began"
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert labels[1] == "worker 1: layers 3–4"
    (legend,) = figure.legends
    named = {text.get_text() for text in legend.get_texts()}
    assert {"layers, forward", "layers, backward", "attention, softmax, loss"} <= named
    assert "busy sending" not in named  # nothing of that kind is in these timelines
    path = tmp_path / "plan.png"
    pictures.write_picture(shown, str(path))
    assert len({tuple(pixel) for row in imread(path)[::9, ::9] for pixel in row}) > 4  # colours


def test_nothing_in_the_picture_overlaps(shown):
    figure = pictures.figure(shown)
    figure.draw_without_rendering()
    boxes = [figure.legends[0].get_window_extent()]
    for axes in figure.axes:
        boxes.append(axes.get_tightbbox())
    for i, box in enumerate(boxes):
        assert figure.bbox.containsx(box.x0)
        assert figure.bbox.containsx(box.x1)
        assert not any(box.overlaps(other) for other in boxes[:i])


class Page(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.sources, self.text, self.open = [], [], [], []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.sources += [v for k, v in attributes if k in ("src", "href") and v[:1] != "#"]

    def handle_data(self, data):
        self.text.append(data)


def test_the_page_stands_alone(ranked, shown, tmp_path):
    path = tmp_path / "page.html"
    chosen = choose.best(ranked)
    page.write_page(str(path), chosen, ranked, shown, ("projected, not measured: <4>", Table))
    read = Page()
    read.feed(path.read_text())
    assert not read.sources, "it needs nothing beside it"
    assert {"svg", "table", "style"} <= {*read.tags}
    text = " ".join(read.text)
    assert f"Plan: {chosen.plan}" in text
    assert "projected, not measured: <4>" in text
    for prediction in ranked:
        assert str(prediction.plan) in text
    assert read.tags.count("tr") == len(ranked) + 1 + chosen.plan.workers + 1 + 2
    assert read.tags.count("h3") >= 2
    for word in ("predicted", "measured", "chunk", "stage", "head", "words per update"):
        assert word in text, "each word is explained"
    one = next(p for p in ranked if p.plan.backend == "single")
    assert f"{one.words_per_second / ranked[0].words_per_second:.4f}" in path.read_text()


def test_the_page_says_how_to_train_and_what_was_looked_at(ranked, shown, tmp_path):
    path, chosen = tmp_path / "page.html", choose.best(ranked)
    args = Namespace(
        save="plan.json", arch="hybrid_lstm", data="bin", max_tokens=4000, batch_size=None,
        criterion="cross_entropy", optimizer="adam", devices=None,
    )  # fmt: skip
    words = ["bin", "--workers", "4", "--save=plan.json", "--lr", "0.1", "--remeasure", "--report"]
    page.write_page(str(path), chosen, ranked, shown, None, args, [*words, "page.html", "--cpu"])
    text = " ".join(path.read_text().replace("\\\n", "").split())
    assert (
        "fairseq-hybrid-train bin --lr 0.1 --cpu --distributed-world-size 4 "
        "--hybrid-plan plan.json<" in text
    )
    for said in ("4+4 layers of ", "4,000 tokens", "adam", "OMP_NUM_THREADS", "torch "):
        assert said in text
    args.save = None
    page.write_page(str(path), chosen, ranked, shown, None, args, words[:1])
    flags = " ".join(f"--{k.replace('_', '-')} {v}" for k, v in chosen.plan.flags().items())
    assert flags in " ".join(path.read_text().replace("\\\n", "").split())


Table = tables.Table(["system", "speed-up"], [["one", "1.00 projected"]])


@pytest.mark.parametrize(
    ("backend", "lines"),
    [
        (
            "hybrid",
            ["encoder layers 1, 2", "decoder layers 1, 2", "loss of its own batch"],
        ),
        ("model_parallel", ["stage 1: worker 1", "softmax, loss of all batches"]),
        ("legacy_ddp", ["each of workers 0, 1", "encoder layers 1, 2, 3, 4"]),
    ],
)
def test_the_partition_is_written_down(backend, lines):
    prediction = choose.ranked(job(2), Flat(), (backend,))[0]
    text = page.partition_boxes(prediction)
    for line in lines:
        assert line in text
    if backend == "model_parallel":
        assert text.count("softmax") == 1


def test_every_cell_of_a_projection_says_so(ranked):
    projected = [replace(p, projected=True) for p in ranked]
    five = tables.systems_table({"a": projected[0], "b": projected[1]})
    for table in (tables.alternatives_table(projected), tables.workers_table(projected[0]), five):
        for row in table.rows:
            assert all(cell.endswith(" projected") for cell in row[1:])
    for row in tables.alternatives_table(ranked).rows:
        assert not any("projected" in cell for cell in row)
    assert "projected ms per update" in tables.plan_note(projected[0])

"""``fairseq-hybrid-report``: the page of one run, of two, of files that are broken or mean harm."""

from __future__ import annotations

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest
from run_logs import CONFIG, Writer

from fairseq_hybrid.errors import UserError
from fairseq_hybrid.pages import charts
from fairseq_hybrid.report import command

VOID = {"meta", "input", "path", "rect", "br"}


class Page(HTMLParser):
    """Its elements; complains of what is not closed in its order."""

    def __init__(self, text: str):
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.texts: dict[str, list[str]] = {}
        self.open: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        if data.strip():
            self.texts.setdefault(self.open[-1] if self.open else "", []).append(data.strip())

    @property
    def text(self) -> str:
        return "\n".join(t for tag, some in self.texts.items() if tag != "style" for t in some)

    def values(self, name: str) -> list[str]:
        return [value for key, value in self.attributes if key == name]


def made(tmp_path: Path, *words: object) -> Page:
    output = tmp_path / "report.html"
    options = command.parser().parse_args([*map(str, words), "--output", str(output)])
    command.run(options)
    text = output.read_text()
    assert "url(" not in text
    page = Page(text)
    assert not page.values("src") + page.values("href"), "it needs nothing beside it"
    assert page.tags.count("script") == 1
    assert not [key for key, _ in page.attributes if key.startswith("on")]
    return page


def write(folder: Path, writer: Writer) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "train.log").write_text(writer.text)
    return folder


def test_a_run_as_a_user_reports_it(finished, server, tmp_path):
    before = {path: path.stat().st_mtime_ns for path in finished.rglob("*")}
    result = server.run("fairseq-hybrid-report", finished, cwd=tmp_path).ok()
    assert (result.out, result.err) == ("report.html\n", "")
    assert {path: path.stat().st_mtime_ns for path in finished.rglob("*")} == before
    page = Page((tmp_path / "report.html").read_text())
    assert page.texts["h2"] == ["Curves", "Where the time goes", "Translations", "Go on"]
    assert page.texts["h1"] == [finished.name]
    assert "hybrid_lstm, 2 workers under hybrid" in page.text
    assert "in 2 sessions" in page.text
    curves = [json.loads(value) for value in page.values("data-curves")]
    assert [c["unit"] for c in curves] == ["update"] * 4 + ["minutes"] * 4
    training, validation = curves[0]["curves"]
    assert [x for x, _ in training[2]] == list(range(1, 15))
    assert [x for x, _ in validation[2]][:3] == [6, 10, 12]
    titles = [text for text in page.texts["h3"] if "measured" in text]
    assert [title.partition(",")[0] for title in titles] == ["update 6", "update 7", "update 8"]
    assert {"k-forward", "k-head", "k-backward", "k-send"} <= {*page.values("class")}
    assert page.tags.count("article") == 4
    assert page.values("class").count("map") == 4
    train, translate = page.texts["code"]
    assert train.startswith("fairseq-hybrid-train ")
    assert "--ddp-backend hybrid --" in re.sub(r"\s+", " ", train)
    assert str(finished / "model/checkpoint_best.pt") in translate


def test_runs_side_by_side(tmp_path, capsys):
    one = write(
        tmp_path / "one", Writer().start().train([10, 20], lr=0.002).validate(20, 3.5).done()
    )
    config = {**CONFIG, "optimization": {"max_update": 100, "lr": [0.01]}}
    two = write(
        tmp_path / "two", Writer("json").start(config).train([10, 20, 30]).validate(30, 3.25)
    )
    page = made(tmp_path, one, two)
    assert capsys.readouterr().out == f"{tmp_path / 'report.html'}\n"
    assert page.texts["h2"] == ["At a glance", "Curves", "Settings that differ", "Go on"]
    cells = [text for tag in ("th", "td") for text in page.texts[tag]]
    for cell in ("one", "two", "3.500", "3.250", "--lr", "0.002", "0.01"):
        assert cell in cells
    assert "--max-update" not in cells
    names = [curve[0] for curve in json.loads(page.values("data-curves")[0])["curves"]]
    assert names == ["one, training", "one, validation", "two, training", "two, validation"]


def test_runs_of_the_same_name_are_told_apart(tmp_path):
    for name in ("a", "b"):
        write(tmp_path / name / "run", Writer().start().train([10]))
    page = made(tmp_path, tmp_path / "a/run", f"{tmp_path}/b/run/")
    assert f"{tmp_path}/a/run" in page.texts["th"]
    assert f"{tmp_path}/b/run" in page.texts["th"]


EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\"'&\x1b[31m\x00"


def test_what_a_log_says_is_never_markup(tmp_path):
    config = {
        **CONFIG,
        "common": {"seed": EVIL, "user_dir": EVIL},
        "model": {"_name": EVIL, "arch": EVIL, "dropout": EVIL, EVIL: EVIL},
        "distributed_training": {"distributed_world_size": 2, "ddp_backend": EVIL},
        "checkpoint": {"save_dir": EVIL.replace("\x00", "")},
    }
    writer = Writer().start(config).train([10]).validate(10, 3.0, subset=EVIL.replace("'", ""))
    writer.say("root", EVIL, "ERROR")
    writer.lines.append(EVIL)
    name = EVIL.replace("/", "").replace("\x00", "")
    one = write(tmp_path / name, writer)
    page = made(tmp_path, one, write(tmp_path / "two", Writer().start().train([10])))
    assert "img" not in page.tags
    assert "<script>alert(1)" in page.text
    assert not re.search(r"[\x00-\x08\x1b]", page.text)


def test_losses_that_are_no_numbers_leave_a_gap(tmp_path):
    writer = Writer().start().train([10, 20]).train([30], loss="nan").train([40, 50])
    page = made(tmp_path, write(tmp_path / "run", writer))
    assert "not a finite number in 1 reports, first at update 30" in page.text
    line = next(d for d in page.values("d") if d.count("M") == 2 and "h0" not in d)
    assert line.count("L") == 2
    data = json.loads(page.values("data-curves")[0])["curves"][0][2]
    assert [x for x, _ in data] == [10, 20, 40, 50]


@pytest.mark.parametrize("losses", [[], ["nan"], ["1e300"], ["0"], ["-5"], ["7", "7", "7"]])
def test_any_loss_has_a_page(tmp_path, losses):
    writer = Writer().start()
    for n, loss in enumerate(losses):
        writer.train([n], loss=loss, lr=0, wps="inf")
    made(tmp_path, write(tmp_path / "run", writer))


def test_a_long_run_has_a_short_page(tmp_path):
    made(
        tmp_path, write(tmp_path / "run", Writer().start().train(range(1, 9000), lr=0.1, sent_mb=9))
    )
    assert (tmp_path / "report.html").stat().st_size < 250_000
    points = charts.thinned([(float(n), float(n % 2)) for n in range(10_001)])
    assert len(points) <= charts.MOST
    assert points[-1][0] == 10_000


@pytest.mark.parametrize("content", [b"", b"no checkpoint", b"PK\x03\x04broken"])
def test_what_cannot_be_translated_or_drawn_is_a_remark(tmp_path, content):
    config = {**CONFIG, "distributed_training": {"hybrid_trace": "trace.json"}}
    run = write(tmp_path / "run", Writer().start(config).train([10, 20], wait0=9, send0=1))
    (run / "checkpoint_best.pt").write_bytes(content)
    (run / "trace.json").write_bytes(content + b'{"traceEvents": [1]}')
    page = made(tmp_path, run)
    assert "run: no translations: " in page.text
    assert "run: no timeline, as " in page.text
    assert page.texts["h2"] == ["Curves", "Where the time goes", "Go on", "Remarks"]


def test_only_a_page_of_ours_is_replaced(tmp_path):
    run = write(tmp_path / "run", Writer().start().train([10]))
    made(tmp_path, run)
    made(tmp_path, run)
    theirs = tmp_path / "thesis.html"
    theirs.write_text("<html>mine")
    for output, said in (
        (theirs, "is there and is no report: give another name"),
        (tmp_path, "is a folder: give a file"),
        (tmp_path / "no/report.html", "there is no such folder, make it first"),
    ):
        options = command.parser().parse_args([str(run), "--output", str(output)])
        with pytest.raises(UserError) as error:
            command.run(options)
        assert str(error.value).endswith(said)
    assert theirs.read_text() == "<html>mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "run", "thesis.html"]


def test_a_run_that_was_moved_keeps_its_parts(finished, tmp_path, monkeypatch):
    moved = shutil.copytree(finished, tmp_path / "moved")
    text = (moved / "train.log").read_text().replace(str(finished), "/nowhere/else")
    (moved / "train.log").write_text(text)
    page = made(tmp_path, moved, "--samples", 1)
    assert page.tags.count("article") == 1
    assert sum("measured" in text for text in page.texts["h3"]) == 3


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.0, 1.0, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (2.2, 9.7, [2, 4, 6, 8, 10]),
        (5.0, 5.0, [0, 2, 4, 6, 8, 10]),
        (0.0, 0.0, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (-3.0, -3.0, [-6, -4, -2, 0]),
        (0.0, 3e-4, [0, 1e-4, 2e-4, 3e-4]),
    ],
)
def test_ticks_are_round(low, high, expected):
    assert charts.ticks(low, high) == pytest.approx(expected)

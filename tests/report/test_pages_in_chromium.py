"""Both pages in a real browser, on a wide and a narrow screen, light and dark."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import escape
from pathlib import Path

import pytest
from matplotlib.image import imread

from fairseq_hybrid.report import command

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--hide-scrollbars", "--enable-logging=stderr"),
)
LOOK = """
<script>
onerror = (message) => document.body.dataset.wrong = message;
function look(frame) {
  const page = frame.contentDocument, window = frame.contentWindow, found = {};
  found.width = page.documentElement.scrollWidth;
  found.height = page.documentElement.scrollHeight;
  found.small = [...page.querySelectorAll('p, dd, td, span, h2')]
    .filter(e => e.innerText && parseFloat(window.getComputedStyle(e).fontSize) < 12).length;
  found.clash = [...page.querySelectorAll('.ticks')].filter(ticks => {
    const boxes = [...ticks.children].map(e => e.getBoundingClientRect()).filter(b => b.width);
    return boxes.some((a, i) => boxes.slice(i + 1).some(b =>
      a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom));
  }).length;
  const plot = page.querySelector('.plot');
  if (plot) {
    const box = plot.getBoundingClientRect();
    plot.dispatchEvent(new window.PointerEvent('pointermove', {clientX: box.left + box.width / 2}));
    found.tip = plot.querySelector('.tip').innerText;
    page.getElementById('x-minutes').click();
    found.hidden = window.getComputedStyle(plot.parentElement).display;
  }
  document.body.dataset.found = JSON.stringify(found);
}
</script>
"""


@pytest.fixture
def chromium(tmp_path):
    program = shutil.which("chromium")
    assert program, "this test needs a browser: apt-get install -y chromium"

    def run(page: Path, *flags: str) -> str:
        own = f"--user-data-dir={tmp_path / 'browser'}"
        done = subprocess.run(
            [program, *FLAGS, own, *flags, page.as_uri()],
            capture_output=True,
            text=True,
            timeout=180,
        )
        assert "CONSOLE" not in done.stderr, done.stderr
        return done.stdout

    return run


@pytest.fixture
def pages(finished, server, data, tmp_path) -> dict[str, Path]:
    report = tmp_path / "report.html"
    command.run(command.parser().parse_args([str(finished), "--output", str(report)]))
    plan = tmp_path / "plan.html"
    small = ("--encoder-layers", "4", "--encoder-embed-dim", "16", "--encoder-hidden-size", "16")
    words = ("--arch", "hybrid_lstm", *small, "--optimizer", "adam", "--batch-size", "16", "--cpu")
    server.run("fairseq-hybrid-plan", data, *words, "--devices", "4xH100", "--report", plan).ok()
    return {"report": report, "plan": plan}


@pytest.mark.long
@pytest.mark.parametrize("name", ["report", "plan"])
def test_a_browser_shows_it(chromium, pages, tmp_path, name):
    page = pages[name]
    for width in (420, 1280):
        frame = tmp_path / "frame.html"
        frame.write_text(
            f"<!doctype html><meta charset=utf-8><body>{LOOK}<iframe onload='look(this)' "
            f'style="width:{width}px;height:900px;border:0" srcdoc="{escape(page.read_text())}">'
            "</iframe>"
        )
        dom = chromium(frame, "--dump-dom", "--window-size=1400,1000")
        assert "data-wrong" not in dom
        found = json.loads(re.search(r'data-found="([^"]*)"', dom)[1].replace("&quot;", '"'))
        assert found["width"] <= width, "nothing is wider than the screen"
        assert found["height"] > 1200, "it is not empty"
        assert (found["small"], found["clash"]) == (0, 0)
        if name == "report":
            assert re.match(r"update \d+\n", found["tip"])
            assert "training" in found["tip"]
            assert found["hidden"] == "none"
    brightness = {}
    for mode, number in (("dark", 0), ("light", 1)):
        picture = tmp_path / f"{mode}.png"
        chosen = f"--blink-settings=preferredColorScheme={number}"
        chromium(page, f"--screenshot={picture}", "--window-size=1280,1800", chosen)
        pixels = imread(picture)[..., :3]
        brightness[mode] = pixels.mean()
        colours = {tuple((15 * pixel).round()) for row in pixels[::5, ::5] for pixel in row}
        assert len(colours) > 15, "there are curves and bars in it"
    assert brightness["dark"] < 0.3
    assert brightness["light"] > 0.8

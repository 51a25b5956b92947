"""README and docs: tables and numbers are what the JSON gives, links lead somewhere, messages and
files that they name exist."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import documented
import pytest
from documented import DOCUMENTS
from jobs import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
RESULTS = ROOT / "benchmarks" / "results"
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FILE = re.compile(r"(?<![\w/.…$-])((?:examples|benchmarks|tests|fairseq_hybrid|docs)/[\w./-]*\w)")

PAGES = [*DOCUMENTS, ROOT / "CONTRIBUTING.md"]

by_name = pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)


def test_tables_are_what_the_benchmarks_left():
    command = [sys.executable, str(ROOT / "benchmarks" / "tables.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_readme_is_short_and_installs_early():
    lines = README.splitlines()
    assert len(lines) <= 180
    assert next(n for n, line in enumerate(lines) if line.startswith("pip install")) < 60
    block = re.search(r"## Install.*?```\n(.*?)```", README, re.DOTALL)[1]
    assert len(block.splitlines()) <= 5


def test_the_readme_has_one_table_of_results_and_it_is_generated():
    tables = re.findall(r"<!-- table: (\S+) -->(.*?)<!-- end -->", README, re.DOTALL)
    assert [name for name, _ in tables] == ["comparison"]
    by_hand = README.replace(tables[0][1], "")
    assert not re.search(r"^\|[^|]*(\| *[\d.,]+ *)+\|$", by_hand, re.MULTILINE)
    assert len(re.findall(r"!\[", README)) == 1


def system(file: str, workload: str, name: str) -> dict:
    return json.loads((RESULTS / file).read_text())["workloads"][workload]["systems"][name]


def single_device() -> float:
    """Of the table in docs/benchmarks.md."""
    page = (ROOT / "docs/benchmarks.md").read_text(encoding="utf-8")
    return float(re.search(r"^\| `hybrid_lstm` \|[^|]*\|[^|]*\| ([\d.]+) \|", page, re.M)[1])


NETWORK = "translation_1gbit.json"
FOUR = "four_500mbit.json"
SAID = {
    "four emulated devices train ([\\d.]+) times as fast as one": (
        lambda: system(FOUR, "multi30k", "hybrid")["speed_up"],
        "{:.2f}",
    ),
    "`--ddp-backend hybrid`, ([\\d.]+) times under tuned `pytorch_ddp`: the same update": (
        lambda: system(FOUR, "multi30k", "pytorch_ddp")["speed_up"],
        "{:.2f}",
    ),
    "`--arch hybrid_lstm` trains ([\\d.]+) times": (single_device, "{:.2f}"),
    "two workers train ([\\d.]+) times as fast as one under `--ddp-backend hybrid`": (
        lambda: system(NETWORK, "fixed", "hybrid")["speed_up"],
        "{:.2f}",
    ),
    "([\\d.]+) times under tuned `pytorch_ddp`. Within": (
        lambda: system(NETWORK, "fixed", "pytorch_ddp")["speed_up"],
        "{:.2f}",
    ),
    "`--criterion sampled_softmax` trains ([\\d.]+) times": (
        lambda: system("language_model.json", "wikitext-2", "sampled")["to_fairseq_adaptive"],
        "{:.2f}",
    ),
}
"""of the README's sentences: what is searched, where the number comes from"""


@pytest.mark.parametrize("sentence", SAID)
def test_numbers_of_the_readme_were_measured(sentence):
    text = " ".join(README.split())
    measured, form = SAID[sentence]
    assert re.search(sentence, text)[1] == form.format(measured())


@by_name
def test_links_lead_somewhere(path):
    for link in LINK.findall(path.read_text(encoding="utf-8")):
        if "://" in link:
            continue
        target, _, anchor = link.partition("#")
        page = path.parent / target if target else path
        assert page.exists(), f"{path.name}: {link}"
        assert not anchor or anchor in anchors(page), f"{path.name}: {link}"


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_every_page_is_in_the_index():
    index = README.split("## Documentation")[1].split("\n## ")[0]
    named = set(LINK.findall(index))
    assert {f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")} <= named


@by_name
def test_files_that_are_named_exist(path):
    named = set(FILE.findall(path.read_text(encoding="utf-8")))
    assert sorted(name for name in named if not (ROOT / name).exists()) == []


@by_name
def test_make_targets_exist(path):
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    text = path.read_text(encoding="utf-8")
    commands = re.findall(r"`make ([a-z][\w-]*)", text) + re.findall(
        r"^```\nmake ([\w-]+)", text, re.M
    )
    assert set(commands) <= targets


def test_messages_that_are_explained_exist():
    files = [Path(importlib.util.find_spec("fairseq").origin).parent / "utils.py"]
    files += [*ROOT.glob("fairseq_hybrid/**/*.py"), *ROOT.glob("examples/*/*.*")]
    source = "".join(path.read_text(encoding="utf-8") for path in files)
    source = re.sub(r'"\s*\n\s*f?"', "", source)  # a text of several lines
    page = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")
    quoted = documented.messages(page)
    assert len(quoted) > 20
    for message in quoted:
        for part in message.split("…"):
            assert part.strip() in source, f"nothing says {message}"

"""README and docs: tables are what the JSON gives, links lead somewhere, named files exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FILE = re.compile(r"(?<![\w/.…$-])((?:examples|benchmarks|tests|fairseq_hybrid|docs)/[\w./-]*\w)")

by_name = pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)


def test_tables_are_what_the_benchmarks_left():
    command = [sys.executable, str(ROOT / "benchmarks" / "tables.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@by_name
def test_links_lead_somewhere(path):
    links = LINK.findall(path.read_text())
    local = [link.partition("#")[0] for link in links if not link.startswith(("http", "#"))]
    assert [link for link in local if not (path.parent / link).exists()] == []


@by_name
def test_files_that_are_named_exist(path):
    named = set(FILE.findall(path.read_text()))
    assert sorted(name for name in named if not (ROOT / name).exists()) == []


@by_name
def test_make_targets_exist(path):
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    text = path.read_text()
    commands = re.findall(r"`make ([a-z][\w-]*)", text) + re.findall(
        r"^```\nmake ([\w-]+)", text, re.M
    )
    assert set(commands) <= targets

"""The path of a batch under `hybrid` is the one that docs/architecture.md shows."""

from __future__ import annotations

import json
import re

from jobs import ROOT, train_command
from warm import Warm

RECORDING = '''
"""fairseq_hybrid; worker 0 writes down the calls of FUNCTIONS in its second update, with depth."""
import functools
import importlib
import json
import os

import torch.distributed as dist

import fairseq_hybrid

depth, calls = 0, None


def recorded(owner, name, shown):
    theirs = getattr(owner, name)

    @functools.wraps(theirs)
    def ours(*args, **kwargs):
        global depth, calls
        if name == "train_step" and dist.get_rank() == 0 and args[0].get_num_updates() == 1:
            calls = []
        if calls is not None:
            calls.append((depth, shown))
        depth += 1
        try:
            return theirs(*args, **kwargs)
        finally:
            depth -= 1
            if name == "train_step" and calls is not None:
                with open(os.environ["CALLS"], "w") as file:
                    json.dump(calls, file)
                calls = None

    setattr(owner, name, ours)


for module, shown in json.loads(os.environ["FUNCTIONS"]):
    module = importlib.import_module(module)
    kind, _, name = shown.partition(".")
    recorded(getattr(module, kind, module), name, shown)
'''
MODEL = (
    *("--arch", "hybrid_lstm", "--encoder-layers", "2", "--dropout", "0"),
    *("--encoder-embed-dim", "8", "--encoder-hidden-size", "8"),
)


def documented() -> list[tuple[int, str, str]]:
    """Depth, function, file."""
    page = (ROOT / "docs/architecture.md").read_text()
    block = re.search(r"```text\n(HybridTrainer\.train_step.*?)```", page, re.DOTALL)[1]
    lines, files = [], {}
    for line in block.splitlines():
        indent, name, rest = re.fullmatch(r"( *)([\w.]+) *(.*)", line).groups()
        if ".py" in rest:
            files[name.split(".")[0]] = rest.split()[0]
        lines.append((len(indent) // 2, name, files[name.split(".")[0]]))
    return lines


def without_repeats(calls: list) -> list[tuple[int, str]]:
    """Each function once below whatever calls it: there are several batches and chunks."""
    kept, path, known = [], [], set()
    for depth, name in calls:
        path[depth:] = [name]
        if tuple(path) not in known:
            known.add(tuple(path))
            kept.append((depth, name))
    return kept


def test_the_path_of_a_batch(server, data, tmp_path):
    expected = documented()
    files = {name: file.removesuffix(".py").replace("/", ".") for _, name, file in expected}
    functions = [(f"fairseq_hybrid.{module}", name) for name, module in files.items()]
    plugin, calls = tmp_path / "recording_plugin", tmp_path / "calls.json"
    plugin.mkdir()
    (plugin / "__init__.py").write_text(RECORDING)
    job = ("--distributed-world-size", "2", "--ddp-backend", "hybrid", "--max-update", "2")
    job += ("--num-workers", "0", "--no-save", "--disable-validation", "--user-dir", str(plugin))
    command = train_command(data, tmp_path, *job, arch=MODEL)
    env = {"FUNCTIONS": json.dumps(functions), "CALLS": str(calls)}
    Warm(server, command, tmp_path, **env).finish().ok()
    found = without_repeats(json.loads(calls.read_text()))
    assert found == [(depth, name) for depth, name, _ in expected]

"""Which hooks of a backend the trainer calls, and when; it knows no backend itself."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from jobs import ROOT, curve, train_command
from warm import Warm

NOTING = '''
"""--ddp-backend noting: plain data parallelism that writes down which hooks are called."""
import os

import torch.distributed as dist

from fairseq_hybrid.backends.base import Backend
from fairseq_hybrid.backends.registry import register_backend

HOOKS = (
    *("attach", "begin_update", "prepare_sample", "forward", "after_backward", "all_reduce_grads"),
    *("gradient_groups", "grad_norm", "apply_gradients", "after_step", "metrics", "drain"),
    *("full_parameters", "optimizer_state", "load_optimizer_state"),
)


@register_backend("noting", help="writes down what is called")
def build(cfg, model, process_group, device):
    return Noting(model.to(device), process_group)


def noting(name):
    def hook(self, *args, **kwargs):
        with open(f"{os.environ['NOTES']}.{dist.get_rank()}", "a") as notes:
            what = f"{name} {args[0]}" if name == "begin_update" else name
            what += " in evaluation" if name == "forward" and not self.training else ""
            print(what + " and adds up" * self.accumulating, file=notes)
        return getattr(super(Noting, self), name)(*args, **kwargs)

    return hook


class Noting(Backend):
    pass


for name in HOOKS:
    setattr(Noting, name, noting(name))
'''
BATCH = ["prepare_sample", "forward"]
STEP = [
    *("after_backward", "all_reduce_grads", "gradient_groups", "grad_norm", "apply_gradients"),
    *("after_step", "metrics"),
]
VALIDATION = ["drain", "full_parameters", *2 * ["forward in evaluation"]]
SAVE = ["drain", "full_parameters", "optimizer_state"]
JOB = (
    *("--distributed-world-size", "2", "--update-freq", "2", "--num-workers", "0"),
    *("--batch-size-valid", "20", "--validate-interval-updates", "2", "--no-epoch-checkpoints"),
    *("--save-interval-updates", "2", "--keep-interval-updates", "1"),
)


def update(number: int) -> list[str]:
    adding = [f"{hook} and adds up" for hook in BATCH]
    adding[0] = BATCH[0]  # before it is known which batch it is
    return [f"begin_update {number}", *adding, *BATCH, *STEP]


@pytest.fixture
def train(server, data, tmp_path):
    plugin = tmp_path / "noting_plugin"
    plugin.mkdir()
    (plugin / "__init__.py").write_text(NOTING)

    def run_it(name: str, *more: str) -> tuple[dict[int, float], list[list[str]]]:
        notes = tmp_path / name
        command = train_command(data, tmp_path, *JOB, *more)
        command += ["--user-dir", str(plugin)]
        result = Warm(server, command, tmp_path, NOTES=str(notes)).finish().ok()
        paths = [tmp_path / f"{name}.{rank}" for rank in range(2)]
        return curve(result), [path.read_text().splitlines() for path in paths]

    return run_it


def test_order_of_calls(train):
    """Two updates of two batches, validation, a save; then a third after a resume."""
    noting = ("--ddp-backend", "noting")
    losses, notes = train("first", *noting, "--max-update", "2")
    more, resumed = train("second", *noting, "--max-update", "3", "--disable-validation")
    for rank in range(2):
        whole = ["load_optimizer_state", *update(1), *update(2), *VALIDATION, *SAVE]
        assert notes[rank] == ["attach", *whole]
        assert resumed[rank] == ["attach", "load_optimizer_state", *update(3), *SAVE]
    assert (list(losses), list(more)) == ([1, 2], [3])


def test_as_it_stands_it_is_data_parallelism(train, tmp_path):
    ours, _ = train("ours", "--ddp-backend", "noting", "--max-update", "3", "--no-save")
    (tmp_path / "theirs.0").touch(), (tmp_path / "theirs.1").touch()
    theirs, _ = train("theirs", "--ddp-backend", "legacy_ddp", "--max-update", "3", "--no-save")
    assert list(ours) == [1, 2, 3]
    assert ours == pytest.approx(theirs, rel=1e-4)


PACKAGE = ROOT / "fairseq_hybrid"
ANY = {"registry", "base"}
"""of backends/, what knows none in particular"""


def imported(file: Path) -> set[str]:
    """What it imports of backends/, by the first name below that."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {name.split(".")[2] for name in found if name.startswith("fairseq_hybrid.backends.")}


def test_the_trainer_knows_no_backend():
    trainer = PACKAGE / "trainer.py"
    assert imported(trainer) <= ANY
    backends = {path.stem for path in (PACKAGE / "backends").glob("[a-z]*.py")} - ANY
    names = [*backends, "hybrid", "wavefront", "decoupled", "model_parallel"]
    code = trainer.read_text().replace("fairseq_hybrid", "")
    assert not re.search(rf"\b({'|'.join(names)})\b", code)
    assert "hasattr" not in code
    assert len(trainer.read_text().splitlines()) <= 150


def test_no_class_is_rewritten():
    parts = ("fairseq_hybrid", "tests", "benchmarks", "examples")
    files = [file for part in parts for file in sorted((ROOT / part).rglob("*.py"))]
    rewriting = re.compile(r"\.__class__" + r"\s*=[^=]")
    assert len(files) > 100
    assert [file.name for file in files if rewriting.search(file.read_text())] == []

"""Imports point one way: a layer knows those before it, never one after it."""

from __future__ import annotations

import ast
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "fairseq_hybrid"
LAYERS = (
    ("errors", "seeds", "pages"),
    ("options",),
    ("checkpoints",),
    ("fairseq_patches",),
    ("config",),
    ("launch", "comm"),
    ("models", "tasks"),
    ("optim",),
    ("criterions", "generation"),
    ("backends",),
    ("trainer",),
    ("papers", "pretraining", "planner", "inference"),
    ("report",),
    ("plugin", "cli"),
)
PLACE = {name: place for place, names in enumerate(LAYERS) for name in names}


def imports(file: Path) -> set[str]:
    """The modules of this package that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name.split(".")[1] for name in found if name.startswith("fairseq_hybrid.")}


def upward(package: Path) -> list[str]:
    wrong = []
    for file in sorted(package.rglob("*.py")):
        here = file.relative_to(package).parts[0].removesuffix(".py")
        if here != "__init__":
            names = [n for n in imports(file) if n != here and PLACE[n] >= PLACE[here]]
            wrong += [f"{file.relative_to(package)} imports {name}" for name in sorted(names)]
    return wrong


def test_imports_point_one_way():
    assert upward(PACKAGE) == []


def test_an_upward_import_is_found(tmp_path):
    for folder in ("launch", "comm"):
        (tmp_path / folder).mkdir()
    (tmp_path / "launch/a.py").write_text("from fairseq_hybrid.errors import UserError\n")
    (tmp_path / "launch/b.py").write_text("def f():\n    from fairseq_hybrid import trainer\n")
    (tmp_path / "comm/c.py").write_text("import fairseq_hybrid.launch.launcher\n")
    assert upward(tmp_path) == ["comm/c.py imports launch", "launch/b.py imports trainer"]

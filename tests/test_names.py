"""One meaning per name: a class is defined once, and identifiers are words of the field."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "fairseq_hybrid"
LAYERS = ("launch", "planner", "comm", "checkpoints", "fairseq_patches", "tasks", "cli")
MODULES = ("errors.py", "options.py", "config.py", "plugin.py")
LATER = PACKAGE / "backends" / "wavefront"
"""its functions have other names yet"""
INSTEAD = {
    "met": "barrier",
    "meet": "barrier, rendezvous",
    "meeting": "rendezvous",
    "way": "transport",
    "take": "acquire, read",
    "apart": "separate",
    "spread": "shard",
    "check": "validate",
}


def definitions(files: list[Path], kinds: tuple[type, ...]) -> dict[str, list[str]]:
    """Name → the places where it is defined."""
    found = defaultdict(list)
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, kinds):
                found[node.name].append(f"{file.name}:{node.lineno}")
    return found


def test_a_class_name_stands_for_one_thing():
    files = [f for name in LAYERS for f in sorted((PACKAGE / name).rglob("*.py"))]
    mine = definitions([*files, *(PACKAGE / name for name in MODULES)], (ast.ClassDef,))
    everywhere = definitions(sorted(PACKAGE.rglob("*.py")), (ast.ClassDef,))
    assert {name: everywhere[name] for name in mine if len(everywhere[name]) > 1} == {}


def test_functions_are_named_by_words_of_the_field():
    files = [f for f in sorted(PACKAGE.rglob("*.py")) if LATER not in f.parents]
    named = definitions(files, (ast.FunctionDef,))
    theirs = ("_check_grad_norms",)  # fairseq's, overridden
    wrong = {
        name: f"{places}: say {INSTEAD[word]}"
        for name, places in named.items()
        if name not in theirs
        for word in name.split("_")
        if word in INSTEAD
    }
    assert wrong == {}

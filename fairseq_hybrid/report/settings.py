"""The settings of a training, from its log: those that differ between runs, and a command.

fairseq prints its whole configuration as Python writes it. It is taken apart as a tree of
literals, and nothing of it is evaluated. fairseq's parser, which evaluates some values, is asked
for the defaults only: it is given the names of model, task and the like, nothing else of the log.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

CHOSEN = ("task", "criterion", "optimizer", "lr_scheduler")
"""groups whose `_name` is a flag"""
NAME = re.compile(r"[\w.\-]{1,80}")
WORKERS_OWN = {
    *("user_dir", "distributed_rank", "distributed_init_method", "distributed_port", "device_id"),
    *("distributed_num_procs", "distributed_backend", "nprocs_per_node", "distributed_no_spawn"),
    *("no_seed_provided", "model_parallel_size", "local_rank"),
}
"""what the launcher sets"""
PLACES = {"save_dir", "data", "hybrid_trace", "tensorboard_logdir", "restore_file", "log_file"}
"""where files are: no difference between two trainings"""
ASIDE = {
    "log_format",
    "log_interval",
    "no_progress_bar",
    "wandb_project",
    "aim_repo",
    "aim_run_hash",
}
FOLLOWS = {"max_tokens_valid": "max_tokens", "batch_size_valid": "batch_size"}
"""what is another one's value if it is not given"""
GENERATION = ("generation", "eval_lm", "interactive", "common_eval", "bmuf")
"""groups that a training does not use"""


def parse(text: str) -> dict[str, Any] | None:
    """fairseq's configuration as it prints it: group → name → value."""
    try:
        tree = ast.parse(text.strip(), mode="eval")
        found = _value(tree.body)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None
    if not isinstance(found, dict) or not isinstance(found.get("common"), dict):
        return None
    return {str(group): values for group, values in found.items() if isinstance(values, dict)}


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Dict):
        keys = [k.value if isinstance(k, ast.Constant) else "" for k in node.keys]
        return {str(k): _value(v) for k, v in zip(keys, node.values)}
    if isinstance(node, (ast.List, ast.Tuple)):
        return [_value(v) for v in node.elts]
    if isinstance(node, ast.Call):  # Namespace(...): the settings of a model
        return {str(k.arg): _value(k.value) for k in node.keywords}
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _value(node.operand)
        return -inner if isinstance(inner, (int, float)) else None
    if isinstance(node, ast.Name) and node.id in ("inf", "nan"):
        return math.inf if node.id == "inf" else math.nan
    return ast.unparse(node)[:200]


def flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """Name → value, as the command line has them."""
    found: dict[str, Any] = {}
    model = config.get("model", {})
    for group, values in config.items():
        if group not in GENERATION and group != "model" and isinstance(values, dict):
            for name, value in values.items():
                if name != "_name":
                    found.setdefault(name, value)
    found.update({name: value for name, value in model.items() if name != "_name"})
    found.setdefault("arch", model.get("_name"))
    for group in CHOSEN:
        name = config.get(group, {}).get("_name")
        if name:
            found[group] = name
    return {name: value for name, value in found.items() if not isinstance(value, dict)}


def get(config: Mapping[str, Any] | None, name: str, default: Any = None) -> Any:
    return flat(config).get(name, default) if config else default


def differences(configs: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[str]]]:
    """What is not the same in all: the flag, and its value in each."""
    every = [flat(config) for config in configs]
    names = list(dict.fromkeys(name for each in every for name in each))
    rows = []
    for name in names:
        values = [shown(each[name]) if name in each else "–" for each in every]
        if len({*values}) > 1 and name not in WORKERS_OWN | PLACES | ASIDE:
            rows.append((flag(name), values))
    return rows


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def shown(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(shown, value))
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "–"}[value]
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return text or "–"


def command(config: Mapping[str, Any]) -> list[str] | None:
    """The words after fairseq-hybrid-train; None if a part of it is unknown here."""
    given = flat(config)
    choices = {name: str(given.get(name) or "") for name in ("arch", *CHOSEN)}
    choices = {name: value for name, value in choices.items() if value}
    if "arch" not in choices or not all(map(NAME.fullmatch, choices.values())):
        return None
    words = [word for name, value in choices.items() for word in (flag(name), value)]
    try:
        parser, defaults = _defaults(["data", *words])
    except (SystemExit, Exception):
        return None
    unlike = [
        action
        for action in parser._actions
        if action.option_strings
        and action.dest in given
        and action.dest not in {*choices, *WORKERS_OWN, "data"}
        and not _same(given[action.dest], getattr(defaults, action.dest, None))
        and not _same(given[action.dest], given.get(FOLLOWS.get(action.dest, ""), ""))
    ]
    for action in {action.dest: action for action in unlike}.values():
        words += _words(action, given[action.dest])
    return [str(given.get("data") or "DATA"), *words]


def _defaults(words: list[str]) -> tuple[argparse.ArgumentParser, argparse.Namespace]:
    """What fairseq would have with these choices and nothing else given."""
    from fairseq import options

    parser = options.get_training_parser()
    with contextlib.redirect_stderr(io.StringIO()):
        return parser, options.parse_args_and_arch(parser, words)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, bool) or isinstance(other, bool) or one is None or other is None:
        return one is other or (one is None and other == "") or (other is None and one == "")
    try:
        return float(one) == float(other)
    except (TypeError, ValueError, OverflowError):
        return str(one) == str(other)


def _words(action: argparse.Action, value: Any) -> Iterator[str]:
    name = max(action.option_strings, key=len)
    if action.nargs == 0:  # a switch; it can only be what it is not by default
        yield name
    elif isinstance(value, list) and isinstance(action.nargs, str):
        yield name
        yield from map(str, value)
    elif value is not None:
        text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
        yield from [f"{name}={text}"] if text.startswith("-") else [name, text]

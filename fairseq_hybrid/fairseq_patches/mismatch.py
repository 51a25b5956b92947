"""A checkpoint of another model: which flag, vocabulary or parameter differs, in one line.

fairseq shows torch's list of all parameters, inside a traceback of its own. What the checkpoint was
trained with is noted when its file is read (on the worker that reads it), so the flags that differ
can be named.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import torch
from fairseq import checkpoint_utils
from fairseq.models import BaseFairseqModel

from fairseq_hybrid.errors import UserError

SHOWN = 3
WAY_OUT = "choose another --save-dir or --restore-file, or give"

last_read: tuple[str, Any] = ("the checkpoint", None)
"""name and model configuration of the file that was read last"""


def read_and_note(path: str, *args: Any, **kwargs: Any) -> Any:
    """In place of ``load_checkpoint_to_cpu``."""
    global last_read
    state = fairseq_read(path, *args, **kwargs)
    last_read = (f"checkpoint {path}", getattr(state.get("cfg"), "model", None))
    return state


def load_or_explain(
    self: BaseFairseqModel,
    state_dict: dict[str, Any],
    strict: bool = True,
    model_cfg: Any = None,
    args: Any = None,
) -> Any:
    """In place of fairseq's."""
    try:
        return fairseq_load(self, state_dict, strict, model_cfg, args)
    except RuntimeError as error:
        line = explain_mismatch(self, state_dict, model_cfg)
        if line is None:
            raise
        raise UserError(line) from error


def explain_mismatch(model: BaseFairseqModel, saved: dict[str, Any], cfg: Any = None) -> str | None:
    """One line on what differs between a model and a saved one; None if nothing does."""
    own = model.state_dict()
    shapes = {k: v.shape for k, v in own.items() if torch.is_tensor(v)}
    theirs = {k: v.shape for k, v in saved.items() if torch.is_tensor(v)}
    differ = {k: (theirs[k], s) for k, s in shapes.items() if k in theirs and theirs[k] != s}
    unmatched = sorted(shapes.keys() ^ theirs.keys())
    if not (differ or unmatched):
        return None
    name, trained = last_read
    flags = list(different_flags(type(model), trained, cfg))
    if flags:
        return f"{name} was trained with {', '.join(flags[:SHOWN])}: {WAY_OUT} the same"
    for size in vocabulary_sizes(model):
        for key, (before, now) in differ.items():
            if now[:1] == (size,) and before[1:] == now[1:]:
                return (
                    f"{name} has a vocabulary of {before[0]:,} words ({key}) and the data one of "
                    f"{size:,}: give the data folder it was trained on, or another checkpoint"
                )
    if differ:
        key, (before, now) = next(iter(differ.items()))
        what = f"{key} of {' x '.join(map(str, before))}, the model {' x '.join(map(str, now))}"
        return f"{name} has {what}: {WAY_OUT} the sizes it was trained with"
    lacks = "does not have" if unmatched[0] in shapes else "has"
    return (
        f"{name} {lacks} {unmatched[0]}, unlike this model: {WAY_OUT} the --arch and the options "
        "it was trained with"
    )


def vocabulary_sizes(model: BaseFairseqModel) -> Iterator[int]:
    """Of the dictionaries."""
    for part in ("encoder", "decoder"):
        dictionary = getattr(getattr(model, part, None), "dictionary", None)
        if dictionary is not None:
            yield len(dictionary)


def different_flags(kind: type, before: Any, now: Any) -> Iterator[str]:
    """Sizes and switches of this kind of model that are not as they were."""
    if before is None or now is None:
        return
    arch = [getattr(cfg, "arch", None) or getattr(cfg, "_name", None) for cfg in (before, now)]
    if None not in arch and arch[0] != arch[1]:
        yield f"--arch {arch[0]} (not {arch[1]})"
    parser = argparse.ArgumentParser(add_help=False, conflict_handler="resolve")
    kind.add_args(parser)
    for action in parser._actions:
        flag = action.option_strings[0]
        old, new = (getattr(cfg, action.dest, None) for cfg in (before, now))
        if old == new or isinstance(old, float) or isinstance(new, float):
            continue  # dropout and the like
        if isinstance(new, bool):
            yield f"{flag} (now without)" if old else f"no {flag}"
        elif old is not None and new is not None:
            yield f"{flag} {old} (not {new})"


fairseq_read = checkpoint_utils.load_checkpoint_to_cpu
fairseq_load = BaseFairseqModel.load_state_dict


def install() -> None:
    checkpoint_utils.load_checkpoint_to_cpu = read_and_note
    BaseFairseqModel.load_state_dict = load_or_explain

"""A checkpoint of another model: one line that names what differs."""

from __future__ import annotations

from argparse import Namespace

import pytest
import torch
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY

import fairseq_hybrid  # noqa: F401
from fairseq_hybrid.errors import UserError, user_line
from fairseq_hybrid.fairseq_patches import mismatch


def dictionary(words: int):
    from fairseq.data import Dictionary

    made = Dictionary()
    for number in range(words - len(made)):
        made.add_symbol(f"w{number}")
    return made


def model(words: int = 40, arch: str = "hybrid_lstm", **options):
    """And its configuration."""
    sizes = {f"{s}_{w}": 8 for s in ("encoder", "decoder") for w in ("embed_dim", "hidden_size")}
    args = Namespace(
        arch=arch, criterion="cross_entropy", **{**sizes, "encoder_layers": 2, **options}
    )
    ARCH_CONFIG_REGISTRY[arch](args)
    both = Namespace(source_dictionary=dictionary(words), target_dictionary=dictionary(words))
    return ARCH_MODEL_REGISTRY[arch].build_model(args, both), args


@pytest.fixture(autouse=True)
def _nothing_read(monkeypatch):
    monkeypatch.setattr(mismatch, "last_read", ("the checkpoint", None))


def refusal(before: dict, now: dict, monkeypatch=None) -> str:
    (saved, cfg), (other, other_cfg) = model(**before), model(**now)
    if monkeypatch is not None:  # on the worker that reads the file
        monkeypatch.setattr(mismatch, "last_read", ("checkpoint a.pt", cfg))
    with pytest.raises(UserError) as error:
        other.load_state_dict(saved.state_dict(), model_cfg=other_cfg)
    return str(error.value)


def test_another_vocabulary(monkeypatch):
    line = refusal({"words": 6000}, {"words": 1000}, monkeypatch)
    assert "checkpoint a.pt has a vocabulary of 6,000 words (encoder." in line
    assert "the data one of 1,000: give the data folder it was trained on" in line


def test_another_size_names_the_flags(monkeypatch):
    line = refusal(
        {"encoder_hidden_size": 8},
        {"encoder_hidden_size": 16, "decoder_hidden_size": 16},
        monkeypatch,
    )
    assert "--encoder-hidden-size 8 (not 16), --decoder-hidden-size 8 (not 16)" in line
    assert "choose another --save-dir or --restore-file, or give the same" in line


def test_another_arch(monkeypatch):
    line = refusal({"arch": "lstm", "decoder_layers": 2}, {}, monkeypatch)
    assert "was trained with --arch lstm (not hybrid_lstm)" in line


def test_a_worker_that_has_not_read_the_file_names_the_parameter():
    line = refusal({}, {"encoder_hidden_size": 16, "decoder_hidden_size": 16})
    assert "the checkpoint has encoder." in line
    assert " x 8, the model " in line
    assert "does not have" in refusal({"encoder_layers": 1}, {})


def test_dropout_may_differ(monkeypatch):
    (saved, cfg), (other, other_cfg) = model(dropout=0.1), model(dropout=0.3)
    other.load_state_dict(saved.state_dict(), model_cfg=other_cfg)
    theirs = other.state_dict()
    assert all(torch.equal(value, theirs[name]) for name, value in saved.state_dict().items())
    assert list(mismatch.different_flags(type(saved), cfg, other_cfg)) == []


def cannot_load() -> None:
    """As fairseq's trainer does it."""
    try:
        raise UserError("--x 3: use 4")
    except Exception:
        raise Exception("Cannot load model parameters from checkpoint a.pt")  # noqa: B904


def test_fairseq_trainers_complaint_gives_way_to_it():
    with pytest.raises(Exception, match="Cannot load") as error:
        cannot_load()
    assert user_line(error.value) == "--x 3: use 4"
    assert user_line(Exception("Cannot load")) is None

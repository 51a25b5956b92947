"""Whatever is done to a checkpoint: it loads, or is refused in one line."""

from __future__ import annotations

import io
import os
import signal
import time

import fuzzing
import numpy as np
import pytest
import torch
from fuzzing import Mutator, fuzz
from jobs import train
from test_unpickler import values

import fairseq_hybrid  # noqa: F401
from fairseq_hybrid import checkpoints
from fairseq_hybrid.errors import UserError


def stored(state: object, **how: bool) -> bytes:
    stream = io.BytesIO()
    torch.save(state, stream, **how)
    return stream.getvalue()


@pytest.fixture(scope="module")
def seeds() -> list[bytes]:
    """Everything fairseq stores, in both formats, and what every version of the loader opens."""
    small = {key: values()[key] for key in ("model", "optimizer", "args", "numbers")}
    small["metrics"] = [np.float64(1.5), np.arange(4)]
    older = stored(values(), _use_new_zipfile_serialization=False)
    return [stored(values()), stored(small), older]


def test_whatever_is_done_to_a_checkpoint_it_loads_or_is_refused(seeds):
    failures, counts = fuzz(checkpoints.load, seeds, 300, (UserError,))
    assert not failures
    assert counts["loaded"] > 20
    assert counts["refused"] > 100


def test_the_fuzzer_notices_what_a_bad_loader_does(seeds, monkeypatch):
    """A crash, a hang, too much memory, other code and an error of another kind."""
    monkeypatch.setattr(fuzzing, "SECONDS", 1)
    faults = [
        lambda: os.kill(os.getpid(), signal.SIGSEGV),
        lambda: time.sleep(60),
        lambda: bytearray(8 << 30),
        lambda: os.system("true"),
        lambda: [][1],
    ]
    mutator = Mutator(seeds)
    wanted = {mutator.case(case): fault for case, fault in enumerate(faults)}
    failures, _ = fuzz(lambda stream: wanted[stream.read()](), seeds, 5, (UserError,))
    words = ["crashed: signal 11", "hung", "MemoryError", "ran ['os.system']", "IndexError"]
    assert len(failures) == 5
    for failure, word in zip(failures, words):
        assert word in failure.what


def test_a_case_is_always_the_same(seeds):
    assert [Mutator(seeds).case(n) for n in range(30)] == [
        Mutator(seeds).case(n) for n in range(30)
    ]


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_twenty_thousand_cases_of_real_checkpoints(data, seeds, tmp_path):
    """Files of one worker and of two, with a natural gradient, and of before torch 1.6."""
    kinds = {
        "adam": (),
        "ng_sgd": ("--optimizer", "ng_sgd"),
        "hybrid": ("--ddp-backend", "legacy_ddp", "--distributed-world-size", "2"),
    }
    real = []
    for kind, flags in kinds.items():
        train(data, tmp_path / kind, "--max-update", 2, *flags).ok()
        path = tmp_path / kind / "checkpoint_last.pt"
        real.append(path.read_bytes())
    state = checkpoints.load(str(path))
    real.append(stored(state, _use_new_zipfile_serialization=False))
    failures, counts = fuzz(checkpoints.load, [*seeds, *real], 20_000, (UserError,))
    assert not failures
    assert counts["loaded"] > 1000

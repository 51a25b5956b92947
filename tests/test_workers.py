"""The launcher of workers: what each returns, and what is said and left when one fails or hangs."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from jobs import alive
from workers import WorkerError, run_workers


def add(start: int) -> tuple[int, torch.Tensor]:
    total = torch.tensor([start + dist.get_rank()])
    dist.all_reduce(total)
    return dist.get_rank(), total


def stay(folder: Path, fails: int | None) -> None:
    (folder / str(dist.get_rank())).write_text(str(os.getpid()))
    dist.barrier()
    if dist.get_rank() == fails:
        raise ArithmeticError("as the test asks")
    time.sleep(60)


def test_everyone_returns_something():
    assert run_workers(add, 3, 10) == [(rank, torch.tensor([33])) for rank in range(3)]


@pytest.mark.parametrize("fails", [1, None], ids=["fails", "hangs"])
def test_who_failed_is_said_and_nobody_is_left(tmp_path, fails):
    began = time.monotonic()
    with pytest.raises(WorkerError) as error:
        run_workers(stay, 2, tmp_path, fails, timeout=60 if fails else 5)
    assert time.monotonic() - began < 40
    if fails:
        assert str(error.value).startswith("rank 1 failed: exit code 1\n")
        assert "Traceback" in error.value.errors[1]
        assert "ArithmeticError: as the test asks" in error.value.errors[1]
    else:
        assert error.value.hung == [0, 1]
        assert all("in stay" in text for text in error.value.errors.values())
    pids = [int((tmp_path / str(rank)).read_text()) for rank in range(2)]
    assert alive(pids) == []

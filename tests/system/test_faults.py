"""Faults in workers: the rest ends with a line, nothing stays behind, no saved update is lost."""

from __future__ import annotations

import pytest
from faults.cells import BACKENDS, TIMEOUT, inject

SHORT = {
    ("end:1:7:collective", "hybrid"): "worker 1 (pid",
    ("freeze:1:7:backward", "legacy_ddp"): "has given no sign of life for 5 s",
}
LONG = [
    (f"{kind}:1:7:{place}", backend)
    for kind in ("end", "freeze")
    for place in ("forward", "backward", "collective", "step", "save")
    for backend in BACKENDS
    if backend != "one worker" and (f"{kind}:1:7:{place}", backend) not in SHORT
]


def job_ended(server, data, folder, fault, backend):
    cell = inject(server, data, folder, fault, backend)
    assert cell.code not in (0, None)
    assert cell.seconds < TIMEOUT + 10
    assert not cell.left
    assert cell.lost == 0
    assert cell.finished
    return cell


@pytest.mark.parametrize(("fault", "backend"), SHORT)
def test_a_fault_ends_the_job_with_a_line_that_names_the_worker(
    server, data, tmp_path, fault, backend
):
    assert SHORT[fault, backend] in job_ended(server, data, tmp_path, fault, backend).line


@pytest.mark.long
@pytest.mark.parametrize(("fault", "backend"), LONG)
def test_every_fault_ends_the_job(server, data, tmp_path, fault, backend):
    assert "worker 1" in job_ended(server, data, tmp_path, fault, backend).line


@pytest.mark.long
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_late_worker_ends_nothing(server, data, tmp_path, backend):
    rank = 0 if backend == "one worker" else 1
    assert inject(server, data, tmp_path, f"delay:{rank}:7:backward", backend).code == 0

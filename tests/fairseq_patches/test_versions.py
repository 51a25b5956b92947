from __future__ import annotations

import subprocess
import sys

import pytest
import torch

import fairseq_hybrid  # noqa: F401
from fairseq_hybrid.errors import UserError
from fairseq_hybrid.fairseq_patches import versions


@pytest.mark.parametrize(
    ("found", "fine"),
    [("2.13.0+cpu", True), ("2.13.1", True), ("2.1.3", False), ("2.14.0", False), ("3.0", False)],
)
def test_tested_series(found, fine):
    line = versions.complaint("torch", found, ("2.13",))
    assert (line is None) == fine
    if line:
        assert found in line
        assert "2.13" in line


def test_too_old_a_torch_is_refused(monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.5.1")
    with pytest.raises(UserError, match=r"torch 2\.5\.1 is too old"):
        versions.install()


def test_untested_version_warns_once_and_goes_on(monkeypatch, caplog):
    monkeypatch.setattr(torch, "__version__", "2.99.0")
    versions.install()
    assert "torch 2.99.0 is outside" in caplog.text


def test_fairseq_is_untouched_without_the_plugin():
    """Nothing of ours is imported, and nothing of fairseq's changed, by installing the package."""
    code = (
        "import sys, fairseq.checkpoint_utils as c, fairseq.distributed.utils as d, torch;"
        "assert not [m for m in sys.modules if m.startswith('fairseq_hybrid')];"
        "assert c.torch is torch and d.call_main.__module__ == 'fairseq.distributed.utils'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)

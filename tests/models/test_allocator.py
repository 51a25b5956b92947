"""Freed memory stays with the process: a second large tensor costs no page faults."""

import sys

import pytest
from jobs import ROOT, run

SCRIPT = """
import resource, torch
from fairseq_hybrid.models.allocator import keep_large_buffers
print(keep_large_buffers())
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(2):
    torch.ones(25_000_000)
before = faults()
for _ in range(20):
    torch.ones(25_000_000)
print(faults() - before)
"""


def page_faults(**env):
    done = run(sys.executable, "-c", SCRIPT, cwd=ROOT, **env).ok()
    switched_on, faults = done.out.split()[-2:]
    return switched_on == "True", int(faults)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a setting of glibc")
def test_large_buffers_are_kept():
    on, faults = page_faults()
    assert on
    off, faults_without = page_faults(FAIRSEQ_HYBRID_KEEP_BUFFERS="0")
    assert not off
    # Twenty times 100 MB, in pages of 4 kB; large pages would make it less. Some are taken away
    # by the kernel in the meantime, whatever the process does.
    assert faults_without > 1000
    assert faults < faults_without / 3


def test_own_malloc_settings_win():
    assert not page_faults(MALLOC_ARENA_MAX="2")[0]

"""Freed memory stays with the process: a second large tensor costs no page faults."""

import resource
import sys

import pytest
import torch


def measure() -> None:
    """In a process that has not imported this package yet."""
    from fairseq_hybrid.models.allocator import keep_large_buffers

    def faults() -> int:
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

    print(keep_large_buffers())
    for _ in range(2):
        torch.ones(25_000_000)
    before = faults()
    for _ in range(20):
        torch.ones(25_000_000)
    print(faults() - before)


@pytest.fixture
def page_faults(bare_server):
    def run(**env: str) -> tuple[bool, int]:
        switched_on, faults = bare_server.call(measure, **env).ok().out.split()[-2:]
        return switched_on == "True", int(faults)

    return run


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a setting of glibc")
def test_large_buffers_are_kept(page_faults):
    on, faults = page_faults()
    assert on
    off, faults_without = page_faults(FAIRSEQ_HYBRID_KEEP_BUFFERS="0")
    assert not off
    # Twenty times 100 MB, in pages of 4 kB; large pages would make it less. Some are taken away
    # by the kernel in the meantime, whatever the process does.
    assert faults_without > 1000
    assert faults < faults_without / 3


def test_own_malloc_settings_win(page_faults):
    assert not page_faults(MALLOC_ARENA_MAX="2")[0]

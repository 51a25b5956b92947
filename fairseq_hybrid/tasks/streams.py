"""Streams of text: the order of batches in which every sequence goes on from batch to batch.

A corpus is a row of blocks of equal length. Cut into streams, batch t is the t-th block of each:

    blocks       0 1 2 3 4 5 6 7 8 9 10 11      4 streams:  0 1 2 | 3 4 5 | 6 7 8 | 9 10 11
    1 worker     [0 3 6 9] [1 4 7 10] [2 5 8 11]
    2 workers    [0 3] [1 4] [2 5]  and  [6 9] [7 10] [8 11]

W workers with b streams each see in each update what one worker with W * b streams sees.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from fairseq.data import FairseqDataset
from fairseq.data.iterators import EpochBatchIterator


@dataclass(frozen=True)
class Streams:
    """Which blocks of a corpus make up which stream."""

    edges: tuple[int, ...]
    """stream s is blocks edges[s] to edges[s + 1]; none is longer than the one before"""

    @classmethod
    def cut(cls, blocks: int, streams: int, *, rest: bool) -> Streams:
        """`rest`: all blocks, the first streams being longer by one if need be."""
        length, longer = divmod(blocks, streams)
        longer = longer if rest else 0
        return cls(tuple(s * length + min(s, longer) for s in range(streams + 1)))

    def batches(self, workers: int) -> Iterator[list[int]]:
        """Batch after batch, dealt out to the workers in turns; [] if a worker's streams ended."""
        firsts, ends = self.edges[:-1], self.edges[1:]
        size = len(firsts) // workers
        for t in range(ends[0] - firsts[0]):
            for w in range(0, len(firsts), size):
                mine = slice(w, w + size)
                yield [a + t for a, end in zip(firsts[mine], ends[mine]) if a + t < end]


class StreamIterator(EpochBatchIterator):
    """Batches in the order given, whatever `fairseq-train` or a checkpoint says of shuffling."""

    in_order = True

    def ordered_batches(self, epoch: int, fix_batches_to_gpus: bool, shuffle: bool) -> Any:
        return super().ordered_batches(epoch, fix_batches_to_gpus, shuffle=False)


@dataclass
class StreamCollater:
    """The dataset's own collater, and `net_input["fresh"]`: true where a stream begins."""

    dataset: FairseqDataset
    firsts: torch.Tensor

    def __call__(self, samples: list[dict[str, Any]]) -> dict[str, Any]:
        batch = self.dataset.collater(samples)
        if batch:
            batch["net_input"]["fresh"] = torch.isin(batch["id"], self.firsts)
        return batch

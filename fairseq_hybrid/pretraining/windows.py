"""The contexts of an n-gram model as examples: drawn in random order, dealt out to the workers.

An example is a window of n - 1 words that ends at a word of the text. With `--sample-break-mode
none` the text is read through; otherwise windows do not reach into the block before and have ends
of sentences instead, as in the model. The order of an epoch is a function of the seed, so a
position in it is all that has to be remembered.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor


class Windows:
    """All windows of a text, which is kept in memory (4 bytes a word, 8 more a window)."""

    def __init__(self, blocks: Iterable[Tensor], *, context: int, eos: int, through: bool):
        self.context = context
        before = torch.full((context - 1,), eos, dtype=torch.int32)
        pieces, ends, size = [], [], 0
        for i, block in enumerate(blocks):
            if i == 0 or not through:
                pieces.append(before)
                size += len(before)
            pieces.append(block.int())
            ends.append(torch.arange(size, size + len(block)))
            size += len(block)
        self.words = torch.cat(pieces) if pieces else before
        self.ends = torch.cat(ends) if ends else torch.empty(0, dtype=torch.long)

    @classmethod
    def of_task(cls, task: Any, split: str, context: int) -> Windows:
        """Of a language modelling task's text."""
        dataset = task.dataset(split)
        return cls(
            (dataset[i]["source"] for i in range(len(dataset))),
            context=context,
            eos=task.source_dictionary.eos(),
            through=str(task.args.sample_break_mode or "none") == "none",
        )

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, which: Tensor) -> Tensor:
        """words_NL, the oldest first."""
        return self.words[self.ends[which].unsqueeze(1) + torch.arange(1 - self.context, 1)]


class Minibatches:
    """A worker's share of an epoch in random order, from its minibatch `n` on.

    Windows at the end of the order that do not fill a minibatch of every worker are left out.
    """

    def __init__(
        self, windows: Windows, size: int, *, seed: int, n: int = 0, rank: int = 0, world: int = 1
    ):
        self.windows, self.size, self.seed = windows, size, seed
        self.rank, self.world = rank, world
        self.n = n
        """where a progress bar starts, too"""

    def __len__(self) -> int:
        """Of the whole epoch."""
        return len(self.windows) // (self.size * self.world)

    def __iter__(self) -> Iterator[Tensor]:
        generator = torch.Generator().manual_seed(self.seed)
        order = torch.randperm(len(self.windows), generator=generator)
        for i in range(self.n, len(self)):
            begin = (i * self.world + self.rank) * self.size
            yield self.windows[order[begin : begin + self.size]]

"""The words over which one update's softmax is computed.

Xiao et al. (2017), in our reading: the words of the minibatch, the most frequent words, and a few
others drawn at random. The drawn ones come without replacement and with known probabilities: the
line [0, R) is cut among the rare words by their weights, and one point is drawn in each unit
interval. A word has a piece of at most one unit, so it lies in at most two intervals, and its
probability of being drawn is exact and cheap: 1 - (1 - a)(1 - b) for pieces of lengths a and b.
That is what an unbiased estimate of the softmax's sum over all words needs: each exp(score) divided
by the probability that the word is there (Horvitz & Thompson), which is 1 for words of the
minibatch and for frequent ones.

A draw costs O(R log V). Nothing here depends on the model.

Shape suffixes: V vocabulary, F frequent words, R random draws, S words of the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

DISTRIBUTIONS = ("unigram", "log_uniform", "uniform")


class WordSample(NamedTuple):
    """The words of a step, in ascending order, and how likely each was to be among them."""

    words_S: Tensor
    log_inclusion_S: Tensor

    def positions(self, words: Tensor) -> Tensor:
        """Where in the sample these words are; all of them must be there."""
        return torch.searchsorted(self.words_S, words)


class WordSampler:
    """`sampler.draw(targets, seed)` gives the words of a step.

    `always` are the dictionary's special symbols: they have no counts and are in every sample.
    """

    def __init__(
        self,
        counts: Sequence[int],
        *,
        frequent: int,
        random: int,
        distribution: str = "unigram",
        power: float = 0.75,
        always: Sequence[int] = (),
    ):
        counts_V = torch.as_tensor(counts, dtype=torch.float64).clone()
        counts_V[list(always)] = float("inf")
        order_V = counts_V.argsort(descending=True, stable=True)
        fixed = min(len(always) + frequent, counts_V.numel())
        self.frequent_F, rare = order_V[:fixed], order_V[fixed:]
        self.random = min(random, rare.numel())
        weights = self._weights(counts_V[rare], fixed, distribution, power)
        shares = shares_below_one(weights, self.random)
        ends = shares.cumsum(0)
        self.rare, self.ends = rare, ends
        inclusion_V = torch.ones_like(counts_V)
        if self.random:
            inclusion_V[rare] = probabilities(shares, ends)
        self.inclusion_V = inclusion_V
        self.log_inclusion_V = inclusion_V.log().float()

    @staticmethod
    def _weights(counts: Tensor, before: int, distribution: str, power: float) -> Tensor:
        if distribution == "unigram":
            return counts.clamp(min=1).pow(power)
        if distribution == "log_uniform":
            rank = torch.arange(before, before + counts.numel(), dtype=torch.float64)
            return (1 / (rank + 1)).log1p()
        return torch.ones_like(counts)

    def draw(self, targets: Tensor, seed: int) -> WordSample:
        """The same words on every worker that gives the same targets and seed."""
        device = targets.device
        if self.frequent_F.device != device:
            self.frequent_F = self.frequent_F.to(device)
            self.log_inclusion_V = self.log_inclusion_V.to(device)
        drawn = self._random_words(seed).to(device, non_blocking=True)
        words_S = torch.cat((targets, self.frequent_F, drawn)).unique()
        log_inclusion_S = self.log_inclusion_V[words_S]
        # A word of the minibatch is there for certain, also if it was drawn as well.
        sample = WordSample(words_S, log_inclusion_S)
        log_inclusion_S[sample.positions(targets)] = 0.0
        return sample

    def _random_words(self, seed: int) -> Tensor:
        if not self.random:
            return self.rare[:0]
        generator = torch.Generator().manual_seed(seed)
        points = torch.rand(self.random, generator=generator, dtype=torch.float64)
        points += torch.arange(self.random, dtype=torch.float64)
        found = torch.searchsorted(self.ends, points, right=True)
        return self.rare[found.clamp_(max=self.rare.numel() - 1)]


def shares_below_one(weights: Tensor, total: int) -> Tensor:
    """Shares of `total` in proportion to the weights, none above 1 (as if by pouring over)."""
    shares = torch.zeros_like(weights)
    full = torch.zeros_like(weights, dtype=torch.bool)
    while True:
        left = total - int(full.sum())
        rest = weights.masked_fill(full, 0.0)
        shares = torch.where(full, 1.0, rest * (left / rest.sum().clamp(min=1e-300)))
        over = (shares >= 1) & ~full
        if not over.any():
            return shares
        full |= over


def probabilities(shares: Tensor, ends: Tensor) -> Tensor:
    """Of being hit when one point falls into every unit interval."""
    begins = torch.cat((ends.new_zeros(1), ends[:-1]))
    cut = begins.floor() + 1
    first = torch.minimum(ends, cut) - begins
    second = (ends - cut).clamp(min=0)
    return (1 - (1 - first) * (1 - second)).clamp(min=1e-12, max=1.0)

"""The words of a step: what is in the sample, and with which probability."""

from __future__ import annotations

import pytest
import torch

from fairseq_hybrid.criterions.word_sample import DISTRIBUTIONS, WordSampler, shares_below_one

VOCABULARY = 200
COUNTS = [1] * 4 + [max(1, 5000 // (rank + 1)) for rank in range(VOCABULARY - 4)]
SPECIAL = range(4)


def sampler(frequent=10, random=40, **options) -> WordSampler:
    return WordSampler(COUNTS, frequent=frequent, random=random, always=SPECIAL, **options)


def estimates(chooser: WordSampler, scores: torch.Tensor, targets: torch.Tensor, draws: int):
    """exp(score) / probability summed over the sample: one estimate of the sum a draw."""
    sums = []
    for seed in range(draws):
        sample = chooser.draw(targets, seed)
        sums.append((scores[sample.words_S] - sample.log_inclusion_S).exp().sum())
    return torch.stack(sums)


def test_targets_frequent_and_special_words_are_always_there():
    targets = torch.tensor([150, 199])
    words = set(sampler().draw(targets, seed=3).words_S.tolist())
    assert words >= {0, 1, 2, 3, *range(4, 14), 150, 199}


def test_words_are_distinct_ascending_and_as_many_as_asked_for():
    sample = sampler().draw(torch.tensor([5]), seed=1)
    words = sample.words_S
    assert (words.diff() > 0).all()
    # a word that lies across two intervals may be hit twice: a few less than 4 + 10 + 40
    assert 48 <= words.numel() <= 54


def test_the_seed_decides():
    chooser, targets = sampler(), torch.tensor([7])
    assert torch.equal(chooser.draw(targets, 5).words_S, chooser.draw(targets, 5).words_S)
    assert not torch.equal(chooser.draw(targets, 5).words_S, chooser.draw(targets, 6).words_S)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_words_come_as_often_as_their_probability_says(distribution):
    chooser, draws = sampler(distribution=distribution), 4000
    seen = torch.zeros(VOCABULARY)
    for seed in range(draws):
        seen[chooser.draw(torch.tensor([0]), seed).words_S] += 1
    p = chooser.inclusion_V.float()
    error = (p * (1 - p) / draws).sqrt().clamp(min=1e-4)
    assert p.min() > 0
    assert p.max() <= 1
    assert ((seen / draws - p) / error).abs().max() < 5  # of 200 words, none 5 deviations off
    if distribution != "uniform":
        assert p[20] > 1.5 * p[190]


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_the_estimated_sum_is_right_on_average(distribution):
    """With the log-q correction, within the Monte-Carlo error; without it, far off."""
    torch.manual_seed(0)
    scores, targets, draws = torch.randn(VOCABULARY), torch.tensor([60, 120]), 4000
    chooser = sampler(distribution=distribution)
    true = scores.exp().sum()
    sums = estimates(chooser, scores, targets, draws)
    error = sums.std() / draws**0.5
    assert abs(sums.mean() - true) < 4 * error
    assert error < 0.01 * true  # so a correction wrong by some percent would be seen
    chooser.log_inclusion_V.zero_()
    assert estimates(chooser, scores, targets, 50).max() < 0.9 * true


def test_a_wrong_probability_is_seen():
    """The test above has teeth: n·q, the usual approximation, is told from the truth."""
    torch.manual_seed(0)
    scores, targets, draws = torch.randn(VOCABULARY), torch.tensor([60]), 4000
    chooser = WordSampler(COUNTS, frequent=0, random=120, always=SPECIAL, power=1.0)
    true = scores.exp().sum()
    weights = torch.tensor(COUNTS[4:], dtype=torch.float64)
    for log_inclusion, right in (
        (chooser.log_inclusion_V.clone(), True),
        (torch.cat((torch.zeros(4), (120 * weights / weights.sum()).log().float())), False),
    ):
        chooser.log_inclusion_V = log_inclusion
        sums = estimates(chooser, scores, targets, draws)
        off = abs(sums.mean() - true) / (sums.std() / draws**0.5)
        assert (off < 4) == right


def test_the_gradients_bias_shrinks_with_the_sample():
    """Mean gradient of log-sum over draws against the full softmax's."""
    torch.manual_seed(1)
    scores, targets = torch.randn(VOCABULARY), torch.tensor([50])
    full = scores.softmax(0)
    biases = []
    for random in (10, 40, 120):
        chooser, mean, draws = sampler(random=random), torch.zeros(VOCABULARY), 3000
        for seed in range(draws):
            sample = chooser.draw(targets, seed)
            p = (scores[sample.words_S] - sample.log_inclusion_S).softmax(0)
            mean[sample.words_S] += p / draws
        biases.append((mean - full).abs().sum().item())
    assert biases[0] > 1.5 * biases[1] > 1.5 * 1.5 * biases[2]
    assert biases[2] < 0.02


def test_the_whole_vocabulary():
    sample = sampler(frequent=30, random=VOCABULARY - 34).draw(torch.tensor([9]), seed=0)
    assert sample.words_S.tolist() == list(range(VOCABULARY))
    assert sample.log_inclusion_S.abs().max() < 1e-6


def test_no_random_words():
    sample = sampler(frequent=5, random=0).draw(torch.tensor([100]), seed=0)
    assert sample.words_S.tolist() == [*range(9), 100]


def test_shares_add_up_and_stay_below_one():
    weights = torch.tensor([1000.0, 300.0, 5.0, 4.0, 3.0, 2.0, 1.0], dtype=torch.float64)
    shares = shares_below_one(weights, 4)
    assert shares.sum().item() == pytest.approx(4)
    assert shares.max() <= 1
    assert shares[:2].tolist() == [1.0, 1.0]
    assert (shares[2:] / shares[6]).tolist() == pytest.approx([5, 4, 3, 2, 1])

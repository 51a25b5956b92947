"""`--criterion sampled_softmax`: training on some of the words, measuring on all of them.

In training the softmax of an update is over the words of the minibatch, the most frequent ones and
a random few (word_sample.py), one set for all positions, so that scores and gradients are dense
matrices over these words. Only their rows of the output weights are read, get a gradient and are
updated (optim/rows.py); under `--ddp-backend sampled` all workers have the same set and only its
rows travel. Validation and `fairseq-eval-lm` use the full softmax, so their perplexities compare;
the training loss is that of the sample and does not. `--label-smoothing` gives a share of the
target's probability to all words, for which those of the sample stand as in the softmax.

    fairseq-train DATA --user-dir fairseq_hybrid --task streamed_language_modeling \\
      --arch hybrid_lstm_lm --criterion sampled_softmax --sample-random 1000 ...

It asks a model for three things: `forward(..., features_only=True)` (the vectors that the output
weights score), `softmax_parameters()` and `use_row_gradients()`.

Shape suffixes: N target positions, S words of the step, D features.
"""

import math
import os
import sys
from dataclasses import dataclass
from typing import Any, Optional

import torch
from fairseq.criterions import register_criterion
from fairseq.criterions.cross_entropy import CrossEntropyCriterionConfig
from fairseq.data import Dictionary
from fairseq.logging import metrics
from fairseq.models import ARCH_MODEL_REGISTRY, BaseFairseqModel
from omegaconf import II
from torch import Tensor

from fairseq_hybrid import options
from fairseq_hybrid.criterions import in_place
from fairseq_hybrid.criterions.cross_entropy import CrossEntropyCriterion
from fairseq_hybrid.criterions.word_sample import DISTRIBUTIONS, WordSample, WordSampler
from fairseq_hybrid.errors import UserError
from fairseq_hybrid.optim import rows
from fairseq_hybrid.options import Need
from fairseq_hybrid.seeds import mix

CORRECTIONS = ("logq", "none")
AUTO = -1
FREQUENT_SHARE, RANDOM_SHARE = 80, 40
"""by default one word in so many of the vocabulary"""


WORDS = {"good": lambda n: n >= AUTO, "wrong": "is not a number of words: give 0 or more"}
UNIGRAM = Need("--sample-distribution", ("unigram",), "criterion", "sample_distribution")


@dataclass
class SampledSoftmaxConfig(CrossEntropyCriterionConfig):
    sample_frequent: int = options.field(
        AUTO, "most frequent words, in every sample (default: vocabulary / 80)", **WORDS
    )
    sample_random: int = options.field(
        AUTO, "other words, drawn for every update (default: vocabulary / 40)", **WORDS
    )
    sample_distribution: str = options.field(
        "unigram",
        "how they are drawn: unigram (count ** power), log_uniform (by rank), uniform",
        **options.known(DISTRIBUTIONS),
    )
    sample_power: float = options.field(
        0.75, "power of the counts",
        good=math.isfinite, wrong="is not a power: give such as 0.75", needs=(UNIGRAM,),
    )  # fmt: skip
    sample_correction: str = options.field(
        "logq",
        "logq: drawn words stand for those that were not, by the probability of being drawn, so "
        "that the softmax's sum is right on average; none: the sample is all there is",
        **options.known(CORRECTIONS),
    )
    label_smoothing: float = options.field(
        0.0, "epsilon for label smoothing, 0 means no label smoothing",
        good=lambda e: 0 <= e < 1, wrong="is not a share: give 0 <= E < 1",
    )  # fmt: skip
    seed: int = II("common.seed")


options.declare(*options.rows_of(SampledSoftmaxConfig, "criterion", "sampled_softmax"))


def sizes(cfg: Any, vocabulary: int) -> tuple[int, int]:
    """How many frequent and how many random words."""
    frequent = cfg.sample_frequent if cfg.sample_frequent != AUTO else vocabulary // FREQUENT_SHARE
    random = cfg.sample_random if cfg.sample_random != AUTO else vocabulary // RANDOM_SHARE
    return frequent, random


def validate_sample(cfg: Any, dictionary: Dictionary) -> None:
    """Refuse a sample that cannot be drawn from this dictionary."""
    options.validate_values_of("sampled_softmax", cfg)
    words = len(dictionary) - dictionary.nspecial
    frequent, random = sizes(cfg, len(dictionary))
    if frequent + random > words:
        raise UserError(
            f"--sample-frequent {frequent} and --sample-random {random} are more than the "
            f"dictionary's {words} words: lower them, or use --criterion cross_entropy"
        )
    counts = dictionary.count[dictionary.nspecial :]
    needed = frequent > 0 or (random > 0 and cfg.sample_distribution != "uniform")
    if needed and words > 1 and min(counts) == max(counts):
        raise UserError(
            f"the dictionary has no counts (all are {counts[0]}), by which --sample-frequent "
            f"{frequent} and --sample-distribution {cfg.sample_distribution} choose words: make it "
            "with fairseq-preprocess, or use --sample-frequent 0 --sample-distribution uniform"
        )


def validate_sampled_softmax(cfg: Any) -> None:
    """Refuse what cannot work, before any worker starts."""
    criterion = cfg.criterion
    if getattr(criterion, "_name", None) != "sampled_softmax":
        return
    arch = getattr(cfg.model, "_name", None) or getattr(cfg.model, "arch", None)
    if not hasattr(ARCH_MODEL_REGISTRY.get(arch), "softmax_parameters"):
        able = [a for a, m in ARCH_MODEL_REGISTRY.items() if hasattr(m, "softmax_parameters")]
        raise UserError(
            f"--criterion sampled_softmax cannot score single words of --arch {arch}: use one of "
            f"{', '.join(able)}, or --criterion cross_entropy"
        )
    rows.refuse_whole_matrices(cfg)
    path = dictionary_path(cfg.task)
    if path is not None:
        validate_sample(criterion, Dictionary.load(path))


def dictionary_path(task: Any) -> Optional[str]:
    """The file of the target words, if it is where fairseq-preprocess puts it."""
    folder = str(getattr(task, "data", None) or "").split(os.pathsep)[0]
    language = getattr(task, "target_lang", None)
    path = os.path.join(folder, f"dict.{language}.txt" if language else "dict.txt")
    return path if os.path.isfile(path) else None


@register_criterion("sampled_softmax", dataclass=SampledSoftmaxConfig)
class SampledSoftmaxCriterion(CrossEntropyCriterion):
    def __init__(self, cfg: SampledSoftmaxConfig, task):
        super().__init__(task, cfg.sentence_avg)
        dictionary = task.target_dictionary
        validate_sample(cfg, dictionary)
        frequent, random = sizes(cfg, len(dictionary))
        self.sampler = WordSampler(
            dictionary.count,
            frequent=frequent,
            random=random,
            distribution=cfg.sample_distribution,
            power=cfg.sample_power,
            always=range(dictionary.nspecial),
        )
        self.corrects = cfg.sample_correction == "logq"
        self.smoothing, self.vocabulary = cfg.label_smoothing, len(dictionary)
        self.seed = cfg.seed
        self.drawn = (-1, 0)
        """number of the update and of the batch within it (--update-freq)"""

    @classmethod
    def build_criterion(cls, cfg, task):
        return cls(cfg, task)

    def forward(self, model, sample, reduce=True):
        if not (self.training and model.training):
            return super().forward(model, sample, reduce)
        if sharing_of(model).takes_row_gradients:
            model.use_row_gradients()
        features, extra = model(**sample["net_input"], features_only=True)
        target_N = model.get_targets(sample, (features, extra)).view(-1)
        loss, words = self.sampled_loss(model, features.flatten(0, -2), target_N)
        sample_size = sample["target"].size(0) if self.sentence_avg else sample["ntokens"]
        logging_output = {
            "loss": loss.detach(),
            "ntokens": sample["ntokens"],
            "nsentences": sample["target"].size(0),
            "sample_size": sample_size,
            "words": words,
            "samples": 1,
        }
        return loss, sample_size, logging_output

    def sampled_loss(self, model, features_ND: Tensor, target_N: Tensor) -> tuple[Tensor, int]:
        """The loss over this step's words, and how many they were."""
        sharing = sharing_of(model)
        present = sharing.union_of_words(target_N.unique())
        sample = self.sampler.draw(present, self._next_seed(model.num_updates))
        sharing.note_sample(sample.words_S)
        weight, bias = model.softmax_parameters()
        offset_S = -sample.log_inclusion_S.to(weight.dtype) if self.corrects else None
        if bias is not None:
            by_rows = sharing.takes_row_gradients
            bias_S = rows.gather(bias, sample.words_S, by_rows).flatten()
            offset_S = bias_S if offset_S is None else offset_S + bias_S
        weight_SD, late = sharing.output_rows(weight, sample.words_S)
        # Special symbols are the first words of the dictionary, and so of every sample.
        how, constant = self._how(sample, weight.dtype)
        index_N = sample.positions(target_N)
        loss, *_ = in_place.cross_entropy(features_ND, weight_SD, offset_S, index_N, how, late)
        if constant is not None:
            loss = loss + constant * target_N.ne(self.padding_idx).sum()
        return loss, sample.words_S.numel()

    def _how(self, sample: WordSample, dtype: torch.dtype) -> tuple[in_place.How, Tensor | None]:
        """How to score these words, and what is to be added to the loss of each row.

        Smoothing is over the vocabulary: a drawn word gets a share for those that were not. Its
        score, without what the softmax adds to it for the same reason, is a constant away.
        """
        how = in_place.How(self.padding_idx, room=sys.maxsize)
        if not self.smoothing:
            return how, None
        if not self.corrects:
            return how._replace(smoothing=self.smoothing), None
        log_S = sample.log_inclusion_S.to(torch.promote_types(dtype, torch.float32))
        share_S = (-log_S).softmax(0)
        share_S *= self.smoothing * self.vocabulary / (self.vocabulary - 1)
        how = how._replace(smoothing=self.smoothing, vocabulary=self.vocabulary, others_V=share_S)
        return how, -(share_S * log_S).sum()

    def _next_seed(self, update: int) -> int:
        """Of the draw: the same on every worker, and after a resume."""
        self.drawn = (update, self.drawn[1] + 1 if self.drawn[0] == update else 0)
        return mix(self.seed, *self.drawn)

    @staticmethod
    def reduce_metrics(logging_outputs) -> None:
        CrossEntropyCriterion.reduce_metrics(logging_outputs)
        samples = sum(log.get("samples", 0) for log in logging_outputs)
        if samples > 0:
            words = sum(log.get("words", 0) for log in logging_outputs)
            metrics.log_scalar("words", words / samples, samples, round=0)


def sharing_of(model: Any) -> rows.RowSharing:
    """The backend, in fairseq's wrapper or not; without one of ours, one worker's.

    fairseq's backends get whole matrices.
    """
    for part in (model, getattr(model, "module", None)):
        if isinstance(part, rows.RowSharing):
            return part
    alone = rows.RowSharing()
    alone.takes_row_gradients = isinstance(model, BaseFairseqModel)
    return alone

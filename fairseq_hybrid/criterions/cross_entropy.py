"""`--criterion cross_entropy` and `label_smoothed_cross_entropy`, for models of ours in place.

fairseq's criterions ask a model for the scores of all words and let autograd do the rest. A model
that says how it scores words (`softmax_parameters`, `features_only`) is asked for the features
instead, and in_place.py makes the loss of them: the same loss, gradients and log with a fifth of
the memory traffic. All else, and any other model, is fairseq's own code.
"""

from __future__ import annotations

from typing import Any

import torch
from fairseq.criterions import (
    CRITERION_REGISTRY,
    cross_entropy,
    label_smoothed_cross_entropy,
)
from fairseq.distributed import FullyShardedDataParallel
from torch import Tensor

from fairseq_hybrid.criterions import in_place


class InPlace:
    """Mixed into one of these two."""

    padding_idx: int
    eps = 0.0
    ignore_prefix_size = 0
    report_accuracy = False

    def forward(self, model: Any, sample: dict, reduce: bool = True) -> Any:
        if reduce and tells_features(model):
            sample = {**sample, "net_input": {**sample["net_input"], "features_only": True}}
        return super().forward(model, sample, reduce)

    def compute_loss(self, model: Any, net_output: Any, sample: dict, reduce: bool = True) -> Any:
        if not asked_for_features(sample):
            return super().compute_loss(model, net_output, sample, reduce)
        (features, extra), target = net_output, model.get_targets(sample, net_output)
        if self.ignore_prefix_size > 0:
            features = features[:, self.ignore_prefix_size :]
            target = target[:, self.ignore_prefix_size :]
        weight, bias = model.softmax_parameters()
        loss, nll, extra["correct"] = in_place.cross_entropy(
            features.flatten(0, -2),
            weight,
            None if bias is None else bias.flatten(),
            target.flatten(),
            in_place.How(self.padding_idx, self.eps, self.report_accuracy),
            late_gradient(model, weight),
        )
        extra["counted"] = target.ne(self.padding_idx).sum()
        return loss, nll

    def compute_accuracy(self, model: Any, net_output: Any, sample: dict) -> tuple[Tensor, Tensor]:
        if not asked_for_features(sample):
            return super().compute_accuracy(model, net_output, sample)
        return net_output[1]["correct"], net_output[1]["counted"]


def asked_for_features(sample: dict) -> bool:
    return "features_only" in sample["net_input"]


def tells_features(model: Any) -> bool:
    """Whether the loss can be computed outside of this model, or of its wrapper.

    Not where somebody has to see the output weights in the wrapper's forward pass: FSDP, which
    collects them there, and torch's DistributedDataParallel, if it looks for unused ones.
    """
    wrapper = getattr(model, "module", None)
    if isinstance(model, FullyShardedDataParallel) or isinstance(wrapper, FullyShardedDataParallel):
        return False
    if getattr(wrapper, "find_unused_parameters", False):
        return False
    plain = getattr(model, "has_plain_softmax", None)
    return plain is not None and plain()


def late_gradient(model: Any, weight: Tensor) -> in_place.Late | None:
    """Who computes the gradient of the output weights when there is time for it."""
    late = getattr(model, "late_gradients", None)
    trains = model.training and torch.is_grad_enabled() and weight.requires_grad
    return late.of(weight) if late is not None and trains else None


# The names are fairseq's: a checkpoint has them, and goes on only with the same.


class CrossEntropyCriterion(InPlace, cross_entropy.CrossEntropyCriterion):
    pass


class LabelSmoothedCrossEntropyCriterion(
    InPlace, label_smoothed_cross_entropy.LabelSmoothedCrossEntropyCriterion
):
    pass


def install() -> None:
    """In fairseq's registry."""
    CRITERION_REGISTRY["cross_entropy"] = CrossEntropyCriterion
    CRITERION_REGISTRY["label_smoothed_cross_entropy"] = LabelSmoothedCrossEntropyCriterion


install()

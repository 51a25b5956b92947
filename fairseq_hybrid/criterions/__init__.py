"""``--criterion`` names."""

from fairseq_hybrid.criterions import sampled_softmax

__all__ = ["sampled_softmax"]

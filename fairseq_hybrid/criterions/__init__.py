"""``--criterion`` names."""

from fairseq_hybrid.criterions import cross_entropy, sampled_softmax

__all__ = ["cross_entropy", "sampled_softmax"]

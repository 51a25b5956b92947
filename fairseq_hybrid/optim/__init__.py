"""Learning-rate schedules, natural-gradient SGD, and what optimizers need to update single rows."""

from fairseq_hybrid.optim import ng_sgd, schedules

__all__ = ["ng_sgd", "schedules"]

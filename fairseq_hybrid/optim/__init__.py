"""Learning-rate schedules by name, and what optimizers need to update single rows."""

from fairseq_hybrid.optim import schedules

__all__ = ["schedules"]

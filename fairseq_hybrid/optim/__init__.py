"""What optimizers need to scale once and to update single rows, and learning-rate schedules."""

from fairseq_hybrid.optim import schedules

__all__ = ["schedules"]

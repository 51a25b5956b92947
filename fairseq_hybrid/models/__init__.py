"""Models. Importing one registers its ``--arch`` names with fairseq."""

from fairseq_hybrid.models import feedforward_lm, hybrid_lstm, hybrid_lstm_lm

__all__ = ["feedforward_lm", "hybrid_lstm", "hybrid_lstm_lm"]

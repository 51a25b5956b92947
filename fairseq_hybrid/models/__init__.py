"""Models. Importing one registers its ``--arch`` names with fairseq."""

from fairseq_hybrid.models import hybrid_lstm, hybrid_lstm_lm

__all__ = ["hybrid_lstm", "hybrid_lstm_lm"]

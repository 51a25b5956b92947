"""Models. Importing one registers its ``--arch`` names with fairseq."""

from fairseq_hybrid.models import hybrid_lstm

__all__ = ["hybrid_lstm"]

"""Tasks. Importing one registers its ``--task`` name with fairseq."""

from fairseq_hybrid.tasks import streamed_language_modeling

__all__ = ["streamed_language_modeling"]

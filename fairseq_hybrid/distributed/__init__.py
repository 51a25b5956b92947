"""How the work is spread over workers: ``--ddp-backend`` names and the trainer they share."""

from fairseq_hybrid.distributed import backends

backends.install()

from fairseq_hybrid.distributed import hybrid, sampled  # noqa: E402  (register with what is installed)

__all__ = ["backends", "hybrid", "sampled"]

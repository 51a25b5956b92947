"""How the work is spread over workers: ``--ddp-backend`` names and the trainer they share."""

from fairseq_hybrid.distributed import backends

backends.install()

from fairseq_hybrid.distributed import asynchronous, hybrid, sampled  # noqa: E402  (they register)

__all__ = ["asynchronous", "backends", "hybrid", "sampled"]

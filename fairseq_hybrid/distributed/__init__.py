"""How the work is spread over workers: ``--ddp-backend`` names and the trainer they share."""

from fairseq_hybrid.distributed import backends

backends.install()

from fairseq_hybrid.distributed import asynchronous, averaging, hybrid, sampled  # noqa: E402

__all__ = ["asynchronous", "averaging", "backends", "hybrid", "sampled"]

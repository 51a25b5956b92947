"""How the work is spread over workers: ``--ddp-backend`` names and the trainer they share."""

from fairseq_hybrid.distributed import backends

backends.install()

__all__ = ["backends"]

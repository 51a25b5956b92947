"""How the work is spread over workers: ``--ddp-backend`` names and the trainer they share."""

from fairseq_hybrid.distributed import backends

backends.install()

from fairseq_hybrid.distributed import (  # noqa: E402
    asynchronous,
    averaging,
    hybrid,
    launch_options,
    sampled,
)

__all__ = ["asynchronous", "averaging", "backends", "hybrid", "launch_options", "sampled"]

"""Options about the workers' lives, whatever the backend (compat/launch.py uses them)."""

from __future__ import annotations

from fairseq_hybrid.distributed.backends import add_option

add_option(
    "worker_timeout", int, 900,
    "seconds without a sign of life after which a worker counts as lost and the job ends; also the "
    "time-out of collectives. Longer than any save takes; 0: only torch's own 30 minutes",
    good=lambda n: n == 0 or n >= 5,
    wrong="is not a time-out: give 5 or more seconds, or 0 for torch's own",
)  # fmt: skip
add_option(
    "save_on_exit", bool, False,
    "on SIGTERM or Ctrl-C finish the update at hand and save before leaving; a second signal ends "
    "training at once",
)  # fmt: skip

"""fairseq_hybrid: train recurrent translation and language models across several devices.

Loaded by ``fairseq-train --user-dir fairseq_hybrid`` in every process, before fairseq parses its
options.  Importing the package is what switches it on; this file says in which order:

1. ``compat``       what fairseq 0.12 needs on current Python and torch, and on several CPU workers
2. ``tasks``        ``--task`` names
3. ``models``       ``--arch`` names
4. ``criterions``   ``--criterion`` names
5. ``optim``        ``--lr-scheduler`` names
6. ``distributed``  ``--ddp-backend`` names and the trainer they share
7. ``planning``     ``--hybrid-plan``
8. ``generation``   beam search
"""

from fairseq_hybrid import cli, compat  # isort: skip  (cli first: it lets fairseq set up its log)

compat.apply()

from fairseq_hybrid import (  # noqa: E402
    criterions,
    distributed,
    generation,
    models,
    optim,
    planning,
    tasks,
)

__version__ = "0.1.0"
__all__ = [
    "cli",
    "compat",
    "criterions",
    "distributed",
    "generation",
    "models",
    "optim",
    "planning",
    "tasks",
]

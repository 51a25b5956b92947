"""fairseq_hybrid: train recurrent translation and language models across several devices.

Loaded by ``fairseq-train --user-dir fairseq_hybrid`` in every process, before fairseq parses its
options. Importing the package is what switches it on; plugin.py says what that is.
"""

from fairseq_hybrid import cli, plugin  # isort: skip  (cli first: it lets fairseq set up its log)

plugin.register()

__version__ = "0.1.0"
__all__ = ["cli", "plugin"]

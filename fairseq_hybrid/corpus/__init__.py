"""The embedded parallel corpus, German → English.

A small synchronous grammar, written for this project, spells every sentence in both languages at
once. German differs from English where translation is hard (case and gender, verbs at the end,
separable verbs, compounds), while the English is nearly a function of the German, so that a model
can learn it. Read ``nouns.py`` … ``verbs.py`` for the words, ``phrases.py`` and ``clauses.py`` for
the two word orders, ``grammar.py`` and ``sentences.py`` for what is said, ``generate.py`` for the
splits.

    python -m fairseq_hybrid.corpus OUT --train 30000
"""

from .generate import CorpusError, generate, write

__all__ = ["CorpusError", "generate", "write"]

"""Write a toy corpus, German and English: ``python examples/toy_corpus OUT [--seed 1 …]``.

A small synchronous grammar spells every sentence in both languages at once. German differs from
English where translation is hard (case and gender, verbs at the end, separable verbs, compounds),
while the English is nearly a function of the German, so that a model can learn it. ``words/`` has
the words, ``phrases.py`` and ``clauses.py`` the two word orders, ``grammar.py`` and
``sentences.py`` what is said, ``splits.py`` the training, validation and test sets. Takes about a
second per 10 000 pairs and prints sentences, tokens and types per split and side.
"""

from __future__ import annotations

import argparse
import sys
from typing import NoReturn

from splits import CorpusError, write


class _Parser(argparse.ArgumentParser):
    """Complains in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"toy_corpus: {message}; see --help\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python examples/toy_corpus", description=__doc__.splitlines()[0])
    parser.add_argument("out", metavar="OUT", help="folder for train.de, train.en, valid.de …")
    parser.add_argument("--seed", type=int, default=1, help="another seed gives other sentences")
    parser.add_argument("--train", type=int, default=30000, help="sentence pairs for training")
    parser.add_argument("--valid", type=int, default=1000, help="sentence pairs for validation")
    parser.add_argument("--test", type=int, default=1000, help="sentence pairs for the test")
    return parser


def _summary(sentences: list[str]) -> str:
    tokens = [token for text in sentences for token in text.split()]
    return f"{len(tokens)} tokens {len(set(tokens))} types"


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        corpus = write(options.out, options.seed, options.train, options.valid, options.test)
    except CorpusError as error:
        print(f"toy_corpus: {error}", file=sys.stderr)
        return 2
    for split, pairs in corpus.items():
        german, english = _summary([de for de, _ in pairs]), _summary([en for _, en in pairs])
        print(f"{split}: {len(pairs)} sentences, de {german}, en {english}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

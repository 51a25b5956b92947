"""Splits and files: disjoint train, valid and test sets from one seed."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from random import Random

from .sentences import pair

SPLITS = ("train", "valid", "test")
# More than this is a mistake: the grammar repeats its words rather than learning new ones.
LARGEST = 2_000_000
_FEWEST_WORDS, _MOST_WORDS = 3, 32


class CorpusError(ValueError):
    """A request the generator cannot serve; the message names the value and the way out."""


def _check(sizes: dict[str, int]) -> None:
    for split, size in sizes.items():
        if size < 0:
            raise CorpusError(
                f"--{split} {size}: must not be negative; give 0 to leave the split empty"
            )
        if size > LARGEST:
            raise CorpusError(
                f"--{split} {size}: the grammar is good for {LARGEST} sentences; lower --{split}"
            )


def _fill(
    split: str, seed: int, size: int, taken: tuple[set[str], set[str]]
) -> list[tuple[str, str]]:
    """Draw ``size`` different pairs whose German and English are in no earlier split."""
    rng = Random(f"{seed} {split}")  # one stream per split: resizing train leaves test as it was
    found: dict[tuple[str, str], None] = {}
    budget = 20 * size + 1000
    while len(found) < size:
        budget -= 1
        if budget < 0:
            raise CorpusError(
                f"--{split} {size}: only {len(found)} different sentences found; lower --{split}"
            )
        german, english = candidate = pair(rng)
        fits = _FEWEST_WORDS <= english.count(" ") + 1 <= _MOST_WORDS
        if fits and german not in taken[0] and english not in taken[1]:
            found[candidate] = None
    return list(found)


def generate(
    seed: int = 1, train: int = 30000, valid: int = 1000, test: int = 1000
) -> dict[str, list[tuple[str, str]]]:
    """Sentence pairs (German, English) for ``train``, ``valid`` and ``test``.

    No sentence of either language occurs in two splits, and no pair occurs twice in one.
    """
    sizes = {"train": train, "valid": valid, "test": test}
    _check(sizes)
    taken: tuple[set[str], set[str]] = (set(), set())
    corpus: dict[str, list[tuple[str, str]]] = {}
    for split in reversed(
        SPLITS
    ):  # the small sets first, so that they do not depend on train's size
        corpus[split] = _fill(split, seed, sizes[split], taken)
        for german, english in corpus[split]:
            taken[0].add(german)
            taken[1].add(english)
    return {split: corpus[split] for split in SPLITS}


def _replace(path: Path, lines: list[str]) -> None:
    """Write a whole file or none: a temporary beside it, then a rename."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.writelines(line + "\n" for line in lines)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def write(
    folder: str | Path, seed: int = 1, train: int = 30000, valid: int = 1000, test: int = 1000
) -> dict[str, list[tuple[str, str]]]:
    """Generate and write ``train.de``, ``train.en``, ``valid.de`` … into a folder; return them."""
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise CorpusError(f"OUT {folder}: is a file; give a folder, which is created if missing")
    _check({"train": train, "valid": valid, "test": test})
    try:
        folder.mkdir(parents=True, exist_ok=True)
        corpus = generate(seed, train, valid, test)
        for split, pairs in corpus.items():
            _replace(folder / f"{split}.de", [german for german, _ in pairs])
            _replace(folder / f"{split}.en", [english for _, english in pairs])
    except OSError as error:
        raise CorpusError(
            f"OUT {folder}: {error.strerror}; give a folder you can write to"
        ) from error
    return corpus

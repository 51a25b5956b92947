"""Splits and files: disjoint train, valid and test sets from one seed."""

from __future__ import annotations

from pathlib import Path
from random import Random

from sentences import pair

Corpus = dict[str, list[tuple[str, str]]]
LARGEST = 2_000_000  # beyond it the grammar repeats its words rather than finding new ones
_FEWEST_WORDS, _MOST_WORDS = 3, 32


class CorpusError(ValueError):
    """A request the generator cannot serve; the message names the value and the way out."""


def _check(sizes: dict[str, int]) -> None:
    for split, size in sizes.items():
        given = f"--{split} {size}"
        if size < 0:
            raise CorpusError(f"{given}: must not be negative; give 0 to leave the split empty")
        if size > LARGEST:
            raise CorpusError(
                f"{given}: the grammar is good for {LARGEST} sentences; lower --{split}"
            )


def _fill(split: str, seed: int, size: int, taken: tuple[set, set]) -> list[tuple[str, str]]:
    """Draw ``size`` different pairs whose German and English are in no earlier split."""
    rng = Random(f"{seed} {split}")  # one stream per split: resizing train leaves test as it was
    found: dict[tuple[str, str], None] = {}
    for _ in range(20 * size + 1000):
        if len(found) == size:
            return list(found)
        de, en = pair(rng)
        fits = _FEWEST_WORDS <= en.count(" ") + 1 <= _MOST_WORDS
        if fits and de not in taken[0] and en not in taken[1]:
            found[de, en] = None
    only = f"only {len(found)} different sentences found"
    raise CorpusError(f"--{split} {size}: {only}; lower --{split}")


def generate(seed: int = 1, train: int = 30000, valid: int = 1000, test: int = 1000) -> Corpus:
    """Sentence pairs (German, English) for ``train``, ``valid`` and ``test``.

    No sentence of either language occurs in two splits, and no pair occurs twice in one.
    """
    sizes = {"train": train, "valid": valid, "test": test}
    _check(sizes)
    taken: tuple[set[str], set[str]] = (set(), set())
    corpus: Corpus = {split: [] for split in sizes}
    for split in reversed(sizes):  # the small sets first: they do not depend on train's size
        corpus[split] = _fill(split, seed, sizes[split], taken)
        taken[0].update(de for de, _ in corpus[split])
        taken[1].update(en for _, en in corpus[split])
    return corpus


def _replace(path: Path, lines: list[str]) -> None:
    """Write a whole file or none: a temporary beside it, then a rename."""
    temporary = path.with_name(f".{path.name}.part")
    try:
        with temporary.open("w", encoding="utf-8", newline="\n") as file:
            file.writelines(line + "\n" for line in lines)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write(
    folder: str | Path, seed: int = 1, train: int = 30000, valid: int = 1000, test: int = 1000
) -> Corpus:
    """Generate and write ``train.de``, ``train.en``, ``valid.de`` … into a folder; return them."""
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise CorpusError(f"OUT {folder}: is a file; give a folder, which is created if missing")
    _check({"train": train, "valid": valid, "test": test})
    try:
        folder.mkdir(parents=True, exist_ok=True)
        corpus = generate(seed, train, valid, test)
        for split, pairs in corpus.items():
            _replace(folder / f"{split}.de", [de for de, _ in pairs])
            _replace(folder / f"{split}.en", [en for _, en in pairs])
    except OSError as error:
        why = f"{error.strerror}; give a folder you can write to"
        raise CorpusError(f"OUT {folder}: {why}") from error
    return corpus

"""The words as objects: nouns, verbs and adjectives in pools that favour the frequent ones.

Item ``r`` of a pool (0 is the most frequent) is drawn with weight 1/(r + offset), so every class
has its own head and tail. The pools are built once, on import, in file order: nothing depends on
hashing.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from random import Random
from typing import Any

import english
import german
from wordlists import sections, words


@dataclass(frozen=True)
class Noun:
    """One noun in both languages; ``plural_de`` is empty for mass nouns."""

    de: str
    gender: str
    plural_de: str
    en: str
    kind: str
    weak: bool = False
    plural_only: bool = False
    place: Sequence[str] = ()

    @property
    def mass(self) -> bool:
        return not self.plural_de

    @property
    def human(self) -> bool:
        return self.kind in ("person", "kin")

    @property
    def en_pronoun(self) -> str:
        """What English calls it; das Mädchen is "she"."""
        if not self.human or self.de in ("Kind", "Baby", "Familie"):
            return "it"
        return "he" if self.gender == "m" else "she"

    def form_de(self, case: str, plural: bool) -> str:
        gender = "p" if plural else self.gender
        return german.noun(self.de, self.plural_de, gender, self.weak, case)

    def form_en(self, plural: bool) -> str:
        return english.plural(self.en) if plural else self.en


@dataclass(frozen=True)
class Verb:
    """One verb in both languages with its frame."""

    de: str
    en: str
    prefix: str = ""
    reflexive: bool = False
    sein: bool = False
    subjects: Sequence[str] = ()
    objects: Sequence[str] = ()
    extra: Sequence[str] = ()

    @property
    def lead(self) -> str:
        """The prefix as it is written before the verb: aufmachen, spazieren gehen."""
        return self.prefix + " " * (self.prefix in ("Angst", "spazieren"))


@dataclass(frozen=True)
class Adjective:
    """One adjective in both languages and the letters of the classes it describes."""

    de: str
    en: str
    classes: str = ""


class Pool:
    """A list from which earlier items are drawn more often (Zipf)."""

    def __init__(self, items: Sequence[Any], offset: float = 3.0) -> None:
        self.items = list(items)
        self._totals = list(accumulate(1 / (rank + offset) for rank in range(len(self.items))))

    def pick(self, rng: Random) -> Any:
        return self.items[bisect(self._totals, rng.random() * self._totals[-1])]


def _nouns(kind: str, row: list[str]) -> list[Noun]:
    """One row of nouns.tsv; a star yields the masculine and the feminine."""
    code, lemma, plural, english_, *place = row
    code, gender = code.lstrip("*"), code[-1] if code[-1] in "mfn" else "m"
    if plural in "0-":
        plural = lemma if plural == "-" else ""
    elif plural.startswith("+"):
        plural = lemma + plural[1:]
    first = Noun(lemma, gender, plural, english_, kind, code == "w", code == "p", place)
    if not row[0].startswith("*"):
        return [first]
    # Kollege → Kollegin, Zauberer → Zauberin
    feminine = (lemma[:-2] if lemma.endswith("erer") else lemma.removesuffix("e")) + "in"
    return [first, Noun(feminine, "f", feminine + "nen", english_, kind)]


def _compound(de: str, en: str, head: Noun) -> Noun:
    plural = de + head.plural_de.lower() if head.plural_de else ""
    whole = de + head.de.lower(), head.gender, plural, f"{en} {head.en}", head.kind, head.weak
    return Noun(*whole, place=head.place)


def _compounds(base: dict[str, list[Noun]]) -> dict[str, list[Noun]]:
    """All wanted compounds by class, in a fixed random order, so that no head is favoured."""
    table: dict[str, list[Noun]] = {}
    unwanted = set(words("compounds", "unwanted"))
    for section, (heads, *modifiers) in sections("compounds").items():
        kind = section.split()[0]
        for head in (noun for lemma in heads for noun in base.get(kind, ()) if noun.de == lemma):
            made = [_compound(de, en, head) for de, en in modifiers]
            table.setdefault(kind, []).extend(noun for noun in made if noun.de not in unwanted)
    for kind, made in table.items():
        Random(f"compounds {kind}").shuffle(made)
    return table


def _verb(german_: str, english_: str, *lists: str) -> Verb:
    reflexive, lemma = german_.startswith("sich "), german_.removeprefix("sich ")
    prefix, _, infinitive = lemma.rpartition("|")
    sein = lemma in words("verbs", "sein")
    return Verb(infinitive, english_, prefix, reflexive, sein, *(part.split() for part in lists))


def _pool(name: str, section: str, offset: float = 3.0) -> Pool:
    """A section's rows as they are, or its words."""
    rows = sections(name)[section]
    return Pool(rows if len(rows[0]) > 1 else words(name, section), offset)


BASE = {
    kind: [n for row in rows for n in _nouns(kind, row)] for kind, rows in sections("nouns").items()
}
COMPOUNDS = _compounds(BASE)
for _name, _kind, _words in sections("subsets")["subsets"]:
    BASE[_name] = [noun for word in _words.split() for noun in BASE[_kind] if noun.de == word]
_NOUNS = {kind: Pool(items) for kind, items in BASE.items()}
_COMPOUNDS = {kind: Pool(items, offset=8.0) for kind, items in COMPOUNDS.items()}

VERBS = {
    frame: Pool([_verb(*row) for row in rows], 3.0 if frame in ("saying", "intending") else 8.0)
    for frame, rows in sections("verbs").items()
    if len(rows[0]) > 1
}
VERB_CLASSES = {name: words("verbs", name) for name in sections("verbs") if name not in VERBS}

_ADJECTIVES = [Adjective(*row) for row in sections("adjectives")["adjectives"]]
_BY_LEMMA = {adjective.de: adjective for adjective in _ADJECTIVES}
_GRADABLE = [(_BY_LEMMA[de], more) for de, more in sections("adjectives")["comparatives"]]


def _describing(excluded: str) -> dict[str, Pool]:
    """Adjectives by the class of what they describe."""
    excluded_words = words("adjectives", excluded)
    fitting = [adjective for adjective in _ADJECTIVES if adjective.de not in excluded_words]
    return {kind: Pool([a for a in fitting if letter in a.classes]) for kind, letter in _LETTERS}


_LETTERS = [
    (kind, letter) for letter, *kinds in sections("adjectives")["classes"] for kind in kinds
]
ATTRIBUTES, PREDICATES = _describing("only predicative"), _describing("only attributive")
COMPARABLE = {k: Pool([pair for pair in _GRADABLE if c in pair[0].classes]) for k, c in _LETTERS}

NAMES = {section: _pool("names", section) for section in sections("names")}
ADVERBS = {
    section: _pool("adverbs", section, 2.0 if section in ("subordinators", "joins") else 3.0)
    for section in sections("adverbs")
}


@cache
def _kinds(classes: tuple[str, ...]) -> Pool:
    return Pool(classes, offset=2.0)


def kind_for(rng: Random, classes: Sequence[str]) -> str:
    """One of the classes a verb accepts, the first being the most typical."""
    return _kinds(tuple(classes)).pick(rng)


def noun_of(rng: Random, kind: str) -> Noun:
    """A noun of a class, sometimes a compound."""
    if kind in _COMPOUNDS and rng.random() < 0.22:
        return _COMPOUNDS[kind].pick(rng)
    return _NOUNS[kind].pick(rng)

"""The lexicon as objects: nouns, verbs and adjectives in Zipf-weighted pools.

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

from . import adjectives, compounds, morphology_de, morphology_en, names, nouns, verbs


@dataclass(frozen=True)
class Noun:
    """One noun in both languages; ``en_pronoun`` is what English calls it (he, she, it)."""

    de: str
    gender: str
    plural_de: str
    en: str
    kind: str
    weak: bool = False
    plural_only: bool = False
    place: tuple[str, str, str] = ()

    @property
    def mass(self) -> bool:
        return not self.plural_de

    @property
    def en_pronoun(self) -> str:
        if self.kind not in ("person", "kin") or self.de in ("Kind", "Baby", "Familie"):
            return "it"
        return "he" if self.gender == "m" else "she"  # das Mädchen is "she"

    def form_de(self, case: str, plural: bool) -> str:
        return morphology_de.noun(self.de, self.plural_de, self.gender, self.weak, case, plural)

    def form_en(self, plural: bool) -> str:
        return morphology_en.plural(self.en) if plural else self.en


@dataclass(frozen=True)
class Verb:
    """One verb in both languages with its frame."""

    de: str
    prefix: str
    reflexive: bool
    sein: bool
    en: str
    subjects: tuple[str, ...] = ("someone",)
    objects: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()


@dataclass(frozen=True)
class Adjective:
    """One adjective in both languages and the classes it describes."""

    de: str
    en: str
    classes: str


class Pool:
    """A list from which earlier items are drawn more often (Zipf)."""

    def __init__(self, items: Sequence[Any], offset: float = 3.0) -> None:
        self.items = list(items)
        self._totals = list(accumulate(1 / (rank + offset) for rank in range(len(self.items))))

    def pick(self, rng: Random) -> Any:
        return self.items[bisect(self._totals, rng.random() * self._totals[-1])]


def _plural(lemma: str, code: str) -> str:
    if code == "0":
        return ""
    return lemma if code == "-" else lemma + code[1:] if code[0] == "+" else code


def _nouns(entry: str, kind: str, place: tuple[str, ...] = ()) -> list[Noun]:
    """Parse one entry of nouns.py; a star yields the masculine and the feminine."""
    code, lemma, plural, english = entry.split()
    starred, code = code.startswith("*"), code.lstrip("*")
    gender = {"w": "m", "p": "m"}.get(code, code)
    english = english.replace("_", " ")
    first = Noun(
        lemma, gender, _plural(lemma, plural), english, kind, code == "w", code == "p", place
    )
    if not starred:
        return [first]
    # Kollege → Kollegin, Zauberer → Zauberin
    feminine = (lemma[:-2] if lemma.endswith("erer") else lemma.removesuffix("e")) + "in"
    return [first, Noun(feminine, "f", feminine + "nen", english, kind)]


def _base_nouns() -> dict[str, list[Noun]]:
    table = {
        kind: [noun for entry in text.split(";") for noun in _nouns(entry, kind)]
        for kind, text in nouns.NOUNS.items()
    }
    table["place"] = []
    for entry in nouns.PLACES.split(";"):
        *place, code, lemma, plural, english = entry.split()
        table["place"] += _nouns(f"{code} {lemma} {plural} {english}", "place", tuple(place))
    return table


def _compound(modifier: str, head: Noun) -> Noun:
    de, en = modifier.split(":")
    place = head.place
    return Noun(
        de + head.de.lower(),
        head.gender,
        de + head.plural_de.lower() if head.plural_de else "",
        f"{en} {head.en}",
        head.kind,
        head.weak,
        place=place,
    )


def _compounds(base: dict[str, list[Noun]]) -> dict[str, list[Noun]]:
    """All wanted compounds by class, in a fixed random order, so that no head is favoured."""
    table: dict[str, list[Noun]] = {}
    for kind, heads, modifiers in compounds.COMPOUNDS:
        by_lemma = {noun.de: noun for noun in base[kind]}
        made = [
            _compound(modifier, by_lemma[head])
            for head in heads.split()
            for modifier in modifiers.split()
        ]
        table.setdefault(kind, []).extend(
            noun for noun in made if noun.de not in compounds.UNWANTED
        )
    for kind, made in table.items():
        Random(f"compounds {kind}").shuffle(made)
    return table


def _verb(line: str) -> Verb:
    fields = [field.strip() for field in line.split(";")] + ["", "", ""]
    german = fields[0]
    reflexive, german = german.startswith("sich "), german.removeprefix("sich ")
    prefix, _, infinitive = german.rpartition("|")
    lists = [tuple(field.split()) for field in fields[2:5]]
    return Verb(infinitive, prefix, reflexive, german in verbs.SEIN_PERFECT, fields[1], *lists)


def _verbs(text: str) -> list[Verb]:
    return [_verb(line) for line in text.strip().splitlines()]


BASE = _base_nouns()
COMPOUNDS = _compounds(BASE)

# Small classes that single verbs ask for.
_SUBSETS = {
    "dog": ("animal", "Hund"),
    "lock": ("opening", "Schloss"),
    "package": ("opening", "Paket"),
    "mistake": ("abstract", "Fehler Plan Vorschlag"),
    "hotfood": ("food", "Suppe Ei Fleisch Kartoffel Reis Gericht Soße"),
    "baked": ("food", "Kuchen Brot Brötchen Pizza Torte Keks"),
    "peelable": ("food", "Kartoffel Apfel Orange Banane Ei Zwiebel Karotte Gurke"),
    "language": ("abstract", "Sprache Regel Wort"),
    "car": ("vehicle", "Auto Bus Taxi Lastwagen Traktor"),
    "story": ("document", "Geschichte Märchen"),
    "playable": ("instrument", "Klavier Gitarre Geige Flöte Trompete Cello Orgel Harfe Saxofon"),
    "puzzle": ("abstract", "Problem Aufgabe"),
    "answer": ("abstract", "Antwort"),
}
for _name, (_kind, _words) in _SUBSETS.items():
    BASE[_name] = [noun for word in _words.split() for noun in BASE[_kind] if noun.de == word]

NOUN_POOLS = {kind: Pool(items) for kind, items in BASE.items()}
COMPOUND_POOLS = {kind: Pool(items, offset=8.0) for kind, items in COMPOUNDS.items()}
FRAMES = {
    frame: Pool(_verbs(getattr(verbs, frame.upper())), offset=8.0)
    for frame in (
        "intransitive",
        "transitive",
        "dative",
        "prepositional",
        "ditransitive",
        "motion",
        "stative",
        "put",
    )
}
SAYING = Pool(
    [
        (_verb(f"{de}; {en}"), conjunction)
        for de, en, conjunction in (
            [field.strip() for field in line.split(";")]
            for line in verbs.SAYING.strip().splitlines()
        )
    ]
)
INTENDING = Pool(_verbs(verbs.INTENDING))

_ADJECTIVES = [
    Adjective(de, en.replace("_", " "), classes)
    for de, en, classes in (entry.split() for entry in adjectives.ADJECTIVES.split(";"))
]
_CLASS_LETTER = {
    "person": "P", "kin": "P", "animal": "A", "food": "F", "drink": "F", "document": "D",
    "abstract": "D", "event": "D", "tool": "O", "device": "O", "opening": "O", "vehicle": "O",
    "furniture": "O", "instrument": "O", "clothing": "C", "house": "L", "place": "L", "plant": "V",
}  # fmt: skip
ATTRIBUTES = {
    kind: Pool(
        [a for a in _ADJECTIVES if letter in a.classes and a.de not in adjectives.PREDICATIVE_ONLY]
    )
    for kind, letter in _CLASS_LETTER.items()
}
PREDICATES = {
    kind: Pool(
        [a for a in _ADJECTIVES if letter in a.classes and a.de not in adjectives.ATTRIBUTIVE_ONLY]
    )
    for kind, letter in _CLASS_LETTER.items()
}
_BY_LEMMA = {a.de: a for a in _ADJECTIVES}
_GRADABLE = [
    (_BY_LEMMA[de], more) for de, more in (e.split() for e in adjectives.COMPARATIVES.split(";"))
]
COMPARABLE = {
    kind: Pool([pair for pair in _GRADABLE if letter in pair[0].classes])
    for kind, letter in _CLASS_LETTER.items()
}


def _translated(words: list[str]) -> list[tuple[str, str]]:
    return [(word.partition(":")[0], word.partition(":")[2] or word) for word in words]


WOMEN, MEN, FAMILIES = Pool(names.WOMEN), Pool(names.MEN), Pool(names.FAMILIES)
CITIES, COUNTRIES = Pool(_translated(names.CITIES)), Pool(_translated(names.COUNTRIES))
ARTICLE_COUNTRIES = Pool(_translated(names.ARTICLE_COUNTRIES))


@cache
def _kinds(verb_objects: tuple[str, ...]) -> Pool:
    return Pool(verb_objects, offset=2.0)


def kind_for(rng: Random, classes: tuple[str, ...]) -> str:
    """One of the classes a verb accepts, the first being the most typical."""
    return _kinds(classes).pick(rng)


def noun_of(rng: Random, kind: str, compound_share: float = 0.22) -> Noun:
    """A noun of a class, sometimes a compound."""
    if kind in COMPOUND_POOLS and rng.random() < compound_share:
        return COMPOUND_POOLS[kind].pick(rng)
    return NOUN_POOLS[kind].pick(rng)

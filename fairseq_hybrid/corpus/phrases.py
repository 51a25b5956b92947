"""Noun phrases: one object per phrase, spelled out in German by case and in English by role.

Every phrase has ``agree`` (which pronoun stands for it in each language), ``de(case)`` and
``en(role)`` returning words; ``role`` is 0 for a subject and 1 for an object, the columns of the
English pronouns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from . import morphology_de as german
from . import morphology_en as english
from .lexicon import Adjective, Noun
from .numbers import english as number_en
from .numbers import german as number_de

if TYPE_CHECKING:
    from .clauses import Clause


@dataclass(frozen=True)
class Agreement:
    """The pronoun keys a phrase agrees with, e.g. ``er``/``it`` for der Tisch."""

    de: str
    en: str

    @property
    def person(self) -> int:
        return german.PRONOUNS[self.de][5]

    @property
    def plural(self) -> bool:
        return german.PRONOUNS[self.de][6]

    @property
    def gender(self) -> str:
        return {"er": "m", "es": "n"}.get(self.de, "f")


class Phrase:
    """What a clause expects of its subject and objects."""

    agree: Agreement
    heavy_de: Sequence[str] = ()  # what follows the clause in German: an extraposed relative clause

    def de(self, case: str) -> list[str]:
        raise NotImplementedError

    def en(self, role: int) -> list[str]:
        raise NotImplementedError

    @property
    def is_pronoun(self) -> bool:
        return False


@dataclass
class Pronoun(Phrase):
    """ich, er, sie … standing for an agreement."""

    agree: Agreement

    def de(self, case: str) -> list[str]:
        return [german.PRONOUNS[self.agree.de][("nom", "acc", "dat").index(case)]]

    def en(self, role: int) -> list[str]:
        return [english.PRONOUNS[self.agree.en][role]]

    @property
    def is_pronoun(self) -> bool:
        return True


@dataclass
class Fixed(Phrase):
    """A phrase that does not inflect beyond what is listed: names, wer/who, niemand/nobody."""

    agree: Agreement
    german: dict[str, str]
    english: str

    def de(self, case: str) -> list[str]:
        return [self.german[case]]

    def en(self, role: int) -> list[str]:
        return [self.english]


@dataclass
class Gap(Phrase):
    """The relative pronoun: the hole that the head noun fills in its relative clause."""

    agree: Agreement
    human: bool
    kind: str  # semantic class of the head, as verbs name it

    def de(self, case: str) -> list[str]:
        return [german.relative(case, self.agree.gender, self.agree.plural)]

    def en(self, role: int) -> list[str]:
        return [("whom" if role else "who") if self.human else "that"]


# A woman with a possessive is a wife: meine Frau.
_SPOUSES = {"man": "husband", "men": "husbands", "woman": "wife", "women": "wives"}


@dataclass
class NounPhrase(Phrase):
    """Determiner, adjectives, noun, and after it a genitive, a place or a relative clause.

    ``determiner`` is der, ein, kein, dies, jed, number, none, poss and whose (of ``owner``), or
    played (Klavier spielen, play the piano).
    """

    noun: Noun
    plural: bool = False
    determiner: str = "der"
    owner: Agreement | None = None
    adjectives: list[Adjective] = field(default_factory=list)
    number: int = 0
    genitive: Any = None
    relative: Clause | None = None
    extraposed: bool = False

    @property
    def agree(self) -> Agreement:
        if self.plural:
            return Agreement("they", "they")
        return Agreement({"m": "er", "f": "sie", "n": "es"}[self.noun.gender], self.noun.en_pronoun)

    @property
    def human(self) -> bool:
        return self.noun.kind in ("person", "kin")

    def _determiner_de(self, case: str) -> tuple[list[str], str]:
        """The determiner's words and the declension it asks of adjectives."""
        gender, plural = self.noun.gender, self.plural
        if self.determiner == "number":
            return [number_de(self.number)], "strong"
        if self.determiner in ("none", "played") or (
            self.determiner == "ein" and (plural or self.noun.mass)
        ):
            return [], "strong"
        if self.determiner == "whose":
            return [german.relative("gen", self.owner.gender, self.owner.plural)], "strong"
        if self.determiner == "poss":
            return [
                german.article(german.PRONOUNS[self.owner.de][4], case, gender, plural)
            ], "mixed"
        declension = "mixed" if self.determiner in ("ein", "kein") else "weak"
        return [german.article(self.determiner, case, gender, plural)], declension

    def de(self, case: str) -> list[str]:
        words, declension = self._determiner_de(case)
        for adjective in self.adjectives:
            words.append(
                german.adjective(adjective.de, declension, case, self.noun.gender, self.plural)
            )
        words.append(self.noun.form_de(case, self.plural))
        if self.genitive:
            words += self.genitive.de("gen")
        if self.relative and not self.extraposed:
            words += self._relative_de()
        return words

    def _relative_de(self) -> list[str]:
        return [",", *self.relative.de_final(), ","]

    @property
    def heavy_de(self) -> list[str]:
        return self._relative_de() if self.relative and self.extraposed else []

    def _determiner_en(self, following: str) -> list[str]:
        if self.determiner == "number":
            return [number_en(self.number)]
        if self.determiner == "poss":
            return [english.PRONOUNS[self.owner.en][2]]
        if self.determiner in ("ein", "kein"):
            if self.plural or self.noun.mass:
                return ["any"] if self.determiner == "kein" else []
            return [english.indefinite(following)]
        if self.determiner == "dies":
            return ["these" if self.plural else "this"]
        return {
            "der": ["the"],
            "played": ["the"],
            "jed": ["every"],
            "whose": ["whose"],
            "none": [],
        }[self.determiner]

    def _owner_en(self) -> list[str]:
        """das Auto des Lehrers is the teacher's car."""
        *front, last = self.genitive.en(1)
        return [*front, last + ("'" if self.genitive.agree.plural and last.endswith("s") else "'s")]

    def en(self, role: int) -> list[str]:
        words = [adjective.en for adjective in self.adjectives]
        noun = self.noun.form_en(self.plural and not self.noun.plural_only)
        words.append(_SPOUSES.get(noun, noun) if self.determiner == "poss" else noun)
        words = (self._owner_en() if self.genitive else self._determiner_en(words[0])) + words
        if self.relative:
            words += self.relative.en_words()
        return words


@dataclass
class Named(Phrase):
    """A noun phrase owned by a named person: Annas Auto, Anna's car."""

    name: str
    inner: NounPhrase  # with determiner "none"

    @property
    def agree(self) -> Agreement:
        return self.inner.agree

    def de(self, case: str) -> list[str]:
        return [self.name + "s", *self.inner.de(case)]

    def en(self, role: int) -> list[str]:
        return [self.name + "'s", *self.inner.en(role)]


@dataclass
class Pair(Phrase):
    """Two phrases joined by und."""

    first: Phrase
    second: Phrase

    @property
    def agree(self) -> Agreement:
        return Agreement("they", "they")

    def de(self, case: str) -> list[str]:
        return [*self.first.de(case), "und", *self.second.de(case)]

    def en(self, role: int) -> list[str]:
        return [*self.first.en(role), "and", *self.second.en(role)]


@dataclass
class Adverbial:
    """A preposition with its phrase, or a fixed adverb when ``phrase`` is None."""

    german: str
    english: str
    phrase: Phrase | None = None
    case: str = "dat"

    def de(self) -> list[str]:
        if self.phrase is None:
            return [self.german]
        words = self.phrase.de(self.case)
        # "in dem, auf" with a relative pronoun must not contract
        joined = (
            None
            if isinstance(self.phrase, Gap)
            else german.CONTRACTIONS.get((self.german, words[0]))
        )
        return [joined, *words[1:]] if joined else [self.german, *words]

    def en(self) -> list[str]:
        words = [self.english] if self.english != "-" else []
        return words + (
            self.phrase.en(1) if self.phrase and not isinstance(self.phrase, Gap) else []
        )

    @property
    def heavy_de(self) -> list[str]:
        return self.phrase.heavy_de if self.phrase else []

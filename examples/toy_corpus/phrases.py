"""Noun phrases: one object per phrase, spelled out in German by case and in English by role.

Every phrase has ``agree`` (which pronoun stands for it in each language), ``de(case)`` and
``en(role)``; ``role`` is 0 for a subject and 1 for an object, the columns of the English pronouns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import english
import german
from lexicon import Adjective, Noun

if TYPE_CHECKING:
    from clauses import Clause


def said(*parts: str | Literal[False] | None) -> str:
    """The parts that are there, one after another."""
    return " ".join(part for part in parts if part)


@dataclass(frozen=True)
class Agreement:
    """The pronouns a phrase agrees with, e.g. ``er``/``it`` for der Tisch."""

    de: str
    en: str

    @property
    def person(self) -> int:
        return int(german.PRONOUNS[self.de][5])

    @property
    def plural(self) -> bool:
        return german.PRONOUNS[self.de][6] == "plural"

    @property
    def gender(self) -> str:
        return "p" if self.plural else {"er": "m", "es": "n"}.get(self.de, "f")


ME, US, YOU = Agreement("ich", "I"), Agreement("wir", "we"), Agreement("du", "you")
HIM, HER, IT = Agreement("er", "he"), Agreement("sie", "she"), Agreement("es", "it")
THEM = Agreement("they", "they")


class Phrase:
    """What a clause expects of its subject and objects."""

    agree: Agreement
    kind = "someone"  # its class, as verbs name it
    determiner = ""
    is_pronoun = False
    heavy_de = ""  # what follows the clause in German: an extraposed relative clause

    def de(self, case: str) -> str:
        raise NotImplementedError

    def en(self, role: int) -> str:
        raise NotImplementedError


@dataclass
class Pronoun(Phrase):
    """ich, er, sie … standing for an agreement."""

    agree: Agreement
    is_pronoun = True

    def de(self, case: str) -> str:
        return german.PRONOUNS[self.agree.de][german.CASES.index(case)]

    def en(self, role: int) -> str:
        return english.PRONOUNS[self.agree.en][role]


@dataclass
class Fixed(Phrase):
    """A phrase that hardly inflects: names, wer/who."""

    agree: Agreement
    german: str
    english: str
    oblique: str = ""  # German outside the nominative, where it differs

    def de(self, case: str) -> str:
        return self.german if case == "nom" else self.oblique or self.german

    def en(self, role: int) -> str:
        return self.english


@dataclass
class Gap(Phrase):
    """The relative pronoun: the hole that the head noun fills in its relative clause."""

    agree: Agreement
    human: bool
    kind: str

    def de(self, case: str) -> str:
        return german.relative(case, self.agree.gender)

    def en(self, role: int) -> str:
        return ("whom" if role else "who") if self.human else "that"


# A woman with a possessive is a wife: meine Frau.
_SPOUSES = {"man": "husband", "men": "husbands", "woman": "wife", "women": "wives"}


@dataclass
class NounPhrase(Phrase):
    """Determiner, adjectives, noun, and after it a genitive or a relative clause.

    ``determiner`` is der, ein, kein, dies, jed, number, poss and whose (of ``owner``), named
    (Annas Auto, Anna's car), or played (Klavier spielen, play the piano).
    """

    noun: Noun
    determiner: str = "der"
    owner: Agreement | None = None
    plural: bool = False
    adjectives: Sequence[Adjective] = ()
    number: int = 0
    name: str = ""
    genitive: NounPhrase | None = None
    relative: Clause | None = None
    extraposed: bool = False

    @property
    def kind(self) -> str:
        return "someone" if self.noun.human else self.noun.kind

    @property
    def agree(self) -> Agreement:
        if self.plural:
            return THEM
        return Agreement({"m": "er", "f": "sie", "n": "es"}[self.noun.gender], self.noun.en_pronoun)

    @property
    def many(self) -> bool:
        """Whether it takes no indefinite article."""
        return self.plural or self.noun.mass

    def _determiner_de(self, case: str) -> tuple[str, str]:
        """The determiner and the declension it asks of adjectives."""
        gender = "p" if self.plural else self.noun.gender
        if self.determiner == "number":
            return german.number(self.number), "strong"
        if self.determiner == "played" or (self.determiner == "ein" and self.many):
            return "", "strong"
        if self.determiner == "named":
            return self.name + "s", "strong"
        if self.determiner == "whose":
            return german.relative("gen", self.owner.gender), "strong"
        if self.determiner == "poss":
            return german.article(german.PRONOUNS[self.owner.de][4], case, gender), "mixed"
        declension = "mixed" if self.determiner in ("ein", "kein") else "weak"
        return german.article(self.determiner, case, gender), declension

    def de(self, case: str) -> str:
        determiner, declension = self._determiner_de(case)
        gender = "p" if self.plural else self.noun.gender
        return said(
            determiner,
            *(german.adjective(a.de, declension, case, gender) for a in self.adjectives),
            self.noun.form_de(case, self.plural),
            self.genitive and self.genitive.de("gen"),
            not self.extraposed and self._relative_de(),
        )

    def _relative_de(self) -> str:
        return said(",", self.relative.de_final(), ",") if self.relative else ""

    @property
    def heavy_de(self) -> str:
        return self._relative_de() if self.extraposed else ""

    def _determiner_en(self, following: str) -> str:
        if self.determiner == "number":
            return english.number(self.number)
        if self.determiner == "poss":
            return english.PRONOUNS[self.owner.en][2]
        if self.determiner in ("ein", "kein"):
            several = "any" if self.determiner == "kein" else ""
            return several if self.many else english.indefinite(following)
        if self.determiner == "dies":
            return "these" if self.plural else "this"
        if self.determiner == "named":
            return self.name + "'s"
        return {"jed": "every", "whose": "whose"}.get(self.determiner, "the")

    def en(self, role: int) -> str:
        noun = self.noun.form_en(self.plural and not self.noun.plural_only)
        if self.determiner == "poss":
            noun = _SPOUSES.get(noun, noun)
        words = said(*(adjective.en for adjective in self.adjectives), noun)
        if self.genitive:  # das Auto des Lehrers is the teacher's car
            owner = self.genitive.en(1)
            owner += "'" if self.genitive.plural and owner.endswith("s") else "'s"
        else:
            owner = self._determiner_en(words)
        return said(owner, words, self.relative and self.relative.en_words())


@dataclass
class Adverbial:
    """A preposition with its phrase, or a fixed adverb when ``phrase`` is None."""

    german: str
    english: str
    phrase: Phrase | None = None
    case: str = "dat"

    @property
    def gapped(self) -> bool:
        return isinstance(self.phrase, Gap)

    @property
    def heavy_de(self) -> str:
        return self.phrase.heavy_de if self.phrase else ""

    def de(self) -> str:
        words = self.phrase.de(self.case) if self.phrase else ""
        first, _, rest = words.partition(" ")
        joined = german.CONTRACTIONS.get((self.german, first))
        # "in dem, auf" with a relative pronoun must not contract
        return said(joined, rest) if joined and not self.gapped else said(self.german, words)

    def en(self) -> str:
        preposition = self.english if self.english != "-" else ""
        return said(preposition, self.phrase and not self.gapped and self.phrase.en(1))

"""Random phrases: who does something, to what, when and where.

Everything is drawn from one ``random.Random`` handed in by the caller; the choices follow the
semantic classes of the lexicon so that sentences are mostly plausible.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Union

import english
import german
from lexicon import ADVERBS, ATTRIBUTES, NAMES, Pool, kind_for, noun_of
from phrases import HER, HIM, ME, THEM, US, YOU, Adverbial, Agreement, Fixed, NounPhrase, Pronoun

AnyPhrase = Union[Fixed, NounPhrase, Pronoun]
# Formal Sie is left to questions and commands: at the start of a statement it looks like "they".
_SPEAKERS = Pool([HIM, HER, ME, US, THEM, YOU, Agreement("ihr", "you")], offset=5.0)
_NEAR = [ME, US, YOU]
_OWNED = ("document", "tool", "vehicle", "clothing", "house", "animal", "device", "abstract")


def chance(rng: Random, probability: float) -> bool:
    return rng.random() < probability


def name(rng: Random) -> Fixed:
    """Anna, Paul Weber, Herr Müller."""
    woman = chance(rng, 0.5)
    agree = HER if woman else HIM
    given, family = _given(rng, woman), NAMES["families"].pick(rng)
    style = rng.random()
    if style < 0.75:
        whole = given if style < 0.55 else f"{given} {family}"
        return Fixed(agree, whole, whole)
    if woman:
        return Fixed(agree, f"Frau {family}", f"Mrs. {family}")
    return Fixed(agree, f"Herr {family}", f"Mr. {family}", f"Herrn {family}")


def _given(rng: Random, woman: bool) -> str:
    return NAMES["women" if woman else "men"].pick(rng)


def amount(rng: Random) -> int:
    """How many: mostly a few, sometimes up to 999."""
    style = rng.random()
    if style < 0.7:
        return rng.randint(2, 12)
    return rng.randint(13, 99) if style < 0.93 else rng.randint(100, 999)


def _determine(rng: Random, phrase: NounPhrase) -> None:
    """Choose determiner and number; the owner, if any, is whom sein/ihr refers to."""
    noun, owner, style = phrase.noun, phrase.owner, rng.random()
    phrase.plural = noun.plural_only
    if noun.kind == "kin":
        phrase.determiner = "poss"
        phrase.owner = owner if owner and chance(rng, 0.6) else rng.choice(_NEAR)
        return
    if noun.mass:
        phrase.determiner = "der" if style < 0.4 else "poss" if style < 0.5 and owner else "ein"
        return
    phrase.plural = phrase.plural or chance(rng, 0.2)
    if 0.42 <= style < 0.7:
        phrase.determiner = "ein"
    elif 0.7 <= style < 0.8:
        phrase.determiner, phrase.owner = "poss", owner or rng.choice([*_NEAR, HIM, HER])
    elif 0.8 <= style < 0.87:
        phrase.determiner = "dies"
    elif 0.87 <= style < 0.9 and not phrase.plural:
        phrase.determiner = "jed"
    elif 0.87 <= style < 0.96:
        phrase.determiner, phrase.plural, phrase.number = "number", True, amount(rng)


def noun_phrase(
    rng: Random, kind: str, owner: Agreement | None = None, plain: bool = False
) -> NounPhrase:
    """A noun phrase of a class; ``owner`` is whom sein/ihr refers to; ``plain``: no frills."""
    phrase = NounPhrase(noun_of(rng, kind), owner=owner)
    noun = phrase.noun
    if noun.mass and owner is None:
        phrase.determiner = "der" if chance(rng, 0.5) else "ein"
    elif plain:
        phrase.plural = noun.plural_only
        if noun.kind == "kin":
            phrase.determiner, phrase.owner = "poss", rng.choice(_NEAR)
        elif chance(rng, 0.4):
            phrase.determiner = "ein"
        return phrase
    else:
        _determine(rng, phrase)
    if noun.kind in ATTRIBUTES and chance(rng, 0.33):
        phrase.adjectives = [ATTRIBUTES[noun.kind].pick(rng)]
    if phrase.determiner == "der" and noun.kind in _OWNED and chance(rng, 0.12):
        of = noun_of(rng, "person")
        phrase.genitive = NounPhrase(of, plural=chance(rng, 0.2) or of.plural_only)
    return phrase


def someone(rng: Random, fresh: bool = True) -> AnyPhrase:
    """A person as subject.  A later clause (not ``fresh``) must not start a new er or sie."""
    style = rng.random()
    if style < 0.3:
        return Pronoun(_SPEAKERS.pick(rng) if fresh else rng.choice(_NEAR))
    if style < 0.64:
        phrase = noun_phrase(rng, "person")
        if phrase.determiner == "jed" and not fresh:
            phrase.determiner = "der"
        return phrase
    if style < 0.77:
        return noun_phrase(rng, "kin")
    first = name(rng)
    if style >= 0.8:
        return first
    second = name(rng)
    same = first.english.split()[0] == second.english.split()[0]
    return first if same else _both(first, second)


def _both(first: Fixed, second: Fixed) -> Fixed:
    """Anna und Herr Müller."""
    german_ = (f"{first.de(case)} und {second.de(case)}" for case in ("nom", "acc"))
    return Fixed(THEM, next(german_), f"{first.english} and {second.english}", next(german_))


def subject_of(rng: Random, classes: Sequence[str], fresh: bool = True) -> AnyPhrase:
    """A subject from one of the verb's classes."""
    kind = kind_for(rng, classes)
    return someone(rng, fresh) if kind == "someone" else noun_phrase(rng, kind)


def object_of(
    rng: Random, classes: Sequence[str], owner: Agreement, fresh: bool = True
) -> AnyPhrase:
    """An object; persons may be names or pronouns, things may belong to somebody named."""
    kind = kind_for(rng, classes)
    if kind in ("person", "kin") and chance(rng, 0.3):
        if chance(rng, 0.5):
            return name(rng)
        others = [*_NEAR, HIM] if fresh else _NEAR
        # no "I see me", no "we see me", no "he sees him"
        return Pronoun(rng.choice([other for other in others if other.person != owner.person]))
    if kind == "playable":
        return NounPhrase(noun_of(rng, kind), determiner="played")
    phrase = noun_phrase(rng, kind, owner)
    owned = kind in _OWNED and phrase.determiner == "der" and not phrase.genitive
    if owned and chance(rng, 0.12):
        given = _given(rng, chance(rng, 0.5))
        if given[-1] not in "sxz":
            phrase.determiner, phrase.name = "named", given
    return phrase


def goal(rng: Random, far: bool) -> Adverbial:
    """Where somebody goes: in die Schule, zum Bahnhof, and if ``far`` nach Berlin."""
    style = rng.uniform(0.0 if far else 0.38, 1.0)
    if style < 0.38:
        return _named_place(rng, style < 0.25, style < 0.35, ("nach", "in die", "to"))
    if style < 0.44:
        return Adverbial("nach Hause", "home")
    if style < 0.54:
        who = name(rng) if chance(rng, 0.5) else noun_phrase(rng, "person", plain=True)
        return Adverbial("zu", "to", who)
    phrase = _place(rng)
    towards = phrase.noun.place[1]
    return Adverbial(towards, "to", phrase, "dat" if towards == "zu" else "acc")


def place(rng: Random) -> Adverbial:
    """Where something happens: im Garten, am Bahnhof, in Berlin, auf dem Sofa."""
    style = rng.random()
    if style < 0.33:
        return _named_place(rng, style < 0.22, style < 0.3, ("in", "in der", "in"))
    if style < 0.38:
        return Adverbial("zu Hause", "at home")
    if style < 0.45:
        return Adverbial("bei", "with", name(rng))
    phrase = _place(rng)
    where, _, where_en = phrase.noun.place
    return Adverbial(where, where_en, phrase)


def _named_place(rng: Random, city: bool, bare: bool, words: tuple[str, str, str]) -> Adverbial:
    """A city or a country; some countries take an article in German."""
    section = "cities" if city else "countries" if bare else "countries with article"
    de, en = NAMES[section].pick(rng)
    return Adverbial(f"{words[0] if bare else words[1]} {de}", f"{words[2]} {en}")


def _place(rng: Random) -> NounPhrase:
    phrase = noun_phrase(rng, "place", plain=True)
    phrase.determiner = "der" if chance(rng, 0.7) else "ein" if chance(rng, 0.7) else "dies"
    if chance(rng, 0.22):
        phrase.adjectives = [ATTRIBUTES["place"].pick(rng)]
    return phrase


def surface(rng: Random) -> Adverbial:
    """Onto, under or next to a piece of furniture."""
    de, en = ADVERBS["locations"].pick(rng)
    return Adverbial(de, en, noun_phrase(rng, "furniture", plain=True), "acc")


def adverb(rng: Random, section: str) -> Adverbial:
    """One of adverbs.tsv."""
    return Adverbial(*ADVERBS[section].pick(rng))


def time(rng: Random, period: str) -> Adverbial:
    """A time for ``past``, ``pres`` or ``fut``; some fit any tense."""
    style = rng.random()
    if style < 0.5 or (period == "fut" and style < 0.85):
        return adverb(rng, period)
    if period == "fut":
        de, en = _span(rng)
        return Adverbial(f"in {de}", f"in {en}")
    if style < 0.66:
        return adverb(rng, "any")
    if style < 0.78:
        return _clock(rng)
    return _dated(rng) if period == "past" else _day(rng)


def calendar(rng: Random, period: str) -> Adverbial:
    """A time that suits a state: no clock, no habit."""
    if period == "fut":
        return time(rng, period)
    if period == "past" and chance(rng, 0.4):
        return _dated(rng)
    return adverb(rng, "past" if period == "past" and chance(rng, 0.5) else "any")


def _clock(rng: Random) -> Adverbial:
    hour, minute = rng.randint(1, 23), rng.choice((0, 0, 0, 15, 30, 45))
    if minute == 0:
        return Adverbial(f"um {hour} Uhr", f"at {hour} o'clock" if hour < 13 else f"at {hour}:00")
    return Adverbial(f"um {hour}.{minute} Uhr", f"at {hour}:{minute}")


def _day(rng: Random) -> Adverbial:
    de, en = ADVERBS["days"].pick(rng)
    return Adverbial(f"am {de}", f"on {en}")


def _span(rng: Random) -> tuple[str, str]:
    """zwei Tagen, two days."""
    (de, en), number = ADVERBS["counted"].pick(rng), min(amount(rng), 99)
    return f"{german.number(number)} {de}", f"{english.number(number)} {en}"


def _dated(rng: Random) -> Adverbial:
    """Years, dates, days and "ago"."""
    style = rng.random()
    if style < 0.3:
        year = rng.randint(1950, 2024)
        return Adverbial(f"im Jahr {year}", f"in {year}")
    if style < 0.5:
        (de, en), day = ADVERBS["months"].pick(rng), rng.randint(1, 28)
        return Adverbial(f"am {day}. {de}", f"on {en} {day}")
    if style < 0.75:
        return _day(rng)
    de, en = _span(rng)
    return Adverbial(f"vor {de}", f"{en} ago")

"""Random phrases: who does something, to what, when and where.

Everything is drawn from one ``random.Random`` handed in by the caller; the choices follow the
semantic classes of the lexicon so that sentences are mostly plausible.
"""

from __future__ import annotations

from random import Random

from . import adverbs, lexicon
from .lexicon import Pool
from .numbers import english as number_en
from .numbers import german as number_de
from .phrases import Adverbial, Agreement, Fixed, Named, NounPhrase, Pair, Phrase, Pronoun

# Formal Sie is left to questions and commands: at the start of a statement it looks like "they".
SPEAKERS = Pool(
    [
        Agreement("er", "he"),
        Agreement("sie", "she"),
        Agreement("ich", "I"),
        Agreement("wir", "we"),
        Agreement("they", "they"),
        Agreement("du", "you"),
        Agreement("ihr", "you"),
    ],
    offset=5.0,
)
_NEAR = [Agreement("ich", "I"), Agreement("wir", "we"), Agreement("du", "you")]
_NEAR_OR_ABSENT = [*_NEAR, Agreement("er", "he"), Agreement("sie", "she")]
_TIMES = {
    "past": Pool(adverbs.PAST_TIMES),
    "pres": Pool(adverbs.PRESENT_TIMES),
    "fut": Pool(adverbs.FUTURE_TIMES),
    "any": Pool(adverbs.ANY_TIMES),
}
_DAYS, _MONTHS = Pool(adverbs.DAYS), Pool(adverbs.MONTHS)
LOCATIONS = Pool(adverbs.LOCATIONS)


def chance(rng: Random, probability: float) -> bool:
    return rng.random() < probability


def name(rng: Random) -> Fixed:
    """Anna, Paul Weber, Herr Müller."""
    woman = chance(rng, 0.5)
    agree = Agreement("sie", "she") if woman else Agreement("er", "he")
    given = (lexicon.WOMEN if woman else lexicon.MEN).pick(rng)
    family = lexicon.FAMILIES.pick(rng)
    style = rng.random()
    if style < 0.55:
        return Fixed(agree, dict.fromkeys(("nom", "acc", "dat"), given), given)
    if style < 0.75:
        full = f"{given} {family}"
        return Fixed(agree, dict.fromkeys(("nom", "acc", "dat"), full), full)
    if woman:
        return Fixed(
            agree, dict.fromkeys(("nom", "acc", "dat"), f"Frau {family}"), f"Mrs. {family}"
        )
    inflected = {"nom": f"Herr {family}", "acc": f"Herrn {family}", "dat": f"Herrn {family}"}
    return Fixed(agree, inflected, f"Mr. {family}")


def amount(rng: Random) -> int:
    """How many: mostly a few, sometimes up to 999."""
    style = rng.random()
    if style < 0.7:
        return rng.randint(2, 12)
    return rng.randint(13, 99) if style < 0.93 else rng.randint(100, 999)


def _determine(rng: Random, phrase: NounPhrase, owner: Agreement | None) -> None:
    """Choose determiner and number."""
    noun, style = phrase.noun, rng.random()
    if noun.plural_only:
        phrase.plural = True
    if noun.kind == "kin":
        phrase.determiner = "poss"
        phrase.owner = owner if owner and chance(rng, 0.6) else rng.choice(_NEAR)
        return
    if noun.mass:
        phrase.determiner = "der" if style < 0.4 else "poss" if style < 0.5 and owner else "ein"
        return
    phrase.plural = phrase.plural or chance(rng, 0.2)
    if style < 0.42:
        phrase.determiner = "der"
    elif style < 0.7:
        phrase.determiner = "ein"
    elif style < 0.8:
        phrase.determiner, phrase.owner = "poss", owner or rng.choice(_NEAR_OR_ABSENT)
    elif style < 0.87:
        phrase.determiner = "dies"
    elif style < 0.9 and not phrase.plural:
        phrase.determiner = "jed"
    elif style < 0.96:
        phrase.determiner, phrase.plural, phrase.number = "number", True, amount(rng)
    if phrase.determiner == "poss" and phrase.owner is None:
        phrase.owner = owner


def noun_phrase(
    rng: Random, kind: str, owner: Agreement | None = None, plain: bool = False
) -> NounPhrase:
    """A noun phrase of a class; ``owner`` is whom sein/ihr refers to; ``plain``: no frills."""
    phrase = NounPhrase(lexicon.noun_of(rng, kind))
    if phrase.noun.mass and owner is None:
        phrase.determiner = "der" if chance(rng, 0.5) else "ein"
    elif plain:
        phrase.plural = phrase.noun.plural_only
        if phrase.noun.kind == "kin":
            phrase.determiner, phrase.owner = "poss", rng.choice(_NEAR)
        elif chance(rng, 0.4):
            phrase.determiner = "ein"
        return phrase
    else:
        _determine(rng, phrase, owner)
    if phrase.determiner == "poss" and phrase.owner is None:
        phrase.owner = owner or rng.choice(_NEAR)
    if phrase.noun.kind in lexicon.ATTRIBUTES and chance(rng, 0.33):
        phrase.adjectives = [lexicon.ATTRIBUTES[phrase.noun.kind].pick(rng)]
    if phrase.determiner == "der" and phrase.noun.kind in _OWNED and chance(rng, 0.12):
        phrase.genitive = NounPhrase(lexicon.noun_of(rng, "person"), plural=chance(rng, 0.2))
        phrase.genitive.plural = phrase.genitive.plural or phrase.genitive.noun.plural_only
    return phrase


_OWNED = ("document", "tool", "vehicle", "clothing", "house", "animal", "device", "abstract")


def someone(rng: Random, fresh: bool = True) -> Phrase:
    """A person as subject.  A later clause (not ``fresh``) must not start a new er or sie."""
    style = rng.random()
    if style < 0.3:
        return Pronoun(SPEAKERS.pick(rng) if fresh else rng.choice(_NEAR))
    if style < 0.64:
        phrase = noun_phrase(rng, "person")
        if phrase.determiner == "jed" and not fresh:
            phrase.determiner = "der"
        return phrase
    if style < 0.77:
        return noun_phrase(rng, "kin")
    if style < 0.8:
        first, second = name(rng), name(rng)
        same = first.english.split()[0] == second.english.split()[0]
        return first if same else Pair(first, second)
    return name(rng)


def subject_of(rng: Random, classes: tuple[str, ...], fresh: bool = True) -> Phrase:
    """A subject from one of the verb's classes."""
    kind = lexicon.kind_for(rng, classes)
    return someone(rng, fresh) if kind == "someone" else noun_phrase(rng, kind)


def object_of(
    rng: Random, classes: tuple[str, ...], owner: Agreement, fresh: bool = True
) -> Phrase:
    """An object; persons may be names or pronouns, things may belong to somebody named."""
    kind = lexicon.kind_for(rng, classes)
    if kind in ("person", "kin") and chance(rng, 0.3):
        if chance(rng, 0.5):
            return name(rng)
        others = [a for a in (_NEAR_OR_ABSENT[:4] if fresh else _NEAR) if _distinct(a, owner)]
        return Pronoun(rng.choice(others))
    if kind == "playable":
        return NounPhrase(lexicon.noun_of(rng, kind), determiner="played")
    phrase = noun_phrase(rng, kind, owner)
    owned = kind in _OWNED and phrase.determiner == "der" and not phrase.genitive
    if owned and chance(rng, 0.12):
        given = (lexicon.WOMEN if chance(rng, 0.5) else lexicon.MEN).pick(rng)
        if given[-1] not in "sxz":
            phrase.determiner = "none"
            return Named(given, phrase)
    return phrase


def _distinct(first: Agreement, second: Agreement) -> bool:
    """No "I see me", no "we see me", no "he sees him"."""
    return first.person != second.person


def goal(rng: Random, far: bool) -> Adverbial:
    """Where somebody goes: in die Schule, zum Bahnhof, and if ``far`` nach Berlin."""
    style = rng.uniform(0.0 if far else 0.38, 1.0)
    if style < 0.25:
        return Adverbial(f"nach {(city := lexicon.CITIES.pick(rng))[0]}", f"to {city[1]}")
    if style < 0.35:
        return Adverbial(f"nach {(land := lexicon.COUNTRIES.pick(rng))[0]}", f"to {land[1]}")
    if style < 0.38:
        land = lexicon.ARTICLE_COUNTRIES.pick(rng)
        return Adverbial(f"in die {land[0]}", f"to {land[1]}")
    if style < 0.44:
        return Adverbial("nach Hause", "home")
    if style < 0.54:
        return Adverbial(
            "zu", "to", name(rng) if chance(rng, 0.5) else noun_phrase(rng, "person", plain=True)
        )
    phrase = _place(rng)
    _, towards, _ = phrase.noun.place
    return Adverbial(towards, "to", phrase, "dat" if towards == "zu" else "acc")


def place(rng: Random) -> Adverbial:
    """Where something happens: im Garten, am Bahnhof, in Berlin, auf dem Sofa."""
    style = rng.random()
    if style < 0.22:
        return Adverbial(f"in {(city := lexicon.CITIES.pick(rng))[0]}", f"in {city[1]}")
    if style < 0.3:
        return Adverbial(f"in {(land := lexicon.COUNTRIES.pick(rng))[0]}", f"in {land[1]}")
    if style < 0.33:
        land = lexicon.ARTICLE_COUNTRIES.pick(rng)
        return Adverbial(f"in der {land[0]}", f"in {land[1]}")
    if style < 0.38:
        return Adverbial("zu Hause", "at home")
    if style < 0.45:
        return Adverbial("bei", "with", name(rng))
    phrase = _place(rng)
    where, _, where_en = phrase.noun.place
    return Adverbial(where, where_en, phrase)


def _place(rng: Random) -> NounPhrase:
    phrase = noun_phrase(rng, "place", plain=True)
    phrase.determiner = "der" if chance(rng, 0.7) else "ein" if chance(rng, 0.7) else "dies"
    if chance(rng, 0.22):
        phrase.adjectives = [lexicon.ATTRIBUTES["place"].pick(rng)]
    return phrase


def surface(rng: Random, case: str) -> Adverbial:
    """On, under or next to a piece of furniture."""
    de, en = LOCATIONS.pick(rng)
    phrase = noun_phrase(rng, "furniture", plain=True)
    return Adverbial(de, en, phrase, case)


def time(rng: Random, period: str) -> Adverbial:
    """A time for ``past``, ``pres`` or ``fut``; some fit any tense."""
    style = rng.random()
    if style < 0.5 or (period == "fut" and style < 0.85):
        return Adverbial(*_TIMES[period].pick(rng))
    if style < 0.66:
        return Adverbial(*_TIMES["any"].pick(rng)) if period != "fut" else Adverbial(*_soon(rng))
    if style < 0.78:
        return _clock(rng) if period != "fut" else Adverbial(*_soon(rng))
    if period == "past":
        return Adverbial(*_dated(rng))
    if period == "fut":
        return Adverbial(*_soon(rng))
    de, en = _DAYS.pick(rng)
    return Adverbial(f"am {de}", f"on {en}")


def calendar(rng: Random, period: str) -> Adverbial:
    """A time that suits a state: no clock, no habit."""
    if period == "fut":
        return time(rng, period)
    if period == "past" and chance(rng, 0.4):
        return Adverbial(*_dated(rng))
    return Adverbial(*_TIMES["past" if period == "past" and chance(rng, 0.5) else "any"].pick(rng))


def _clock(rng: Random) -> Adverbial:
    hour, minute = rng.randint(1, 23), rng.choice((0, 0, 0, 15, 30, 45))
    if minute == 0:
        return Adverbial(f"um {hour} Uhr", f"at {hour} o'clock" if hour < 13 else f"at {hour}:00")
    return Adverbial(f"um {hour}.{minute} Uhr", f"at {hour}:{minute}")


_COUNTED = Pool(
    [
        ("Tagen", "days"),
        ("Jahren", "years"),
        ("Wochen", "weeks"),
        ("Monaten", "months"),
        ("Stunden", "hours"),
    ]
)


def _soon(rng: Random) -> tuple[str, str]:
    de, en = _COUNTED.pick(rng)
    number = min(amount(rng), 99)
    return f"in {number_de(number)} {de}", f"in {number_en(number)} {en}"


def _dated(rng: Random) -> tuple[str, str]:
    """Years, dates, days and "ago"."""
    style = rng.random()
    if style < 0.3:
        year = rng.randint(1950, 2024)
        return f"im Jahr {year}", f"in {year}"
    if style < 0.5:
        (de, en), day = _MONTHS.pick(rng), rng.randint(1, 28)
        return f"am {day}. {de}", f"on {en} {day}"
    if style < 0.75:
        de, en = _DAYS.pick(rng)
        return f"am {de}", f"on {en}"
    (de, en), number = _COUNTED.pick(rng), min(amount(rng), 99)
    return f"vor {number_de(number)} {de}", f"{number_en(number)} {en} ago"

"""Sentence patterns: how clauses combine, in both languages at once.

Pronouns across clauses follow one rule, so that the English is a function of the German: er/sie/es
in the later clause stands for the earlier subject if it agrees with it, otherwise for the earlier
object.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from . import adverbs, lexicon, sampling
from .clauses import Clause, sentence
from .grammar import COST, Plan, clause, copula, passive
from .lexicon import Pool, Verb
from .phrases import Agreement, Fixed, NounPhrase, Phrase, Pronoun
from .sampling import chance

Pairing = tuple[str, str]
_SUBORDINATORS = Pool(adverbs.SUBORDINATORS, offset=2.0)
_WEATHER = [Verb("regnen", "", False, False, "rain"), Verb("schneien", "", False, False, "snow")]
_TEMPORAL = ("als", "während", "bevor", "bis", "sobald", "nachdem")  # they say when, as time would
_IT = Pronoun(Agreement("es", "it"))
_JOINS = Pool(
    [(",", "und", "and"), (",", "aber", ", but"), (",", "denn", ", for"), (",", "oder", "or")],
    offset=2.0,
)
_SO = [
    ("deshalb", "therefore"),
    ("trotzdem", "nevertheless"),
    ("dann", "then"),
    ("danach", "afterwards"),
]


def _period(made: Clause) -> str:
    return {"pres": "pres", "fut": "fut", "soon": "fut"}.get(made.tense, "past")


def _refer(rng: Random, first: Clause, allow_object: bool = True) -> Phrase | None:
    """A pronoun for something in the first clause, or None for a new subject."""
    subject, thing = first.subject, first.object
    third = isinstance(thing, NounPhrase) and thing.determiner != "kein"
    if allow_object and third and thing.agree.de != subject.agree.de and chance(rng, 0.3):
        return Pronoun(thing.agree)
    determiner = getattr(subject, "determiner", "")
    return Pronoun(subject.agree) if chance(rng, 0.62) and determiner != "jed" else None


def _follow(rng: Random, first: Clause, period: str, simple: bool = True) -> Clause:
    """A second clause about the first one's subject or object, or about somebody new."""
    subject = _refer(rng, first)
    about_object = (
        subject is not None and first.object is not None and subject.agree == first.object.agree
    )
    if about_object and subject.agree != first.subject.agree:
        # Its class is not in the pronoun, so say only what fits the noun.
        made = copula(rng, Plan(period, first.object, False, True, 0.0, simple))
        made.subject = subject
        return made
    return _with_pronoun(rng, first.subject, subject, period, simple)


def _with_pronoun(
    rng: Random, antecedent: Phrase, pronoun: Phrase | None, period: str, simple: bool
) -> Clause:
    """A clause that fits the antecedent, with the pronoun in its place."""
    if pronoun is None:
        return clause(rng, Plan(period, None, False, True, 0.04, simple))
    made = clause(rng, Plan(period, antecedent, False, True, 0.04, simple))
    made.subject = pronoun
    return made


def simple(rng: Random) -> Pairing:
    made = clause(rng, Plan())
    return sentence(made.de_second()), sentence(made.en_words())


def copular(rng: Random) -> Pairing:
    made = copula(rng, Plan())
    return sentence(made.de_second()), sentence(made.en_words())


def passively(rng: Random) -> Pairing:
    made = passive(rng)
    return sentence(made.de_second()), sentence(made.en_words())


def coordinated(rng: Random) -> Pairing:
    """Two main clauses, or two verbs with one subject."""
    first = clause(rng, Plan(relatives=0.05))
    period = _period(first)
    if chance(rng, 0.35) and first.front == "subject":
        second = clause(rng, Plan(period, first.subject, False, True, 0.03))
        second.subject = Pronoun(first.subject.agree)
        return (
            sentence([*first.de_second(), "und", *second.de_rest()]),
            sentence([*first.en_words(), "and", *second.en_rest()]),
        )
    second = _follow(rng, first, period)
    if chance(rng, 0.3):
        de, en = _SO[rng.randrange(len(_SO))]
        return (
            sentence([*first.de_second(), ",", de, *second.de_first()]),
            sentence([*first.en_words(), ",", en, *second.en_words()]),
        )
    comma, de, en = _JOINS.pick(rng)
    return (
        sentence([*first.de_second(), comma, de, *second.de_second()]),
        sentence([*first.en_words(), *en.split(" "), *second.en_words()]),
    )


def _conditional_periods(rng: Random, conjunction: str) -> tuple[str, str]:
    """Periods of main and subordinate clause that go together."""
    if conjunction in ("wenn", "sobald", "bis"):
        return rng.choice(("pres", "fut")), "pres"
    if conjunction == "damit":
        return rng.choice(("pres", "past")), "pres"
    if conjunction in ("während", "bevor", "als", "nachdem"):
        period = "past" if conjunction in ("als", "nachdem") else rng.choice(("pres", "past"))
        return period, period
    return rng.choice((("pres", "pres"), ("past", "past"), ("pres", "past"), ("fut", "pres")))


def _adjust(made: Clause, conjunction: str, main: Clause) -> None:
    """Tense forms that a conjunction fixes: nachdem + pluperfect, damit + können."""
    if conjunction in _TEMPORAL:
        made.time = None
        _unnegate(made)
    if conjunction == "nachdem":
        made.tense, made.modal = "plup", ""
    elif conjunction == "damit":
        made.tense = "pret" if _period(main) == "past" else "pres"
        made.modal, made.time, made.frequency = "können", None, None


def subordinate(rng: Random) -> Pairing:
    """weil, wenn, obwohl …, before or after the main clause."""
    de, en = _SUBORDINATORS.pick(rng)
    if chance(rng, 0.12):
        de, en = rng.choice((("als", "when"), ("nachdem", "after")))
    main_period, sub_period = _conditional_periods(rng, de)
    if de not in ("bis", "damit") and chance(rng, 0.4):
        return _fronted(rng, de, en, main_period, sub_period)
    main = clause(rng, Plan(main_period, relatives=0.05))
    sub = _follow(rng, main, sub_period, simple=de in ("wenn", "sobald", "bis", "nachdem", "damit"))
    _adjust(sub, de, main)
    return (
        sentence([*main.de_second(), ",", de, *sub.de_final()]),
        sentence([*main.en_words(), en, *sub.en_words()]),
    )


def _fronted(rng: Random, de: str, en: str, main_period: str, sub_period: str) -> Pairing:
    if de in ("wenn", "weil", "obwohl", "während", "als") and chance(rng, 0.15):
        sub = Clause(_IT, rng.choice(_WEATHER), "pret" if sub_period == "past" else "pres")
        main = clause(rng, Plan(main_period, None, True, True, 0.05))
    else:
        sub = clause(rng, Plan(sub_period, None, True, True, 0.03, True))
        main = _follow(rng, sub, main_period, simple=False)
        _adjust(sub, de, main)
    return (
        sentence([de, *sub.de_final(), ",", *main.de_first()]),
        sentence([en, *sub.en_words(), ",", *main.en_words()]),
    )


def _deepen(rng: Random, made: Clause) -> None:
    """Hang a reason on a subordinate clause."""
    de, en = rng.choice((("weil", "because"), ("obwohl", "although")))
    reason = _follow(rng, made, _period(made) if _period(made) != "fut" else "pres")
    made.tail_de, made.tail_en = [",", de, *reason.de_final()], [en, *reason.en_words()]


def saying(rng: Random) -> Pairing:
    """dass and ob clauses."""
    verb, conjunction = lexicon.SAYING.pick(rng)
    subject = sampling.someone(rng)
    period = rng.choice(("pres", "past"))
    literary = subject.agree.person == 3 and chance(rng, 0.4)
    main = Clause(subject, verb, "pres" if period == "pres" else "pret" if literary else "perf")
    if conjunction == "ob" and verb.de == "wissen":
        main.negated = True
    pronoun = (
        Pronoun(subject.agree)
        if chance(rng, 0.5) and getattr(subject, "determiner", "") != "jed"
        else None
    )
    sub = _with_pronoun(rng, subject, pronoun, "" if period == "pres" else "past", False)
    if chance(rng, 0.25):
        _deepen(rng, sub)
    english = "that" if conjunction == "dass" else "whether"
    main.tail_de, main.tail_en = [",", conjunction, *sub.de_final()], [english, *sub.en_words()]
    if period == "past" and chance(rng, 0.3):
        main.time, main.front = sampling.time(rng, "past"), "time"
    return sentence(main.de_second()), sentence(main.en_words())


def _bare(rng: Random, subject: Phrase) -> Clause:
    """A clause for an infinitive: no tense, no adverbs that need one."""
    made = clause(rng, Plan("pres", subject, False, True, 0.04, True))
    while made.predicate or made.verb.de in ("haben", "kennen"):
        made = clause(rng, Plan("pres", subject, False, True, 0.04, True))
    made.modal, made.time, made.frequency = "", None, None
    _unnegate(made)
    return made


def intending(rng: Random) -> Pairing:
    """versuchen, … zu …, and um … zu …"""
    if chance(rng, 0.4):
        main = clause(rng, Plan("", sampling.someone(rng), True, False, 0.0))
        bare = _bare(rng, main.subject)
        bare.subject = Pronoun(main.subject.agree)
        return (
            sentence([*main.de_second(), ",", "um", *bare.de_infinitive()]),
            sentence([*main.en_words(), "in order to", *bare.en_infinitive()]),
        )
    subject = sampling.someone(rng)
    verb = lexicon.INTENDING.pick(rng)
    tense = rng.choice(("pres", "perf", "pret" if subject.agree.person == 3 else "perf"))
    main = Clause(subject, verb, tense, negated=chance(rng, 0.08))
    bare = _bare(rng, subject)
    bare.subject = Pronoun(subject.agree)
    if tense != "pres" and chance(rng, 0.3):
        main.time = sampling.time(rng, "past")
        main.front = "time"
    main.tail_de, main.tail_en = [",", *bare.de_infinitive()], ["to", *bare.en_infinitive()]
    return sentence(main.de_second()), sentence(main.en_words())


_ASKING = Pool(
    [
        ("warum", "why"),
        ("wann", "when"),
        ("wo", "where"),
        ("mit wem", "with whom"),
        ("wie oft", "how often"),
    ]
)


def question(rng: Random) -> Pairing:
    """Yes/no questions and questions with a question word."""
    style = rng.random()
    if style < 0.15:
        return _who(rng)
    formal = Pronoun(Agreement("Sie", "you")) if chance(rng, 0.2) else None
    made = clause(rng, Plan(subject=formal, relatives=0.0, nested=True))
    if style < 0.55:
        made.frequency = None
        return sentence(made.de_first(), "?"), sentence(made.en_question(), "?")
    de, en = _ASKING.pick(rng)
    if de != "warum":
        made.time, made.frequency = None, None
        made.tense = "fut" if made.tense == "soon" else made.tense
        _unnegate(made)
    if de in ("wo", "mit wem") and (made.complement or made.predicate):
        de, en = "warum", "why"
    return sentence([de, *made.de_first()], "?"), sentence([en, *made.en_question()], "?")


def _unnegate(made: Clause) -> None:
    """Undo a negation, kein included."""
    made.negated = False
    for phrase in (made.object, made.recipient):
        if isinstance(phrase, NounPhrase) and phrase.determiner == "kein":
            phrase.determiner = "ein"


def _who(rng: Random) -> Pairing:
    who = Fixed(Agreement("er", "he"), {"nom": "wer"}, "who")
    made = clause(rng, Plan("", who, True, True, 0.0))
    return sentence(made.de_second(), "?"), sentence(made.en_words(), "?")


def command(rng: Random) -> Pairing:
    """Imperatives to du, ihr and Sie."""
    who = rng.choice(("du", "ihr", "Sie"))
    made = _bare(rng, Pronoun(Agreement(who, "you")))
    made.stance, made.manner = None, None
    return sentence(made.de_imperative(who), "!"), sentence(["please", *made.en_infinitive()], "!")


def existence(rng: Random) -> Pairing:
    """es gibt."""
    thing = sampling.noun_phrase(
        rng, rng.choice(("house", "animal", "person", "plant", "event", "furniture"))
    )
    while thing.determiner not in ("ein", "number"):
        thing = sampling.noun_phrase(rng, thing.noun.kind)
    where, past = sampling.place(rng), chance(rng, 0.35)
    while where.german == "bei":
        where = sampling.place(rng)
    plural = thing.agree.plural
    be = ("were" if plural else "was") if past else ("are" if plural else "is")
    finite = "gab" if past else "gibt"
    if chance(rng, 0.5):
        german = [*where.de(), finite, "es", *thing.de("acc")]
    else:
        german = ["es", finite, *where.de(), *thing.de("acc")]
    return sentence(german), sentence(["there", be, *thing.en(0), *where.en()])


def price(rng: Random) -> Pairing:
    """What things cost, in digits."""
    kind = rng.choice(("document", "clothing", "tool", "vehicle", "furniture", "device", "food"))
    thing = sampling.noun_phrase(rng, kind)
    if thing.determiner == "jed":
        thing.determiner = "dies"
    amount = sampling.amount(rng) * (100 if kind == "vehicle" else 1)
    made = Clause(thing, COST, "pret" if chance(rng, 0.3) else "pres")
    made.predicate = [str(amount), "Euro"], [str(amount), "euros"]
    return sentence(made.de_second()), sentence(made.en_words())


PATTERNS: list[tuple[Callable[[Random], Pairing], int]] = [
    (simple, 15),
    (subordinate, 29),
    (coordinated, 16),
    (saying, 18),
    (intending, 8),
    (question, 6),
    (copular, 4),
    (passively, 4),
    (command, 2),
    (existence, 2),
    (price, 1),
]
_MAKERS = [maker for maker, _ in PATTERNS]
_SHARES = [share for _, share in PATTERNS]


def pair(rng: Random) -> Pairing:
    """One random sentence pair, German first."""
    return rng.choices(_MAKERS, _SHARES)[0](rng)

"""Sentence patterns: how clauses combine, in both languages at once.

Pronouns across clauses follow one rule, so that the English is a function of the German: er/sie/es
in the later clause stands for the earlier subject if it agrees with it, otherwise for the earlier
object.
"""

from __future__ import annotations

from random import Random

from clauses import Clause, sentence
from grammar import Setting, clause, copula, inside, passive
from lexicon import ADVERBS, VERBS, Verb
from phrases import HIM, IT, Agreement, Fixed, Phrase, Pronoun, said
from sampling import amount, chance, noun_phrase, place, someone, time

Pairing = tuple[str, str]
_WEATHER = [Verb("regnen", "rain"), Verb("schneien", "snow")]
_TEMPORAL = ("als", "während", "bevor", "bis", "sobald", "nachdem")  # they say when, as time would


def _paired(de: str, en: str, end: str = ".") -> Pairing:
    return sentence(de, end), sentence(en, end)


def _stated(made: Clause) -> Pairing:
    return _paired(made.de_second(), made.en_words())


def _refer(rng: Random, first: Clause) -> Phrase | None:
    """A pronoun for something in the first clause, or None for a new subject."""
    subject, thing = first.subject, first.object
    other = (
        thing
        and thing.determiner not in ("", "kein", "named")
        and thing.agree.de != subject.agree.de
    )
    if other and chance(rng, 0.3):
        return Pronoun(thing.agree)
    return Pronoun(subject.agree) if chance(rng, 0.62) and subject.determiner != "jed" else None


def _follow(rng: Random, first: Clause, period: str, simple: bool = True) -> Clause:
    """A second clause about the first one's subject or object, or about somebody new."""
    pronoun, thing = _refer(rng, first), first.object
    if pronoun and thing and pronoun.agree == thing.agree != first.subject.agree:
        # Its class is not in the pronoun, so say only what fits the noun.
        made = copula(rng, inside(period, thing))
        made.subject = pronoun
        return made
    return _with_pronoun(rng, first.subject, pronoun, period, simple)


def _with_pronoun(
    rng: Random, antecedent: Phrase, pronoun: Phrase | None, period: str, simple: bool
) -> Clause:
    """A clause that fits the antecedent, with the pronoun in its place."""
    subject = antecedent if pronoun else None
    made = clause(rng, inside(period, subject, 0.04, simple_tense=simple))
    made.subject = pronoun or made.subject
    return made


def _simple(rng: Random) -> Pairing:
    return _stated(clause(rng, Setting()))


def _copular(rng: Random) -> Pairing:
    return _stated(copula(rng, Setting()))


def _passive(rng: Random) -> Pairing:
    return _stated(passive(rng))


def _coordinated(rng: Random) -> Pairing:
    """Two main clauses, or two verbs with one subject."""
    first = clause(rng, Setting(relatives=0.05))
    if chance(rng, 0.35) and first.front == "subject":
        second = clause(rng, inside(first.period, first.subject, 0.03))
        second.subject = Pronoun(first.subject.agree)
        de = said(first.de_second(), "und", second.de_rest())
        return _paired(de, said(first.en_words(), "and", second.en_rest()))
    second = _follow(rng, first, first.period)
    if chance(rng, 0.3):
        so, so_en = rng.choice(ADVERBS["so"].items)
        de = said(first.de_second(), ",", so, second.de_first())
        return _paired(de, said(first.en_words(), ",", so_en, second.en_words()))
    join, join_en = ADVERBS["joins"].pick(rng)
    de = said(first.de_second(), join, second.de_second())
    return _paired(de, said(first.en_words(), join_en, second.en_words()))


def _periods(rng: Random, conjunction: str) -> tuple[str, str]:
    """Periods of main and subordinate clause that go together."""
    if conjunction in ("wenn", "sobald", "bis"):
        return rng.choice(("pres", "fut")), "pres"
    if conjunction == "damit":
        return rng.choice(("pres", "past")), "pres"
    if conjunction in ("als", "nachdem"):
        return "past", "past"
    if conjunction in ("während", "bevor"):
        return (rng.choice(("pres", "past")),) * 2
    return rng.choice((("pres", "pres"), ("past", "past"), ("pres", "past"), ("fut", "pres")))


def _adjust(made: Clause, conjunction: str, main: Clause) -> None:
    """Tense forms that a conjunction fixes: nachdem + pluperfect, damit + können."""
    if conjunction in _TEMPORAL:
        made.time = None
        _unnegate(made)
    if conjunction == "nachdem":
        made.tense, made.modal = "plup", ""
    elif conjunction == "damit":
        made.tense = "pret" if main.period == "past" else "pres"
        made.modal, made.time, made.frequency = "können", None, None


def _subordinate(rng: Random) -> Pairing:
    """weil, wenn, obwohl …, before or after the main clause."""
    de, en = ADVERBS["subordinators"].pick(rng)
    if chance(rng, 0.12):
        de, en = rng.choice((("als", "when"), ("nachdem", "after")))
    main_period, sub_period = _periods(rng, de)
    if de not in ("bis", "damit") and chance(rng, 0.4):
        return _fronted(rng, de, en, main_period, sub_period)
    main = clause(rng, Setting(main_period, relatives=0.05))
    sub = _follow(rng, main, sub_period, de in ("wenn", "sobald", "bis", "nachdem", "damit"))
    _adjust(sub, de, main)
    german = said(main.de_second(), ",", de, sub.de_final())
    return _paired(german, said(main.en_words(), en, sub.en_words()))


def _fronted(rng: Random, de: str, en: str, main_period: str, sub_period: str) -> Pairing:
    if de in ("wenn", "weil", "obwohl", "während", "als") and chance(rng, 0.15):
        tense = "pret" if sub_period == "past" else "pres"
        sub = Clause(Pronoun(IT), rng.choice(_WEATHER), tense)
        main = clause(rng, inside(main_period, relatives=0.05, fresh=True))
    else:
        setting = inside(sub_period, relatives=0.03, fresh=True, simple_tense=True)
        sub = clause(rng, setting)
        main = _follow(rng, sub, main_period, simple=False)
        _adjust(sub, de, main)
    german = said(de, sub.de_final(), ",", main.de_first())
    return _paired(german, said(en, sub.en_words(), ",", main.en_words()))


def _deepen(rng: Random, made: Clause) -> None:
    """Hang a reason on a subordinate clause."""
    de, en = rng.choice((("weil", "because"), ("obwohl", "although")))
    reason = _follow(rng, made, made.period if made.period != "fut" else "pres")
    made.tail = said(",", de, reason.de_final()), said(en, reason.en_words())


def _saying(rng: Random) -> Pairing:
    """dass and ob clauses."""
    verb, subject = VERBS["saying"].pick(rng), someone(rng)
    (conjunction,) = verb.extra
    period = rng.choice(("pres", "past"))
    literary = subject.agree.person == 3 and chance(rng, 0.4)
    main = Clause(subject, verb, "pres" if period == "pres" else "pret" if literary else "perf")
    main.negated = conjunction == "ob" and verb.de == "wissen"
    same = chance(rng, 0.5) and subject.determiner != "jed"
    pronoun = Pronoun(subject.agree) if same else None
    sub = _with_pronoun(rng, subject, pronoun, "" if period == "pres" else "past", False)
    if chance(rng, 0.25):
        _deepen(rng, sub)
    that = "that" if conjunction == "dass" else "whether"
    main.tail = said(",", conjunction, sub.de_final()), said(that, sub.en_words())
    if period == "past" and chance(rng, 0.3):
        main.time, main.front = time(rng, "past"), "time"
    return _stated(main)


def _bare(rng: Random, subject: Phrase) -> Clause:
    """A clause for an infinitive: no tense, no adverbs that need one."""
    made = None
    while not made or made.predicate[0] or made.verb.de in ("haben", "kennen"):
        made = clause(rng, inside("pres", subject, 0.04, simple_tense=True))
    made.subject = Pronoun(subject.agree)
    made.modal, made.time, made.frequency = "", None, None
    _unnegate(made)
    return made


def _intending(rng: Random) -> Pairing:
    """versuchen, … zu …, and um … zu …"""
    if chance(rng, 0.4):
        main = clause(rng, Setting(subject=someone(rng), relatives=0.0))
        bare = _bare(rng, main.subject)
        de = said(main.de_second(), ", um", bare.de_infinitive())
        return _paired(de, said(main.en_words(), "in order to", bare.en_infinitive()))
    subject, verb = someone(rng), VERBS["intending"].pick(rng)
    tense = rng.choice(("pres", "perf", "pret" if subject.agree.person == 3 else "perf"))
    main = Clause(subject, verb, tense, negated=chance(rng, 0.08))
    bare = _bare(rng, subject)
    if tense != "pres" and chance(rng, 0.3):
        main.time, main.front = time(rng, "past"), "time"
    main.tail = said(",", bare.de_infinitive()), said("to", bare.en_infinitive())
    return _stated(main)


def _question(rng: Random) -> Pairing:
    """Yes/no questions and questions with a question word."""
    style = rng.random()
    if style < 0.15:
        who = Fixed(HIM, "wer", "who")
        made = clause(rng, inside("", who, fresh=True))
        return _paired(made.de_second(), made.en_words(), "?")
    formal = Pronoun(Agreement("Sie", "you")) if chance(rng, 0.2) else None
    made = clause(rng, inside("", formal, fresh=True))
    if style < 0.55:
        made.frequency = None
        return _paired(made.de_first(), made.en_question(), "?")
    de, en = ADVERBS["asking"].pick(rng)
    if de != "warum":
        made.time, made.frequency = None, None
        made.tense = "fut" if made.tense == "soon" else made.tense
        _unnegate(made)
    if de in ("wo", "mit wem") and (made.complement or made.predicate[0]):
        de, en = "warum", "why"
    return _paired(said(de, made.de_first()), said(en, made.en_question()), "?")


def _unnegate(made: Clause) -> None:
    """Undo a negation, kein included."""
    made.negated = False
    for phrase in (made.object, made.recipient):
        if phrase and phrase.determiner == "kein":
            phrase.determiner = "ein"


def _command(rng: Random) -> Pairing:
    """Imperatives to du, ihr and Sie."""
    who = rng.choice(("du", "ihr", "Sie"))
    made = _bare(rng, Pronoun(Agreement(who, "you")))
    made.manner = None
    return _paired(made.de_imperative(who), said("please", made.en_infinitive()), "!")


def _existence(rng: Random) -> Pairing:
    """es gibt."""
    kind = rng.choice(("house", "animal", "person", "plant", "event", "furniture"))
    thing = noun_phrase(rng, kind)
    while thing.determiner not in ("ein", "number"):
        thing = noun_phrase(rng, kind)
    where, past = place(rng), chance(rng, 0.35)
    while where.german == "bei":
        where = place(rng)
    be = ("were" if past else "are") if thing.plural else ("was" if past else "is")
    finite = "gab" if past else "gibt"
    start = (where.de(), finite, "es") if chance(rng, 0.5) else ("es", finite, where.de())
    return _paired(said(*start, thing.de("acc")), said("there", be, thing.en(0), where.en()))


def _price(rng: Random) -> Pairing:
    """What things cost, in digits."""
    kind = rng.choice(("document", "clothing", "tool", "vehicle", "furniture", "device", "food"))
    thing = noun_phrase(rng, kind)
    if thing.determiner == "jed":
        thing.determiner = "dies"
    price = amount(rng) * (100 if kind == "vehicle" else 1)
    made = Clause(thing, Verb("kosten", "cost"), "pret" if chance(rng, 0.3) else "pres")
    made.predicate = f"{price} Euro", f"{price} euros"
    return _stated(made)


_PATTERNS = {
    _simple: 15, _subordinate: 29, _coordinated: 16, _saying: 18, _intending: 8, _question: 6,
    _copular: 4, _passive: 4, _command: 2, _existence: 2, _price: 1,
}  # fmt: skip


def pair(rng: Random) -> Pairing:
    """One random sentence pair, German first."""
    return rng.choices(list(_PATTERNS), list(_PATTERNS.values()))[0](rng)

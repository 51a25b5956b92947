"""Random clauses: a verb with its frame, a tense, and adverbials that fit.

A ``Plan`` says what the surrounding sentence allows (which tense, which subject, whether relative
clauses may be nested); ``clause`` fills it. Sentences made of several clauses are in
``sentences.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from . import adverbs, lexicon, morphology_en, numbers, sampling
from .clauses import LIKING, Clause
from .lexicon import FRAMES, Pool, Verb
from .phrases import Adverbial, Fixed, Gap, Named, NounPhrase, Phrase, Pronoun
from .sampling import chance
from .text import words

BE = Verb("sein", "", False, True, "be")
COST = Verb("kosten", "", False, False, "cost")
_FRAMES = {
    "transitive": 36, "intransitive": 11, "dative": 7, "prepositional": 12, "ditransitive": 9,
    "motion": 10, "stative": 8, "put": 3, "copula": 9,
}  # fmt: skip
_MODALS = Pool(["können", "wollen", "müssen", "möchten", "sollen", "dürfen"])
_DEGREES = Pool(adverbs.DEGREES)
_FREQUENCIES, _MANNERS, _STANCES = (
    Pool(adverbs.FREQUENCIES),
    Pool(adverbs.MANNERS),
    Pool(adverbs.STANCES),
)
# Verbs that do not go with how-adverbs or with the passive.
_NO_PASSIVE = frozenset(
    words("haben bekommen kennen brauchen treffen verstehen lernen suchen bezahlen sehen")
)
_SLOW = frozenset(
    words("arbeiten kochen singen lesen schreiben gehen laufen essen sprechen tanzen schwimmen")
)
_FAR = frozenset(words("fahren fliegen reisen kommen gehen"))
# States are not told in the perfect nor at a time.
_STATES = frozenset(
    words("haben sein kennen wissen lieben brauchen liegen sitzen stehen glauben vertrauen")
)
_UNLIKED = frozenset(words("sterben verlieren vergessen leiden verlaufen verpassen bekommen"))


@dataclass
class Plan:
    """What the sentence around a clause asks for."""

    period: str = ""  # past, pres or fut; empty: any
    subject: Phrase | None = None
    fresh: bool = True  # may introduce er/sie without antecedent
    nested: bool = False  # inside another clause: shorter, no fronting
    relatives: float = 0.14
    simple_tense: bool = False  # no modals, no future


def kind_of(phrase: Phrase) -> str:
    """Semantic class of a subject, as verbs name it."""
    if isinstance(phrase, Named):
        phrase = phrase.inner
    if isinstance(phrase, NounPhrase):
        return "someone" if phrase.noun.kind in ("person", "kin") else phrase.noun.kind
    if isinstance(phrase, Gap):
        return phrase.kind
    return "someone"


def _tense(rng: Random, plan: Plan, subject: Phrase, verb: Verb) -> tuple[str, str]:
    """Tense and modal."""
    period = plan.period or rng.choices(("pres", "past", "fut"), (42, 46, 12))[0]
    human = kind_of(subject) == "someone"
    modal = ""
    if human and not plan.simple_tense and period != "fut" and chance(rng, 0.2):
        modal = _MODALS.pick(rng) if period == "pres" or chance(rng, 0.7) else ""
        if period == "past" and modal in ("möchten", "sollen"):
            modal = "wollen"
    if period == "pres":
        return "pres", modal
    if period == "fut":
        return ("fut" if chance(rng, 0.5) else "soon"), ""
    if modal or (verb.de in _STATES and not verb.prefix):
        return "pret", modal
    literary = subject.agree.person == 3
    return ("pret" if literary and chance(rng, 0.35) else "perf"), ""


def _verb_for(rng: Random, frame: str, subject: Phrase | None) -> Verb | None:
    for _ in range(12):
        verb = FRAMES[frame].pick(rng)
        if subject is None or kind_of(subject) in verb.subjects:
            return verb
    return None


def clause(rng: Random, plan: Plan) -> Clause:
    """A clause that fits the plan."""
    frame = rng.choices(list(_FRAMES), list(_FRAMES.values()))[0]
    verb = None if frame == "copula" else _verb_for(rng, frame, plan.subject)
    if verb is None:
        return copula(rng, plan)
    subject = plan.subject or sampling.subject_of(rng, verb.subjects, plan.fresh)
    tense, modal = _tense(rng, plan, subject, verb)
    made = Clause(subject, verb, tense, modal)
    _complete(rng, made, frame, plan)
    adorn(rng, made, plan)
    return made


def _complete(rng: Random, made: Clause, frame: str, plan: Plan) -> None:
    """Fill the verb's frame."""
    verb, owner = made.verb, made.subject.agree
    if frame in ("transitive", "ditransitive", "put"):
        made.object = sampling.object_of(rng, verb.objects, owner, plan.fresh)
    if frame == "ditransitive":
        if made.object.is_pronoun:
            made.object = sampling.name(rng)
        made.recipient = sampling.object_of(rng, ("person", "kin"), owner, plan.fresh)
    elif frame == "dative":
        made.recipient = sampling.object_of(rng, verb.objects, owner, plan.fresh)
    elif frame == "prepositional":
        preposition, case, english = verb.extra
        thing = sampling.object_of(rng, verb.objects, owner, plan.fresh)
        made.complement = Adverbial(preposition, english, thing, case)
    elif frame == "motion":
        made.complement = sampling.goal(rng, verb.de in _FAR)
    elif frame == "stative":
        made.complement = sampling.place(rng)
    elif frame == "put":
        if made.object.is_pronoun:
            made.object = sampling.noun_phrase(rng, "tool", owner)
        made.complement = sampling.surface(rng, "acc")


def adorn(rng: Random, made: Clause, plan: Plan) -> None:
    """Negation, adverbs, fronting, relative clauses."""
    period = {"pres": "pres", "fut": "fut", "soon": "fut"}.get(made.tense, "past")
    timeless = made.verb.de in _STATES and not made.verb.prefix and made.object
    if made.tense == "soon" or (not timeless and chance(rng, 0.28 if plan.nested else 0.45)):
        made.time = sampling.time(rng, period)
    _negate_or_qualify(rng, made)
    extra = made.verb.de == "kochen" or made.object or made.verb.de in _SLOW
    if (
        extra
        and not made.complement
        and not made.negated
        and not made.predicate
        and chance(rng, 0.06)
    ):
        made.manner = Adverbial(*_MANNERS.pick(rng))
    loose = made.object and not made.complement and not made.recipient
    if loose and not plan.nested and not made.time and made.tense != "soon" and chance(rng, 0.12):
        made.complement = sampling.place(rng)
    _relate(rng, made, plan)
    if not plan.nested:
        _front(rng, made)


def _negate_or_qualify(rng: Random, made: Clause) -> None:
    style = rng.random()
    free = made.tense in ("pres", "perf", "pret") and not made.time and not made.modal
    if style < 0.1:
        made.negated = True
        for phrase in (made.object, made.recipient, made.complement and made.complement.phrase):
            if isinstance(phrase, NounPhrase) and phrase.determiner in ("number", "jed", "ein"):
                outside = made.complement and phrase is made.complement.phrase
                phrase.determiner = "der" if outside or made.has_kein else "kein"
            elif isinstance(phrase, NounPhrase) and phrase.determiner == "played":
                phrase.determiner = "der"  # spielt die Geige nicht
    elif style < 0.19 and free:
        made.frequency = Adverbial(*_FREQUENCIES.pick(rng))
    elif style < 0.23 and free and made.tense == "pres" and _likeable(made):
        made.modal = LIKING


def _likeable(made: Clause) -> bool:
    """Whether somebody can like doing it."""
    if kind_of(made.subject) != "someone" or made.predicate or made.verb.reflexive:
        return False
    return made.verb.de not in _UNLIKED and made.verb.de not in _STATES


def _front(rng: Random, made: Clause) -> None:
    if made.time and chance(rng, 0.4):
        made.front = "time"
    elif chance(rng, 0.08) and not made.frequency:
        made.stance = Adverbial(*_STANCES.pick(rng))
        made.front = "stance"


def _can_relate(phrase: Phrase | None, determiners: tuple[str, ...]) -> bool:
    if not isinstance(phrase, NounPhrase) or phrase.genitive:
        return False
    return phrase.determiner in determiners


def _relate(rng: Random, made: Clause, plan: Plan) -> None:
    """Hang a relative clause on the subject or on the last object."""
    if not chance(rng, plan.relatives * 2):
        return
    if not plan.nested and chance(rng, 0.5) and _can_relate(made.subject, ("der", "ein")):
        made.subject.relative = relative(rng, made.subject)
        return
    target = made.object or made.recipient
    if made.complement or made.predicate:
        return
    if _can_relate(target, ("der", "ein", "number")):
        target.relative, target.extraposed = relative(rng, target), True
        made.manner = None
        if made.time and plan.nested:
            made.time, made.tense = None, "fut" if made.tense == "soon" else made.tense
        elif made.time:
            made.front = "time"


def _by_object(frame: str) -> dict[str, Pool]:
    kinds = list(lexicon.BASE)
    pools = {kind: [verb for verb in FRAMES[frame].items if kind in verb.objects] for kind in kinds}
    return {kind: Pool(found) for kind, found in pools.items() if found}


_VERBS_ON = {frame: _by_object(frame) for frame in ("transitive", "dative", "prepositional")}


def relative(rng: Random, head: NounPhrase) -> Clause:
    """A relative clause for a head: subject, object, after a preposition, or dessen/deren."""
    kind = head.noun.kind
    gap = Gap(head.agree, head.human, kind_of(head))
    style = rng.random()
    if (head.human and style < 0.4) or (kind in ("animal",) and style < 0.3):
        return clause(rng, Plan(rng.choice(("pres", "past")), gap, False, True, 0.0, True))
    if head.human and style < 0.52:
        owned = NounPhrase(
            lexicon.noun_of(rng, rng.choice(("vehicle", "animal", "house"))), determiner="whose"
        )
        owned.owner = head.agree
        return copula(rng, Plan(rng.choice(("pres", "past")), owned, False, True, 0.0, True))
    frame = (
        "dative"
        if head.human and style < 0.62
        else "prepositional"
        if style < 0.74
        else "transitive"
    )
    if kind not in _VERBS_ON[frame]:
        return copula(rng, Plan(rng.choice(("pres", "past")), gap, False, True, 0.0, True))
    verb = _VERBS_ON[frame][kind].pick(rng)
    subject = sampling.subject_of(rng, verb.subjects, fresh=False)
    tense, modal = _tense(
        rng, Plan(rng.choice(("pres", "past", "past")), simple_tense=True), subject, verb
    )
    made = Clause(subject, verb, tense, modal)
    if frame == "transitive":
        made.object = gap
    elif frame == "dative":
        made.recipient = gap
    else:
        made.complement = Adverbial(verb.extra[0], verb.extra[2], gap, verb.extra[1])
    return made


def copula(rng: Random, plan: Plan) -> Clause:
    """sein with an adjective, a comparison, an age or a profession."""
    subject = plan.subject
    if subject is None:
        kind = rng.choice(
            (
                "someone",
                "someone",
                "document",
                "house",
                "vehicle",
                "food",
                "animal",
                "clothing",
                "event",
            )
        )
        subject = sampling.subject_of(rng, (kind,), plan.fresh)
    tense, _ = _tense(rng, replace(plan, simple_tense=True), subject, BE)
    made = Clause(subject, BE, tense)
    made.predicate = _predicate(rng, made, plan)
    if tense == "soon" or (not plan.nested and chance(rng, 0.15)):
        made.time = sampling.calendar(rng, {"pres": "pres", "pret": "past"}.get(tense, "fut"))
    if chance(rng, 0.12) and len(made.predicate[0]) != 2:  # no "nicht ziemlich alt"
        made.negated = True
    if not plan.nested:
        _front(rng, made)
    return made


def _predicate(rng: Random, made: Clause, plan: Plan) -> tuple[list[str], list[str]]:
    subject, style = made.subject, rng.random()
    kind = kind_of(subject)
    kind = "person" if kind == "someone" else kind
    if kind == "person" and style < 0.1 and made.tense == "pres" and not subject.agree.plural:
        age = rng.randint(4, 95)
        return (
            [numbers.german(age), "Jahre", "alt"],
            [numbers.english(age), "years", "old"],
        )
    if isinstance(subject, (Fixed, Pronoun)) and subject.agree.en in ("he", "she") and style < 0.3:
        gender = "m" if subject.agree.en == "he" else "f"
        noun = lexicon.noun_of(rng, "person")
        if noun.gender == gender and noun.de not in ("Mann", "Frau", "Junge", "Gast"):
            return [noun.de], [morphology_en.indefinite(noun.en), noun.en]
    single = not plan.nested and not subject.agree.plural
    if single and style < (0.3 if kind == "person" else 0.5) and lexicon.COMPARABLE[kind].items:
        return comparison(rng, kind)
    adjective = lexicon.PREDICATES[kind].pick(rng)
    de, en = [adjective.de], [adjective.en]
    if chance(rng, 0.4):
        degree = _DEGREES.pick(rng)
        de, en = [degree[0], *de], [degree[1], *en]
    return de, en


def comparison(rng: Random, kind: str) -> tuple[list[str], list[str]]:
    """älter als das Haus / older than the house."""
    adjective, more = lexicon.COMPARABLE[kind].pick(rng)
    other: Phrase = sampling.noun_phrase(rng, kind, plain=True)
    if kind == "person" and chance(rng, 0.5):
        other = sampling.name(rng)
    elif isinstance(other, NounPhrase) and other.noun.kind != "kin" and not other.noun.mass:
        other.determiner = "der"
    de, en = other.de("nom"), other.en(0)
    return [more, "als", *de], [morphology_en.comparative(adjective.en), "than", *en]


def passive(rng: Random) -> Clause:
    """Das Haus wurde von einem Architekten gebaut."""
    verb = FRAMES["transitive"].pick(rng)
    while verb.de in _NO_PASSIVE or "someone" not in verb.subjects:
        verb = FRAMES["transitive"].pick(rng)
    subject = sampling.noun_phrase(rng, lexicon.kind_for(rng, verb.objects))
    modal = rng.choice(("müssen", "können", "sollen")) if chance(rng, 0.2) else ""
    made = Clause(
        subject, verb, "pres" if modal or chance(rng, 0.3) else "pret", modal, passive=True
    )
    if chance(rng, 0.4) and not modal:
        made.agent = (
            sampling.noun_phrase(rng, "person", plain=True)
            if chance(rng, 0.7)
            else sampling.name(rng)
        )
    if chance(rng, 0.45):
        made.time = sampling.time(rng, "past" if made.tense == "pret" else "pres")
    if chance(rng, 0.1):
        made.negated = True
        subject.determiner = (
            "der" if subject.determiner in ("ein", "number", "jed") else subject.determiner
        )
    _front(rng, made)
    return made

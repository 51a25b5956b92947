"""Random clauses: a verb with its frame, a tense, and adverbials that fit.

A ``Setting`` says what the surrounding sentence allows (which tense, which subject, whether
relative clauses may be nested); ``clause`` fills it. Sentences made of several clauses are in
``sentences.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

import english
import german
import lexicon
import sampling
from clauses import LIKING, Clause
from lexicon import VERBS, Pool, Verb
from phrases import Adverbial, Fixed, Gap, NounPhrase, Phrase, Pronoun
from sampling import chance
from wordlists import sections

BE = Verb("sein", "be", sein=True)
_FRAMES = {
    "transitive": 36, "intransitive": 11, "dative": 7, "prepositional": 12, "ditransitive": 9,
    "motion": 10, "stative": 8, "put": 3, "copula": 9,
}  # fmt: skip
_MODALS = Pool([infinitive for infinitive, *_ in sections("german")["modals"]])
_DESCRIBED = [
    "someone",
    "someone",
    "document",
    "house",
    "vehicle",
    "food",
    "animal",
    "clothing",
    "event",
]


@dataclass
class Setting:
    """What the sentence around a clause asks for."""

    period: str = ""  # past, pres or fut; empty: any
    subject: Phrase | None = None
    fresh: bool = True  # may introduce er/sie without antecedent
    nested: bool = False  # inside another clause: shorter, no fronting
    relatives: float = 0.14
    simple_tense: bool = False  # no modals, no future


def inside(period: str, subject: Phrase | None = None, relatives: float = 0.0, **more) -> Setting:
    """A clause inside another one, which must not introduce er/sie."""
    return Setting(
        period, subject, **{"fresh": False, "nested": True, "relatives": relatives, **more}
    )


def _is(verb: Verb, section: str) -> bool:
    """Whether the verb is in a list of verbs.tsv."""
    return verb.de in lexicon.VERB_CLASSES[section]


def _tense(rng: Random, setting: Setting, subject: Phrase, verb: Verb) -> tuple[str, str]:
    """Tense and modal."""
    period = setting.period or rng.choices(("pres", "past", "fut"), (42, 46, 12))[0]
    human = subject.kind == "someone"
    modal = ""
    if human and not setting.simple_tense and period != "fut" and chance(rng, 0.2):
        modal = _MODALS.pick(rng) if period == "pres" or chance(rng, 0.7) else ""
        if period == "past" and modal in ("möchten", "sollen"):
            modal = "wollen"
    if period == "pres":
        return "pres", modal
    if period == "fut":
        return ("fut" if chance(rng, 0.5) else "soon"), ""
    if modal or (_is(verb, "states") and not verb.prefix):
        return "pret", modal
    literary = subject.agree.person == 3
    return ("pret" if literary and chance(rng, 0.35) else "perf"), ""


def _verb_for(rng: Random, frame: str, subject: Phrase | None) -> Verb | None:
    for _ in range(12):
        verb = VERBS[frame].pick(rng)
        if subject is None or subject.kind in verb.subjects:
            return verb
    return None


def clause(rng: Random, setting: Setting) -> Clause:
    """A clause that fits the setting."""
    frame = rng.choices(list(_FRAMES), list(_FRAMES.values()))[0]
    verb = None if frame == "copula" else _verb_for(rng, frame, setting.subject)
    if verb is None:
        return copula(rng, setting)
    subject = setting.subject or sampling.subject_of(rng, verb.subjects, setting.fresh)
    made = Clause(subject, verb, *_tense(rng, setting, subject, verb))
    _complete(rng, made, frame, setting.fresh)
    _adorn(rng, made, setting)
    return made


def _complete(rng: Random, made: Clause, frame: str, fresh: bool) -> None:
    """Fill the verb's frame."""
    verb, owner = made.verb, made.subject.agree
    if frame in ("transitive", "ditransitive", "put"):
        made.object = sampling.object_of(rng, verb.objects, owner, fresh)
    if frame == "ditransitive":
        if made.object.is_pronoun:
            made.object = sampling.name(rng)
        made.recipient = sampling.object_of(rng, ("person", "kin"), owner, fresh)
    elif frame == "dative":
        made.recipient = sampling.object_of(rng, verb.objects, owner, fresh)
    elif frame == "prepositional":
        made.complement = _governed(verb, sampling.object_of(rng, verb.objects, owner, fresh))
    elif frame == "motion":
        made.complement = sampling.goal(rng, _is(verb, "far"))
    elif frame == "stative":
        made.complement = sampling.place(rng)
    elif frame == "put":
        if made.object.is_pronoun:
            made.object = sampling.noun_phrase(rng, "tool", owner)
        made.complement = sampling.surface(rng)


def _governed(verb: Verb, phrase: Phrase) -> Adverbial:
    """What follows the preposition that the verb asks for."""
    preposition, case, english_ = verb.extra
    return Adverbial(preposition, english_, phrase, case)


def _adorn(rng: Random, made: Clause, setting: Setting) -> None:
    """Negation, adverbs, fronting, relative clauses."""
    verb, nested, soon = made.verb, setting.nested, made.tense == "soon"
    timeless = _is(verb, "states") and not verb.prefix and made.object
    if soon or (not timeless and chance(rng, 0.28 if nested else 0.45)):
        made.time = sampling.time(rng, made.period)
    _negate_or_qualify(rng, made)
    how = verb.de == "kochen" or made.object or _is(verb, "slow")
    if how and not made.complement and not made.negated and chance(rng, 0.06):
        made.manner = sampling.adverb(rng, "manners")
    loose = made.object and not made.complement and not made.recipient
    if loose and not nested and not made.time and not soon and chance(rng, 0.12):
        made.complement = sampling.place(rng)
    if chance(rng, setting.relatives * 2):
        _relate(rng, made, nested)
    if not nested:
        _front(rng, made)


def _negate_or_qualify(rng: Random, made: Clause) -> None:
    style = rng.random()
    free = made.tense in ("pres", "perf", "pret") and not made.time and not made.modal
    if style < 0.1:
        made.negated = True
        outside = made.complement and made.complement.phrase
        for phrase in filter(None, (made.object, made.recipient, outside)):
            if phrase.determiner in ("number", "jed", "ein"):
                phrase.determiner = "der" if phrase is outside or made.has_kein else "kein"
            elif phrase.determiner == "played":
                phrase.determiner = "der"  # spielt die Geige nicht
    elif style < 0.19 and free:
        made.frequency = sampling.adverb(rng, "frequencies")
    elif style < 0.23 and free and made.tense == "pres":
        human, verb = made.subject.kind == "someone", made.verb
        if human and not verb.reflexive and not _is(verb, "unliked") and not _is(verb, "states"):
            made.modal = LIKING


def _front(rng: Random, made: Clause) -> None:
    if made.time and chance(rng, 0.4):
        made.front = "time"
    elif chance(rng, 0.08) and not made.frequency:
        made.stance, made.front = sampling.adverb(rng, "stances"), "stance"


def _can_relate(phrase: Phrase | None, *determiners: str) -> bool:
    return phrase is not None and phrase.determiner in determiners and not phrase.genitive


def _relate(rng: Random, made: Clause, nested: bool) -> None:
    """Hang a relative clause on the subject or on the last object."""
    if not nested and chance(rng, 0.5) and _can_relate(made.subject, "der", "ein"):
        made.subject.relative = relative(rng, made.subject)
        return
    target = made.object or made.recipient
    if not made.complement and _can_relate(target, "der", "ein", "number"):
        target.relative, target.extraposed = relative(rng, target), True
        made.manner = None
        if made.time and nested:
            made.time, made.tense = None, "fut" if made.tense == "soon" else made.tense
        elif made.time:
            made.front = "time"


def _by_object(frame: str) -> dict[str, Pool]:
    """A frame's verbs by the class of their object."""
    verbs = VERBS[frame].items
    kinds = {kind for verb in verbs for kind in verb.objects}
    return {kind: Pool([verb for verb in verbs if kind in verb.objects]) for kind in kinds}


_VERBS_ON = {frame: _by_object(frame) for frame in ("transitive", "dative", "prepositional")}


def relative(rng: Random, head: NounPhrase) -> Clause:
    """A relative clause for a head: subject, object, after a preposition, or dessen/deren."""
    kind, human = head.noun.kind, head.noun.human
    gap = Gap(head.agree, human, head.kind)
    style = rng.random()
    if (human and style < 0.4) or (kind == "animal" and style < 0.3):
        return clause(rng, inside(_told(rng), gap, simple_tense=True))
    if human and style < 0.52:
        noun = lexicon.noun_of(rng, rng.choice(("vehicle", "animal", "house")))
        owned = NounPhrase(noun, "whose", head.agree)
        return copula(rng, inside(_told(rng), owned))
    frame = "prepositional" if style < 0.74 else "transitive"
    if human and style < 0.62:
        frame = "dative"
    if kind not in _VERBS_ON[frame]:
        return copula(rng, inside(_told(rng), gap))
    verb = _VERBS_ON[frame][kind].pick(rng)
    subject = sampling.subject_of(rng, verb.subjects, fresh=False)
    setting = Setting(rng.choice(("pres", "past", "past")), simple_tense=True)
    made = Clause(subject, verb, *_tense(rng, setting, subject, verb))
    if frame == "transitive":
        made.object = gap
    elif frame == "dative":
        made.recipient = gap
    else:
        made.complement = _governed(verb, gap)
    return made


def _told(rng: Random) -> str:
    return rng.choice(("pres", "past"))


def copula(rng: Random, setting: Setting) -> Clause:
    """sein with an adjective, a comparison, an age or a profession."""
    subject = setting.subject or sampling.subject_of(rng, (rng.choice(_DESCRIBED),), setting.fresh)
    tense, _ = _tense(rng, replace(setting, simple_tense=True), subject, BE)
    made = Clause(subject, BE, tense)
    made.predicate, graded = _predicate(rng, made, setting.nested)
    if tense == "soon" or (not setting.nested and chance(rng, 0.15)):
        made.time = sampling.calendar(rng, made.period)
    if chance(rng, 0.12) and not graded:  # no "nicht ziemlich alt"
        made.negated = True
    if not setting.nested:
        _front(rng, made)
    return made


def _predicate(rng: Random, made: Clause, nested: bool) -> tuple[tuple[str, str], bool]:
    """What somebody or something is, and whether "very" or the like is part of it."""
    subject, style = made.subject, rng.random()
    agree, kind = subject.agree, "person" if subject.kind == "someone" else subject.kind
    if kind == "person" and style < 0.1 and made.tense == "pres" and not agree.plural:
        age = rng.randint(4, 95)
        return (f"{german.number(age)} Jahre alt", f"{english.number(age)} years old"), False
    if isinstance(subject, (Fixed, Pronoun)) and agree.en in ("he", "she") and style < 0.3:
        noun = lexicon.noun_of(rng, "person")
        fits = noun.gender == ("m" if agree.en == "he" else "f")
        if fits and noun.de not in ("Mann", "Frau", "Junge", "Gast"):
            return (noun.de, f"{english.indefinite(noun.en)} {noun.en}"), False
    single = not nested and not agree.plural
    if single and style < (0.3 if kind == "person" else 0.5) and lexicon.COMPARABLE[kind].items:
        return _comparison(rng, kind), False
    adjective = lexicon.PREDICATES[kind].pick(rng)
    if not chance(rng, 0.4):
        return (adjective.de, adjective.en), False
    de, en = lexicon.ADVERBS["degrees"].pick(rng)
    return (f"{de} {adjective.de}", f"{en} {adjective.en}"), True


def _comparison(rng: Random, kind: str) -> tuple[str, str]:
    """älter als das Haus, older than the house."""
    adjective, more = lexicon.COMPARABLE[kind].pick(rng)
    other: Phrase = sampling.noun_phrase(rng, kind, plain=True)
    if kind == "person" and chance(rng, 0.5):
        other = sampling.name(rng)
    elif other.noun.kind != "kin" and not other.noun.mass:
        other.determiner = "der"
    than = f"{english.comparative(adjective.en)} than {other.en(0)}"
    return f"{more} als {other.de('nom')}", than


def passive(rng: Random) -> Clause:
    """Das Haus wurde von einem Architekten gebaut."""
    verb = VERBS["transitive"].pick(rng)
    while _is(verb, "no passive") or "someone" not in verb.subjects:
        verb = VERBS["transitive"].pick(rng)
    subject = sampling.noun_phrase(rng, lexicon.kind_for(rng, verb.objects))
    modal = rng.choice(("müssen", "können", "sollen")) if chance(rng, 0.2) else ""
    tense = "pres" if modal or chance(rng, 0.3) else "pret"
    made = Clause(subject, verb, tense, modal, passive=True)
    if chance(rng, 0.4) and not modal:
        named = not chance(rng, 0.7)
        made.agent = (
            sampling.name(rng) if named else sampling.noun_phrase(rng, "person", plain=True)
        )
    if chance(rng, 0.45):
        made.time = sampling.time(rng, made.period)
    if chance(rng, 0.1):
        made.negated = True
        if subject.determiner in ("ein", "number", "jed"):
            subject.determiner = "der"
    _front(rng, made)
    return made

"""Clauses: one abstract clause, spelled out with German word order and with English word order.

German puts the finite verb second (``de_second``), first (``de_first``) or last (``de_final``),
and what belongs to it — separable prefix, participle, infinitive — at the end:

    main         Der Mann | macht | heute das Fenster | auf
    perfect      Der Mann | hat   | heute das Fenster | aufgemacht
    subordinate  weil | der Mann heute das Fenster | aufgemacht hat

English keeps subject – verb – object – place – time throughout.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from . import morphology_de as german
from . import morphology_en as english
from .lexicon import Verb
from .phrases import Adverbial, Gap, Phrase

# German modal: English present, English past; a plain word is an auxiliary, "x to" a full verb.
MODALS = {
    "können": ("can", "could"),
    "müssen": ("have to", "have to"),
    "wollen": ("want to", "want to"),
    "sollen": ("should", "be supposed to"),
    "dürfen": ("may", "be allowed to"),
    "möchten": ("would like to", "want to"),
}
# "gern" is an adverb in German and a verb in English: er liest gern, he likes to read.
LIKING = "gern"


@dataclass
class Clause:
    """Subject, verb and all that goes with it.  Tenses: pres, perf, pret, plup, fut, and soon.

    ``soon`` is German present with a future adverb, which English spells with "will".
    """

    subject: Phrase
    verb: Verb
    tense: str = "pres"
    modal: str = ""
    negated: bool = False
    passive: bool = False
    object: Phrase | None = None
    recipient: Phrase | None = None
    complement: Adverbial | None = None  # prepositional object, goal or place
    predicate: tuple[list[str], list[str]] | None = None
    time: Adverbial | None = None
    frequency: Adverbial | None = None
    manner: Adverbial | None = None
    agent: Phrase | None = None
    front: str = "subject"  # or time, place, stance
    stance: Adverbial | None = None
    tail_de: list[str] = field(default_factory=list)  # a clause depending on this one
    tail_en: list[str] = field(default_factory=list)

    # German ---------------------------------------------------------------------------------------

    def verbs_de(self) -> tuple[str, str, list[str]]:
        """Finite verb, separable prefix left behind, and the words closing the clause."""
        agree, verb = self.subject.agree, self.verb
        person = (agree.person, agree.plural)
        infinitive = verb.prefix + verb.de
        if verb.prefix in ("Angst", "spazieren"):
            infinitive = f"{verb.prefix} {verb.de}"
        participle = german.participle(
            verb.de, verb.prefix + " " * (verb.prefix in ("Angst", "spazieren"))
        )
        past = self.tense == "pret"
        finite = german.preterite if past else german.present
        if self.passive:
            closing = [participle, "werden"] if self.modal else [participle]
            return finite(self.modal or "werden", *person), "", closing
        if self.modal and self.modal != LIKING:
            return finite(self.modal, *person), "", [infinitive]
        if self.tense in ("perf", "plup"):
            auxiliary = "sein" if verb.sein else "haben"
            finite = german.present if self.tense == "perf" else german.preterite
            return finite(auxiliary, *person), "", [participle]
        if self.tense == "fut":
            return german.present("werden", *person), "", [infinitive]
        return finite(verb.de, *person), verb.prefix, []

    def _field_de(self, with_subject: bool) -> list[str]:
        """The middle field: everything between the finite verb and the closing verbs."""
        words = self.subject.de("nom") if with_subject else []
        object_, recipient = self.object, self.recipient
        if object_ and object_.is_pronoun:
            words += object_.de("acc")
        if self.verb.reflexive:
            words.append(german.PRONOUNS[self.subject.agree.de][3])
        if recipient and recipient.is_pronoun:
            words += recipient.de("dat")
        if self.stance and self.front != "stance":
            words += self.stance.de()
        if self.time and self.front != "time":
            words += self.time.de()
        if self.frequency and self.front != "frequency":
            words += self.frequency.de()
        if self.modal == LIKING:
            words.append(LIKING)
        if self.agent:
            words += Adverbial("von", "by", self.agent).de()
        if recipient and not recipient.is_pronoun and not isinstance(recipient, Gap):
            words += recipient.de("dat")
        manner = self.manner.de() if self.manner else []
        if object_ and not object_.is_pronoun and not isinstance(object_, Gap):
            # new things come late: schickt leise ein Paket, but schickt das Paket leise
            new = getattr(object_, "determiner", "") in ("ein", "number", "played")
            phrase = object_.de("acc")
            words += [*manner, *phrase] if new else [*phrase, *manner]
            manner = []
        if self.negated and not self.has_kein:
            words.append("nicht")
        words += manner
        if self.complement and self.front != "place" and not self._gapped(self.complement):
            words += self.complement.de()
        return words + (self.predicate[0] if self.predicate else [])

    @staticmethod
    def _gapped(adverbial: Adverbial | None) -> bool:
        return adverbial is not None and isinstance(adverbial.phrase, Gap)

    @property
    def has_kein(self) -> bool:
        return any(
            getattr(phrase, "determiner", "") == "kein" for phrase in (self.object, self.recipient)
        )

    def _after_de(self) -> list[str]:
        """What follows the closing verbs: extraposed relative clauses and dependent clauses."""
        phrases = (self.recipient, self.object, self.complement)
        return [word for phrase in phrases if phrase for word in phrase.heavy_de] + self.tail_de

    def de_first(self) -> list[str]:
        """Verb first: questions."""
        finite, prefix, closing = self.verbs_de()
        return [
            finite,
            *self._field_de(True),
            *([prefix] if prefix else []),
            *closing,
            *self._after_de(),
        ]

    def de_second(self) -> list[str]:
        """Verb second: main clauses, with ``front`` in the first place."""
        if self.front == "subject":
            finite, prefix, closing = self.verbs_de()
            words = [*self.subject.de("nom"), finite, *self._field_de(False)]
            return [*words, *([prefix] if prefix else []), *closing, *self._after_de()]
        first = self.complement if self.front == "place" else getattr(self, self.front)
        return [*first.de(), *self.de_first()]

    def de_rest(self) -> list[str]:
        """A second main clause that shares the subject: only the verb and what follows."""
        finite, prefix, closing = self.verbs_de()
        return [
            finite,
            *self._field_de(False),
            *([prefix] if prefix else []),
            *closing,
            *self._after_de(),
        ]

    def de_final(self) -> list[str]:
        """Verb last: subordinate and relative clauses; a relative pronoun comes first."""
        finite, prefix, closing = self.verbs_de()
        if prefix in ("Angst", "spazieren"):
            finite = f"{prefix} {finite}"
        elif prefix:
            finite = prefix + finite
        lead: list[str] = []
        if isinstance(self.object, Gap):
            lead = self.object.de("acc")
        elif isinstance(self.recipient, Gap):
            lead = self.recipient.de("dat")
        elif self._gapped(self.complement):
            lead = self.complement.de()
        return [*lead, *self._field_de(True), *closing, finite, *self._after_de()]

    def de_infinitive(self) -> list[str]:
        """zu-infinitive without subject: das Fenster aufzumachen."""
        verb = self.verb
        if verb.prefix in ("Angst", "spazieren"):
            closing = [verb.prefix, "zu", verb.de]
        else:
            closing = [f"{verb.prefix}zu{verb.de}"] if verb.prefix else ["zu", verb.de]
        return [*self._field_de(False), *closing, *self._after_de()]

    def de_imperative(self, who: str) -> list[str]:
        """Command to du, ihr or Sie."""
        formal = who == "Sie"
        verb = self.verb.de if formal else german.imperative(self.verb.de, who == "ihr")
        words = [verb, "Sie"] if formal else [verb]
        rest = self._field_de(False)
        light = [phrase for phrase in (self.object, self.recipient) if phrase and phrase.is_pronoun]
        at = len(light) + self.verb.reflexive  # gib mir bitte, setz dich bitte
        words += [*rest[:at], "bitte", *rest[at:]]
        return [*words, *([self.verb.prefix] if self.verb.prefix else []), *self._after_de()]

    # English --------------------------------------------------------------------------------------

    def _english_verb(self) -> tuple[str, str]:
        """The main verb's first word and the words after it, without particle."""
        word, _, rest = self.verb.en.partition("~")[0].partition(" ")
        return word, rest

    def verbs_en(self, support: bool) -> tuple[str, list[str]]:
        """Auxiliary (or "") and the other verb words; ``support`` asks for one in any case."""
        who = self.subject.agree.en
        past = self.tense in ("perf", "pret")
        finite = english.past if past else english.present
        base, rest = self._english_verb()
        tail = rest.split()
        if self.passive:
            base, tail = "be", [english.participle(base), *tail]
        if self.modal:
            english_modal = ("like to",) * 2 if self.modal == LIKING else MODALS[self.modal]
            modal = english_modal[past].split()
            if len(modal) == 1:
                return ("must" if self.modal == "dürfen" and self.negated else modal[0]), [
                    base,
                    *tail,
                ]
            if modal[0] == "would":
                return "would", [*modal[1:], base, *tail]
            base, tail = modal[0], [*modal[1:], base, *tail]
        elif self.tense == "plup":
            return "had", [english.participle(base), *tail]
        elif self.tense in ("fut", "soon"):
            return "will", [base, *tail]
        if base == "be":
            return finite("be", who), tail
        if support:
            return finite("do", who), [base, *tail]
        return "", [finite(base, who), *tail]

    def _objects_en(self) -> list[str]:
        """Objects, particle, complement and adverbs, in English order."""
        particle = self.verb.en.partition("~")[2]
        object_ = None if isinstance(self.object, Gap) else self.object
        recipient = None if isinstance(self.recipient, Gap) else self.recipient
        words: list[str] = []
        after = self.verb.extra == ("to",) or (object_ is not None and object_.is_pronoun)
        if particle and not (object_ and object_.is_pronoun):
            words.append(particle)
        if recipient and not after:
            words += recipient.en(1)
        if object_:
            words += object_.en(1)
        if particle and object_ and object_.is_pronoun:
            words.append(particle)
        if self.recipient and after:
            words += [
                "for" if self.verb.en == "buy" else "to",
                *(recipient.en(1) if recipient else []),
            ]
        if self.agent:
            words += ["by", *self.agent.en(1)]
        if self.complement and self.front != "place":
            words += self.complement.en()
        words += self.predicate[1] if self.predicate else []
        words += self.manner.en() if self.manner else []
        return words + (self.time.en() if self.time and self.front != "time" else [])

    def _core_en(self, with_subject: bool = True) -> list[str]:
        auxiliary, rest = self.verbs_en(self.negated)
        words = self.subject.en(0) if with_subject else []
        words += [auxiliary] if auxiliary else []
        words += ["not"] if self.negated else []
        words += self.frequency.en() if self.frequency else []
        return [*words, *rest, *self._objects_en(), *self.tail_en]

    def en_words(self) -> list[str]:
        """Statement or relative clause."""
        lead: list[str] = []
        for phrase in (self.object, self.recipient, self.complement and self.complement.phrase):
            if isinstance(phrase, Gap):
                lead = phrase.en(1)
        if self.front == "time":
            lead = self.time.en()
        elif self.front == "place":
            lead = self.complement.en()
        elif self.stance:
            lead = self.stance.en()
        return lead + self._core_en()

    def en_rest(self) -> list[str]:
        """The same without its subject."""
        return self._core_en(with_subject=False)

    def en_question(self) -> list[str]:
        """Auxiliary before the subject."""
        auxiliary, rest = self.verbs_en(True)
        words = [auxiliary, *self.subject.en(0), *(["not"] if self.negated else [])]
        words += self.frequency.en() if self.frequency else []
        return [*words, *rest, *self._objects_en(), *self.tail_en]

    def en_infinitive(self) -> list[str]:
        """Base form without subject: open the window."""
        base, rest = self._english_verb()
        return [base, *rest.split(), *self._objects_en(), *self.tail_en]


def sentence(words: list[str], end: str = ".") -> str:
    """Join words, put commas where they belong, capitalise, and close the sentence."""
    text = " ".join(words).replace(" ,", ",")
    while ",," in text:
        text = text.replace(",,", ",")
    text = text.rstrip(", ")
    return text[0].upper() + text[1:] + end

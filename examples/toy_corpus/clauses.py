"""Clauses: one abstract clause, spelled out with German word order and with English word order.

German puts the finite verb second (``de_second``), first (``de_first``) or last (``de_final``),
and what belongs to it (separable prefix, participle, infinitive) at the end:

    main         Der Mann | macht | heute das Fenster | auf
    perfect      Der Mann | hat   | heute das Fenster | aufgemacht
    subordinate  weil | der Mann heute das Fenster | aufgemacht hat

English keeps subject – verb – object – place – time throughout.
"""

from __future__ import annotations

from dataclasses import dataclass

import english
import german
from lexicon import Verb
from phrases import Adverbial, Gap, Phrase, said
from wordlists import sections

# English present and past; a plain word is an auxiliary, "x to" a full verb
MODALS = {infinitive: modal for infinitive, _, _, *modal in sections("german")["modals"]}
# "gern" is an adverb in German and a verb in English: er liest gern, he likes to read
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
    predicate: tuple[str, str] = ("", "")
    time: Adverbial | None = None
    frequency: Adverbial | None = None
    manner: Adverbial | None = None
    agent: Phrase | None = None
    front: str = "subject"  # or time, stance
    stance: Adverbial | None = None
    tail: tuple[str, str] = ("", "")  # a clause depending on this one

    @property
    def period(self) -> str:
        """past, pres or fut."""
        return {"pres": "pres", "fut": "fut", "soon": "fut"}.get(self.tense, "past")

    @property
    def has_kein(self) -> bool:
        return any(
            phrase and phrase.determiner == "kein" for phrase in (self.object, self.recipient)
        )

    # German ---------------------------------------------------------------------------------------

    def _verbs_de(self) -> tuple[str, str, str]:
        """Finite verb, separable prefix left behind, and the words closing the clause."""
        person, verb = (self.subject.agree.person, self.subject.agree.plural), self.verb
        infinitive = verb.lead + verb.de
        participle = german.participle(verb.de, verb.lead)
        finite = german.preterite if self.tense in ("pret", "plup") else german.present
        if self.passive:
            closing = said(participle, self.modal and "werden")
            return finite(self.modal or "werden", *person), "", closing
        if self.modal and self.modal != LIKING:
            return finite(self.modal, *person), "", infinitive
        if self.tense in ("perf", "plup"):
            return finite("sein" if verb.sein else "haben", *person), "", participle
        if self.tense == "fut":
            return german.present("werden", *person), "", infinitive
        return finite(verb.de, *person), verb.lead, ""

    def _field_de(self, with_subject: bool = False) -> str:
        """The middle field: everything between the finite verb and the closing verbs."""
        thing = None if isinstance(self.object, Gap) else self.object
        person = None if isinstance(self.recipient, Gap) else self.recipient
        light, dative = bool(thing and thing.is_pronoun), bool(person and person.is_pronoun)
        nicht = self.negated and not self.has_kein and "nicht"
        order = [nicht, self.manner and self.manner.de()]
        if thing and not light:
            order.reverse()
            # new things come late: schickt leise ein Paket, but schickt das Paket leise
            late = thing.determiner in ("ein", "number", "played")
            order.insert(1 if late else 0, thing.de("acc"))
        return said(
            with_subject and self.subject.de("nom"),
            light and thing.de("acc"),
            self.verb.reflexive and german.PRONOUNS[self.subject.agree.de][3],
            dative and person.de("dat"),
            self.time and self.front != "time" and self.time.de(),
            self.frequency and self.frequency.de(),
            self.modal == LIKING and LIKING,
            self.agent and Adverbial("von", "by", self.agent).de(),
            person and not dative and person.de("dat"),
            *order,
            self.complement and not self.complement.gapped and self.complement.de(),
            self.predicate[0],
        )

    def _after_de(self) -> str:
        """What follows the closing verbs: extraposed relative clauses and dependent clauses."""
        phrases = (self.recipient, self.object, self.complement)
        return said(*(phrase and phrase.heavy_de for phrase in phrases), self.tail[0])

    def de_first(self, with_subject: bool = True) -> str:
        """Verb first: questions."""
        finite, prefix, closing = self._verbs_de()
        middle = self._field_de(with_subject)
        return said(finite, middle, prefix.strip(), closing, self._after_de())

    def de_rest(self) -> str:
        """A second main clause that shares the subject: only the verb and what follows."""
        return self.de_first(with_subject=False)

    def de_second(self) -> str:
        """Verb second: main clauses, with ``front`` in the first place."""
        if self.front == "subject":
            return said(self.subject.de("nom"), self.de_rest())
        return said(getattr(self, self.front).de(), self.de_first())

    def de_final(self) -> str:
        """Verb last: subordinate and relative clauses; a relative pronoun comes first."""
        finite, prefix, closing = self._verbs_de()
        return said(
            isinstance(self.object, Gap) and self.object.de("acc"),
            isinstance(self.recipient, Gap) and self.recipient.de("dat"),
            self.complement and self.complement.gapped and self.complement.de(),
            self._field_de(True),
            closing,
            prefix + finite,
            self._after_de(),
        )

    def de_infinitive(self) -> str:
        """zu-infinitive without subject: das Fenster aufzumachen."""
        verb = self.verb
        zu = "zu" if verb.lead.isalpha() else "zu "
        return said(self._field_de(), f"{verb.lead}{zu}{verb.de}", self._after_de())

    def de_imperative(self, who: str) -> str:
        """Command to du, ihr or Sie."""
        verb = (
            self.verb.de + " Sie" if who == "Sie" else german.imperative(self.verb.de, who == "ihr")
        )
        rest = self._field_de().split()
        pronouns = [p for p in (self.object, self.recipient) if p and p.is_pronoun]
        at = len(pronouns) + self.verb.reflexive  # gib mir bitte, setz dich bitte
        return said(verb, *rest[:at], "bitte", *rest[at:], self.verb.prefix, self._after_de())

    # English --------------------------------------------------------------------------------------

    def _verbs_en(self, support: bool) -> tuple[str, str]:
        """Auxiliary (or "") and the other verb words; ``support`` asks for one in any case."""
        who = self.subject.agree.en
        past = self.tense in ("perf", "pret")
        finite = english.past if past else english.present
        base, _, rest = self.verb.en.partition("~")[0].partition(" ")
        if self.passive:
            base, rest = "be", said(english.participle(base), rest)
        if self.modal:
            modal = "like to" if self.modal == LIKING else MODALS[self.modal][past]
            modal, _, to = modal.partition(" ")
            if not to and self.modal == "dürfen" and self.negated:
                modal = "must"
            rest = said(to, base, rest)
            if not to or modal == "would":
                return modal, rest
            base = modal
        elif self.tense == "plup":
            return "had", said(english.participle(base), rest)
        elif self.tense in ("fut", "soon"):
            return "will", said(base, rest)
        if base == "be":
            return finite("be", who), rest
        if support:
            return finite("do", who), said(base, rest)
        return "", said(finite(base, who), rest)

    def _objects_en(self) -> str:
        """Objects, particle, complement and adverbs, in English order."""
        particle = self.verb.en.partition("~")[2]
        thing = None if isinstance(self.object, Gap) else self.object
        person = None if isinstance(self.recipient, Gap) else self.recipient
        light = bool(thing and thing.is_pronoun)
        late = light or "to" in self.verb.extra  # explain the rule to Anna, give it to Anna
        return said(
            not light and particle,
            person and not late and person.en(1),
            thing and thing.en(1),
            light and particle,
            self.recipient and late and ("for" if self.verb.en == "buy" else "to"),
            person and late and person.en(1),
            self.agent and "by " + self.agent.en(1),
            self.complement and self.complement.en(),
            self.predicate[1],
            self.manner and self.manner.en(),
            self.time and self.front != "time" and self.time.en(),
        )

    def _core_en(self, subject: str) -> str:
        auxiliary, rest = self._verbs_en(self.negated)
        often = self.frequency and self.frequency.en()
        nicht = self.negated and "not"
        return said(subject, auxiliary, nicht, often, rest, self._objects_en(), self.tail[1])

    def en_words(self) -> str:
        """Statement or relative clause."""
        phrases = (self.object, self.recipient, self.complement and self.complement.phrase)
        lead = said(*(phrase.en(1) for phrase in phrases if isinstance(phrase, Gap)))
        if self.front != "subject":
            lead = getattr(self, self.front).en()
        return said(lead, self._core_en(self.subject.en(0)))

    def en_rest(self) -> str:
        """The same without its subject."""
        return self._core_en("")

    def en_question(self) -> str:
        """Auxiliary before the subject."""
        auxiliary, rest = self._verbs_en(True)
        often = self.frequency and self.frequency.en()
        start = said(auxiliary, self.subject.en(0), self.negated and "not", often)
        return said(start, rest, self._objects_en(), self.tail[1])

    def en_infinitive(self) -> str:
        """Base form without subject: open the window."""
        base = self.verb.en.partition("~")[0]
        return said(base, self._objects_en(), self.tail[1])


def sentence(words: str, end: str = ".") -> str:
    """Put commas where they belong, capitalise, and close the sentence."""
    text = words.replace(" ,", ",")
    while ",," in text:
        text = text.replace(",,", ",")
    text = text.rstrip(", ")
    return text[0].upper() + text[1:] + end

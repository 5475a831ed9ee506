"""A clause before its words are put in order, and what depends on where it stands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lexicon import MODALS, Modal, Verb
from noun_phrases import NounPhrase
from phrases import Phrase, Word


@dataclass
class Clause:
    """A verb with its subject, objects and adverbials.

    Attributes:
        tense: present, perfect or, for "war", preterite
        present: how English renders the present: (probability, progressive, simple or future)
        complement: what the verb asks for besides objects: goal, place, "auf" or predicate
        nicht: the negation, unless it is the "kein" of the object
        time_first: the time can begin a sentence
        benefit: for whom
    """

    verb: Verb
    subject: NounPhrase
    tense: str = "present"
    modal: Modal | None = None
    present: Sequence[tuple[float, str]] = ((1.0, "simple"),)
    dative: NounPhrase | None = None
    accusative: NounPhrase | None = None
    complement: Phrase | None = None
    nicht: Word | None = None
    time: Phrase | None = None
    time_first: bool = False
    frequency: Phrase | None = None
    manner: Phrase | None = None
    gern: Word | None = None
    company: Phrase | None = None
    place: Phrase | None = None
    benefit: Phrase | None = None

    @property
    def negation(self) -> Word | None:
        """The word that negates the clause."""
        if self.nicht is None and self.accusative is not None:
            return self.accusative.negation
        return self.nicht

    @property
    def english_subject(self) -> NounPhrase:
        """English likes what pleases in German."""
        return self.dative if self.verb.frame == "likes" and self.dative else self.subject

    @property
    def objects(self) -> list[NounPhrase]:
        return [phrase for phrase in (self.dative, self.accusative) if phrase is not None]

    @property
    def has_adverbial(self) -> bool:
        """Something besides the time follows the object in English."""
        added = (self.complement, self.manner, self.company, self.place, self.benefit)
        return any(phrase is not None for phrase in added)

    @property
    def has_bracket(self) -> bool:
        """A part of the verb stands at the end of a main clause."""
        helped = self.modal is not None or self.tense == "perfect"
        return helped or (bool(self.verb.particle) and self.tense == "present")


@dataclass(frozen=True)
class Setting:
    """Where a clause stands, and how likely that makes its parts.

    Attributes:
        name: main, question, subordinate or relative
        tenses: (probability, present, perfect or modal)
        negation, time, adverbial: probability of each
        habitual: the present tells what usually happens
        definite: the subject is not "ein"
        pronouns: the subject can be a pronoun
        referable: a pronoun can refer to the subject later
        future: there can be a time that makes the English verb a future
        adjectives: probability of an adjective with the subject
        modals: to choose from
    """

    name: str = "main"
    tenses: Sequence[tuple[float, str]] = ((0.45, "present"), (0.35, "perfect"), (0.2, "modal"))
    negation: float = 0.14
    time: float = 0.35
    adverbial: float = 0.35
    habitual: bool = False
    definite: bool = False
    pronouns: bool = True
    referable: bool = False
    future: bool = True
    adjectives: float = 0.25
    modals: Sequence[Modal] = MODALS

    @property
    def is_main(self) -> bool:
        return self.name in ("main", "question")


ONLY_PRESENT = ((1.0, "present"),)
ONLY_PERFECT = ((1.0, "perfect"),)
ONLY_MODAL = ((1.0, "modal"),)

MAIN = Setting()
QUESTION = Setting(name="question", negation=0.0, time=0.3, definite=True)
SUBORDINATE = Setting(name="subordinate", time=0.2, adverbial=0.2)
RELATIVE = Setting(name="relative", negation=0.08, time=0.15, adverbial=0.2)
CONDITION = Setting(
    name="subordinate",
    tenses=((0.8, "present"), (0.2, "modal")),
    time=0.0,
    adverbial=0.2,
    habitual=True,
)
CONSEQUENCE = replace(CONDITION, name="main")

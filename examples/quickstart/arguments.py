"""The subject and the objects that a verb takes."""

from __future__ import annotations

from collections.abc import Sequence

from clause import MAIN, Clause, Setting
from derivation import Derivation
from lexicon import NOUN, NOUNS, Noun, Verb, matches, nouns_of
from noun_phrases import (
    FIRST_PERSON,
    PERSONAL,
    NounPhrase,
    at_place,
    couple,
    human_phrase,
    in_city,
    noun_phrase,
    person_by_name,
    pronoun,
    with_preposition,
)
from phrases import Phrase, Token, Word

# Where an animal goes.
NEAR = ("Garten", "Park")


def subject_kinds(subject: NounPhrase) -> str:
    """The kinds of a subject; a name, a pronoun or a couple is an adult."""
    return subject.noun.kinds if subject.noun is not None else "person adult"


def subject_of(d: Derivation, verb: Verb, tense: str, setting: Setting = MAIN) -> NounPhrase:
    """A subject for the verb."""
    if verb.frame == "likes":
        return noun_phrase(d, nouns_of(verb.subjects), "nom", "dddm")
    if verb.subjects == "weather":
        word = Word("es")
        return NounPhrase([word], Token("it", [word]), "3sg", "pronoun")
    if matches("person adult", verb.subjects):
        kind = d.weighted(((0.3, "pronoun"), (0.15, "name"), (0.07, "couple"), (0.48, "noun")))
        if kind == "pronoun" and setting.pronouns:
            return subject_pronoun(d, tense, setting)
        if kind == "name":
            return person_by_name(d)
        if kind == "couple":
            d.construction("coordinated subject")
            return couple(d, nouns_of("person" if "person" in verb.subjects else "adult"))
    nouns = [
        noun for noun in nouns_of(verb.subjects) if not (setting.referable and noun.gender == "n")
    ]
    codes = "ddm" if setting.definite else "ddddddemmn"
    return noun_phrase(d, nouns, "nom", codes, adjectives=setting.adjectives)


def subject_pronoun(d: Derivation, tense: str, setting: Setting) -> NounPhrase:
    """A personal pronoun; nobody asks what they themselves do, but they ask what they should do.

    "ich" is kept to auxiliaries and modals, which keeps the vocabulary small.
    """
    choices = [*PERSONAL["nom"]]
    if tense == "present":
        choices.remove("ich")
    if setting.name == "question" and tense != "modal":
        choices = [word for word in choices if word not in ("ich", "wir")]
    return pronoun(d.pick(choices), "nom")


def object_pronoun(d: Derivation, subject: NounPhrase, case: str) -> NounPhrase:
    """An object pronoun; in the person of the subject it would have to be reflexive."""
    choices = [
        german
        for german, (english, _) in PERSONAL[case].items()
        if not (subject.is_first_person and english in FIRST_PERSON)
    ]
    return pronoun(d.pick(choices), case)


def names_are_clear(subject: NounPhrase) -> bool:
    """Whether an object can be a name: "dass mein Bruder Paul hilft" could be one person."""
    return subject.kind in ("pronoun", "relative", "empty")


def add_objects(
    d: Derivation, clause: Clause, setting: Setting, negated: bool, gern: bool, goal: Noun | None
) -> None:
    """Add what the verb asks for and the clause does not have yet."""
    frame = clause.verb.frame
    if frame in ("dat", "dat+acc"):
        d.construction("dative object" if frame == "dat" else "two objects")
        clause.dative = clause.dative or dative_object(d, clause.subject, setting)
    if frame in ("acc", "dat+acc"):
        clause.accusative = clause.accusative or accusative_object(
            d, clause, setting, negated, gern
        )
    if frame == "likes":
        d.construction("gefallen")
        clause.dative = liker(d)
    if frame == "auf":
        d.construction("verb with preposition")
        nouns = nouns_of(clause.verb.objects)
        target = noun_phrase(d, nouns, "acc", "dm" if negated else "dddem")
        clause.complement = with_preposition(("auf", "for"), target)
    if frame == "goal":
        d.construction("goal")
        is_animal = "animal" in subject_kinds(clause.subject)
        goals = [n for n in NOUNS if n.goal and (not is_animal or n.name in NEAR)]
        clause.complement = at_place(d, goal or d.pick_fresh(goals), where_to=True)
    if frame == "location":
        clause.complement = home(d)


def home(d: Derivation) -> Phrase:
    """Where someone lives."""
    kind = d.weighted(((0.5, "name"), (0.2, "city"), (0.3, "house")))
    if kind == "name":
        return in_city(d)
    if kind == "city":
        return at_place(d, NOUN["Stadt"])
    return with_preposition(("in", "in"), noun_phrase(d, [NOUN["Haus"]], "dat", "e"))


def dative_object(d: Derivation, subject: NounPhrase, setting: Setting) -> NounPhrase:
    """A person in the dative; no feminine noun where it could be a genitive of the subject.

    That is "dass der Arzt der Frau hilft". A main clause has the verb between them.
    """
    if d.chance(0.25):
        return object_pronoun(d, subject, "dat")
    apart = subject.is_one_word or setting.name == "main"
    return human_phrase(d, "dat", names=names_are_clear(subject), feminine=apart)


def liker(d: Derivation) -> NounPhrase:
    """Whom something pleases: a dative that is the subject in English."""
    if not d.chance(0.3):
        return human_phrase(d, "dat")
    german, english, agreement = d.pick(
        (("mir", "I", "1sg"), ("ihm", "he", "3sg"), ("ihr", "she", "3sg"), ("uns", "we", "pl"))
    )
    word = Word(german)
    return NounPhrase([word], Token(english, [word]), agreement, "pronoun")


def accusative_object(
    d: Derivation, clause: Clause, setting: Setting, negated: bool, gern: bool
) -> NounPhrase:
    """The direct object: definite or with "kein" in a negated clause, general after "gern"."""
    verb, nouns = clause.verb, nouns_of(clause.verb.objects)
    general = indefinable(nouns)
    if gern:
        return noun_phrase(d, general, "acc", "ps")
    if negated and general and verb.aspect != "fact" and d.chance(0.5):
        return noun_phrase(d, general, "acc", "k", plurals=0.5)
    if matches("person", verb.objects):
        if verb.aspect != "simple" and d.chance(0.25):
            return object_pronoun(d, clause.subject, "acc")
        if names_are_clear(clause.subject) and d.chance(0.25):
            return person_by_name(d)
    plurals = 0.0 if "room" in verb.objects else 0.25
    if negated or verb.aspect == "fact":
        return noun_phrase(d, nouns, "acc", "dm", plurals)
    if setting.habitual and general:
        return noun_phrase(d, general, "acc", "epps")
    return noun_phrase(d, nouns, "acc", "dddeeepmnsss", plurals)


def indefinable(nouns: Sequence[Noun]) -> list[Noun]:
    """The nouns that can be used without an article."""
    return [noun for noun in nouns if "p" in noun.determiners or noun.is_substance]

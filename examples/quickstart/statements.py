"""Main clauses: what comes first, relative clauses, and "es gibt"."""

from __future__ import annotations

from clause import MAIN, Clause
from clauses import make_clause, make_copula, verbs_for
from derivation import Derivation
from lexicon import CONTENTS, NOUN, VERB, matches, nouns_of
from noun_phrases import at_place, noun_phrase
from phrases import Alt, Node, Phrase, Seq, Token, Word
from relatives import add_relative
from word_order import arrange


def statement(d: Derivation) -> Phrase:
    """A main clause."""
    kind = d.weighted(((0.12, "copula"), (0.03, "weather"), (0.85, "verb")))
    if kind == "copula":
        clause = make_copula(d, MAIN)
    else:
        verbs = [VERB["regnen"]] if kind == "weather" else verbs_for("", MAIN)
        clause = make_clause(d, MAIN, verbs)
    return main_clause(d, clause)


def main_clause(d: Derivation, clause: Clause, last: bool = True) -> Phrase:
    """Put a main clause in order, perhaps with relative clauses; `last` if nothing follows it."""
    tense = clause.tense
    if d.option(0.16):
        add_relative(d, clause.subject, tense)
    # The clause of an object is at the end on both sides, and cannot belong to the subject.
    ends = clause.accusative is not None and not clause.has_adverbial and clause.negation is None
    clear = clause.subject.is_pronoun or not clause.has_bracket
    if last and ends and clear and d.option(0.2):
        add_relative(d, clause.accusative, tense)
    front = choose_front(d, clause)
    if front != "subject":
        d.construction(f"{front} first")
    return arrange(clause, front=front, movable=last)


def choose_front(d: Derivation, clause: Clause) -> str:
    """What comes first: an object only where its form tells it from the subject."""
    dative = clause.dative
    if dative is not None and dative.form == "f" and not clause.subject.is_one_word:
        if clause.verb.frame != "likes":
            return "subject"
    if clause.time is not None and clause.time_first and d.chance(0.45):
        return "time"
    if clause.place is not None and d.chance(0.25):
        return "place"
    if clause.verb.frame == "likes" and d.chance(0.5):
        return "dative"
    accusative = clause.accusative
    if accusative is not None and accusative.kind == "definite" and accusative.form == "m":
        if not accusative.relative and clause.nicht is None and d.chance(0.12):
            return "accusative"
    return "subject"


def existential(d: Derivation, asked: bool = False) -> Phrase:
    """ "Es gibt" with a place."""
    d.construction("es gibt")
    place = NOUN[d.pick_fresh(list(CONTENTS))]
    codes = "eps" if asked else "eeennpksss"
    nouns = [n for n in nouns_of(CONTENTS[place.name]) if matches(" ".join(n.determiners), "e p s")]
    phrase = noun_phrase(d, nouns, "acc", codes, plurals=0.5)
    location = at_place(d, place)
    verb, there = Word("gibt"), Word("es")
    be = Token("are" if phrase.agreement == "pl" else "is", [verb])
    english: Node = phrase.english
    if phrase.negation is not None:
        english = Seq(Token("no", [phrase.negation]), *phrase.english.parts[1:])
    if asked:
        ordered = Seq(be, Token("there", [there]), english, location.english)
        return Phrase([verb, there, *location.german, *phrase.german], ordered)
    plain = Seq(Token("there", [there]), be, english)
    if d.chance(0.6):
        ordered = Alt((0.6, Seq(plain, location.english)), (0.4, Seq(location.english, plain)))
        return Phrase([*location.german, verb, there, *phrase.german], ordered)
    return Phrase([there, verb, *location.german, *phrase.german], Seq(plain, location.english))


def existential_question(d: Derivation) -> Phrase:
    d.construction("yes/no question")
    return existential(d, asked=True)

"""Questions: yes or no, and with a question word."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from clause import QUESTION
from clauses import make_clause, make_copula, verbs_for
from derivation import Derivation
from lexicon import Noun, matches, nouns_of
from noun_phrases import NounPhrase, nothing, noun_phrase
from phrases import Phrase, Token, Word, either, joined, same
from word_order import arrange

ADVERBIAL_WORDS = {"wann": "when", "wo": "where", "warum": "why"}


def yes_no_question(d: Derivation) -> Phrase:
    """A question with the verb first."""
    d.construction("yes/no question")
    if d.chance(0.12):
        clause = make_copula(d, QUESTION)
    else:
        clause = make_clause(d, QUESTION, verbs_for("", QUESTION))
    return arrange(clause, order="first", inverted=True)


def w_question(d: Derivation) -> Phrase:
    """A question with a question word."""
    d.construction("w-question")
    rules: tuple[Callable[[Derivation], Phrase], ...] = (
        who_question, whom_question, what_question, how_many_question, adverbial_question
    )  # fmt: skip
    return d.pick(rules)(d)


def who_question(d: Derivation) -> Phrase:
    """ "Wer": the order is that of a statement on both sides."""
    word = Word("wer")
    who = NounPhrase([word], Token("who", [word]), "3sg", "empty")
    clause = make_clause(d, QUESTION, verbs_for("person adult", QUESTION), who)
    return arrange(clause, front="subject")


def whom_question(d: Derivation) -> Phrase:
    """ "Wen" or "wem", which leave the place of an object empty."""
    if d.chance(0.4):
        clause = make_clause(d, QUESTION, verbs_for("", QUESTION, "dat"), dative=nothing())
        asked = either("wem", (0.7, "who"), (0.3, "whom"))
    else:
        verbs = [v for v in verbs_for("", QUESTION, "acc") if matches("person", v.objects)]
        clause = make_clause(d, QUESTION, verbs, accusative=nothing())
        asked = either("wen", (0.7, "who"), (0.3, "whom"))
    return arrange(clause, question=asked, inverted=True)


def what_question(d: Derivation) -> Phrase:
    """ "Was" as the object."""
    verbs = [v for v in verbs_for("", QUESTION, "acc") if not matches("person", v.objects)]
    clause = make_clause(d, QUESTION, verbs, accusative=nothing())
    return arrange(clause, question=same("was", "what"), inverted=True)


def how_many_question(d: Derivation) -> Phrase:
    """ "Wie viele" and a noun as the object."""
    verb = d.pick([verb for verb in verbs_for("", QUESTION, "acc") if countable(verb.objects)])
    noun = noun_phrase(d, countable(verb.objects), "acc", "p")
    asked = joined(same("wie", "how"), same("viele", "many"), Phrase(noun.german, noun.english))
    clause = make_clause(d, QUESTION, [verb], accusative=nothing())
    return arrange(clause, question=asked, inverted=True)


def countable(kinds: str) -> list[Noun]:
    return [noun for noun in nouns_of(kinds) if "p" in noun.determiners]


def adverbial_question(d: Derivation) -> Phrase:
    """ "Wann", "wo" or "warum"."""
    word = d.pick([*ADVERBIAL_WORDS])
    verbs, setting = verbs_for("", QUESTION), QUESTION
    if word == "wann":
        verbs = [verb for verb in verbs if not verb.is_state]
        setting = replace(QUESTION, time=0.0)
    elif word == "wo":
        verbs = [verb for verb in verbs if verb.places]
    else:
        setting = replace(QUESTION, negation=0.25)
    clause = make_clause(d, setting, verbs, place=word != "wo")
    return arrange(clause, question=same(word, ADVERBIAL_WORDS[word]), inverted=True)

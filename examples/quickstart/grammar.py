"""The kinds of sentences and how often each is drawn."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from derivation import Derivation
from phrases import Phrase, Seq, Token, Word, comma, joined, same
from questions import w_question, yes_no_question
from sentence import Sentence, finish
from statements import existential, existential_question, statement
from subordination import adverbial_clause, complement_clause

Rule = Callable[[Derivation], Phrase]


def coordination(d: Derivation) -> Phrase:
    """Two main clauses with "und" or "aber"."""
    second: Rule = statement
    if d.rich or d.chance(0.2):
        second = d.pick((adverbial_clause, complement_clause))
    d.construction("coordinated clauses")
    first = statement(d)
    if d.chance(0.5):
        return joined(first, and_clause(), second(d))
    return joined(first, comma(english=True), same("aber", "but"), second(d))


def and_clause() -> Phrase:
    """ "Und" between clauses, where English also has a comma."""
    word = Word("und")
    return Phrase([word], Seq(Token(",", possible=[word]), Token("and", [word])))


RULES: Sequence[tuple[float, Rule]] = (
    (0.44, statement),
    (0.09, yes_no_question),
    (0.09, w_question),
    (0.12, complement_clause),
    (0.16, adverbial_clause),
    (0.06, coordination),
    (0.03, existential),
    (0.01, existential_question),
)
LONG_RULES = ((0.1, adverbial_clause), (0.9, coordination))


def make_sentence(
    generator: random.Random, focus: Sequence[str] = (), rich: bool = False
) -> Sentence:
    """Draw a sentence.

    Args:
        generator: the source of all choices
        focus: names of words to be preferred
        rich: prefer long sentences
    """
    d = Derivation(generator, focus, rich)
    phrase = d.weighted(LONG_RULES if rich else RULES)(d)
    asked = "yes/no question" in d.constructions or "w-question" in d.constructions
    return finish(d, phrase, "?" if asked else ".")

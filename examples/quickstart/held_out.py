"""Combinations that the training data do not have, though they have the words and constructions.

The words of a combination occur in training in the very form that the held-out test set has. Only
their meeting in this construction is new.
"""

from __future__ import annotations

from collections.abc import Sequence

HELD_OUT = (
    ("adjective", "klein Vogel"),
    ("adjective", "rot Fahrrad"),
    ("dative", "Arzt"),
    ("dative", "Katze"),
    ("modal", "helfen"),
    ("modal", "lesen"),
    ("negation", "essen"),
    ("negation", "warten"),
    ("numeral", "drei Kind"),
    ("numeral", "zwei Bild"),
    ("perfect in a main clause", "schreiben"),
    ("perfect in a main clause", "singen"),
    ("relative clause", "Auto"),
    ("relative clause", "Student"),
    ("separated in a question", "anrufen"),
    ("separated in a question", "zumachen"),
    ("subordinate clause", "besuchen"),
    ("subordinate clause", "reparieren"),
)


def held_out(combinations: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """The combinations among these that are held out."""
    return [combination for combination in combinations if combination in HELD_OUT]


def label(combinations: Sequence[tuple[str, str]]) -> str:
    """`dative: Arzt; modal: helfen`."""
    return "; ".join(f"{construction}: {word}" for construction, word in combinations)

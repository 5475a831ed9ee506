"""Endings: German declension and conjugation, and the English forms of verbs and articles.

Cases are "nom", "acc" and "dat". A form is a gender (m, f, n) or "pl". An agreement is "1sg",
"3sg" or "pl" (the first and the third person plural have the same forms on both sides).
"""

from __future__ import annotations

from lexicon import Modal, Noun, Verb

DEFINITE = {
    "nom": {"m": "der", "f": "die", "n": "das", "pl": "die"},
    "acc": {"m": "den", "f": "die", "n": "das", "pl": "die"},
    "dat": {"m": "dem", "f": "der", "n": "dem", "pl": "den"},
}
RELATIVE = DEFINITE | {"dat": DEFINITE["dat"] | {"pl": "denen"}}
# Of ein, kein, mein and unser.
DETERMINER_ENDING = {
    "nom": {"m": "", "f": "e", "n": "", "pl": "e"},
    "acc": {"m": "en", "f": "e", "n": "", "pl": "e"},
    "dat": {"m": "em", "f": "er", "n": "em", "pl": "en"},
}
# Of an adjective: after der, after ein and the like, and after nothing or a numeral.
ADJECTIVE_ENDING = {
    "weak": {
        "nom": {"m": "e", "f": "e", "n": "e", "pl": "en"},
        "acc": {"m": "en", "f": "e", "n": "e", "pl": "en"},
        "dat": {"m": "en", "f": "en", "n": "en", "pl": "en"},
    },
    "mixed": {
        "nom": {"m": "er", "f": "e", "n": "es", "pl": "en"},
        "acc": {"m": "en", "f": "e", "n": "es", "pl": "en"},
        "dat": {"m": "en", "f": "en", "n": "en", "pl": "en"},
    },
    "strong": {
        "nom": {"m": "er", "f": "e", "n": "es", "pl": "e"},
        "acc": {"m": "en", "f": "e", "n": "es", "pl": "e"},
        "dat": {"m": "em", "f": "er", "n": "em", "pl": "en"},
    },
}
CONTRACTIONS = {
    ("in", "dem"): "im",
    ("in", "das"): "ins",
    ("an", "dem"): "am",
    ("zu", "dem"): "zum",
    ("zu", "der"): "zur",
}

AUXILIARIES = {
    "haben": {"1sg": "habe", "3sg": "hat", "pl": "haben"},
    "sein": {"1sg": "bin", "3sg": "ist", "pl": "sind"},
}
WAS = {"1sg": "war", "3sg": "war", "pl": "waren"}

ENGLISH_BE = {"1sg": "am", "3sg": "is", "pl": "are"}
ENGLISH_WAS = {"1sg": "was", "3sg": "was", "pl": "were"}


def noun_form(noun: Noun, case: str, plural: bool) -> str:
    """A noun in a case and number."""
    if not plural:
        return noun.plural if noun.weak and case != "nom" else noun.name
    if case == "dat" and noun.plural[-1] not in "ns":
        return noun.plural + "n"
    return noun.plural


def determiner(stem: str, case: str, form: str) -> str:
    """A form of ein, kein, mein or unser."""
    return stem + DETERMINER_ENDING[case][form]


def adjective(stem: str, declension: str, case: str, form: str) -> str:
    """An adjective before a noun."""
    ending = ADJECTIVE_ENDING[declension][case][form]
    return stem.removesuffix("e") + ending


def present(verb: Verb | Modal, agreement: str) -> str:
    """The present tense, without the particle of a separable verb."""
    if verb.name == "sein":
        return AUXILIARIES["sein"][agreement]
    if agreement == "pl":
        return verb.stem if isinstance(verb, Verb) else verb.name
    if agreement == "3sg" or isinstance(verb, Modal) or verb.name == "wissen":
        return verb.third
    return verb.stem[:-1]


def english_do(agreement: str) -> str:
    return "does" if agreement == "3sg" else "do"


def starts_with_vowel(word: str) -> bool:
    """Whether the indefinite article before this word is "an"; true to the words of the lexicon."""
    return word[0].lower() in "aeio"

"""Draw sentences from templates: a German word order and its English translations.

The symbols of a template stand for phrases: S subject, V finite verb, P the rest of the verb
(particle, participle or infinitive), O object, D indirect object, T time, L place, E adjective,
K conjunction; in English A auxiliary and M main verb. Small letters belong to a second clause.
Anything else is a word of `words.FIXED`. Four kinds of ambiguity give a sentence several
translations:

    word     Bank: bank, bench; macht zu: closes, shuts
    pronoun  Sie sehen: they see, you see; ihr: her, their
    tense    kauft: buys, is buying; hat gekauft: bought, has bought
    order    Heute kauft Anna ein Buch: Today Anna is buying a book, Anna is buying a book today
"""

from __future__ import annotations

import itertools
import math
import random
from typing import NamedTuple

import words
from alternatives import (
    NOTHING,
    Alternatives,
    Word,
    choice,
    pick,
    pick_weighted,
    sequence,
    tokens,
)


class Template(NamedTuple):
    """A German word order, its English ones with probabilities, and the verb of each clause."""

    name: str
    german: str
    english: dict[str, float]
    verbs: tuple[str, ...] = ("object",)
    weight: float = 3


TEMPLATES = (
    Template("statement", "S V O P .", {"S A M O .": 1}, weight=4),
    Template("time", "S V T O P .", {"S A M O T .": 0.8, "T S A M O .": 0.2}, weight=4),
    Template("time first", "T V S O P .", {"T S A M O .": 0.6, "S A M O T .": 0.4}),
    Template("object first", "O V S P .", {"S A M O .": 1}, weight=2),
    Template("place", "S V T L P .", {"S A M L T .": 0.8, "T S A M L .": 0.2}, ("place",)),
    Template("gift", "S V D O P .", {"S A M D O .": 0.6, "S A M O to D .": 0.4}, ("gift",)),
    Template("negation", "S V O nicht P .", {"S A nicht M O .": 1}, weight=2),
    Template("question", "V S O P ?", {"A S M O ?": 1}, weight=2),
    Template("what", "was V S P ?", {"was A S M ?": 1}, weight=2),
    Template("where", "wo V S P ?", {"wo A S M ?": 1}, ("place",), weight=1),
    Template("description", "S V E .", {"S M E .": 1}, ("be",)),
    Template("that", "S V , K s o p v .", {"S A M K s a m o .": 1}, ("say", "object")),
    Template(
        "clause second", "S V L P , K s o p v .", {"S A M L K s a m o .": 1}, ("place", "object")
    ),
    Template(
        "clause first",
        "K s o p v , V S L P .",
        {"K s a m o , S A M L .": 0.7, "S A M L K s a m o .": 0.3},
        ("place", "object"),
    ),
)
# Templates in which English needs "do" where there is no other auxiliary.
WITH_DO = ("negation", "question", "what", "where")

Pair = tuple[words.Verb, words.Noun]
Tense = tuple[float, Alternatives, Alternatives]  # probability, auxiliary, main verb


class Phrase(NamedTuple):
    """German words and their translations."""

    german: tuple[Word, ...]
    english: Alternatives


class Sentence(NamedTuple):
    """A German sentence with all of its translations.

    Attributes:
        template: name of its template.
        german: its tokens.
        english: the translations, before they are spelled.
        pairs: each verb with the noun that is its object.
    """

    template: str
    german: tuple[Word, ...]
    english: Alternatives
    pairs: list[Pair]


def word(german: str, english: str, kind: str = "word") -> Phrase:
    """Return a German word with its translations, written as in `words`."""
    source = (Word(german),)
    return Phrase(
        source, choice(kind, *((p, tokens(e, source)) for p, e in words.options(english)))
    )


def join(*parts: Phrase) -> Phrase:
    german = tuple(word for part in parts for word in part.german)
    return Phrase(german, sequence(*(part.english for part in parts)))


def phrase(text: str) -> Phrase:
    """Read words and their translations, as in ``am=in_the Abend=evening``."""
    return join(*(word(*item.split("=")) for item in text.split()))


def place(generator: random.Random) -> Phrase:
    preposition, noun = pick(generator, words.PREPOSITIONS), pick(generator, words.NOUNS["place"])
    article = "der=the" if noun.gender == "f" else "dem=the"
    start = f"{preposition} {article}".replace("in=in dem=the", "im=in_the")
    return phrase(f"{start} {noun.singular}={noun.english}")


def noun_phrase(
    generator: random.Random,
    noun: words.Noun,
    case: int,
    plural: bool,
    first: bool = False,
    adjectives: float = 0.3,
    definite: bool = False,
) -> Phrase:
    """Put a determiner or a numeral, and perhaps an adjective, before a noun.

    Args:
        generator: the source of all choices.
        noun: the noun.
        case: 0 nominative, 1 accusative, 2 dative (singular only).
        plural: whether it is more than one.
        first: whether the phrase begins the sentence, where the capital of "Ihr" tells nothing.
        adjectives: probability of an adjective.
        definite: no "ein", in whose place a negated German sentence has "kein".
    """
    column = 3 if plural else "mfn".index(noun.gender)

    def declined(stem: str, endings: str) -> str:
        return stem + words.ENDINGS[endings][case].split()[column].strip("-")

    parts, after = [], "adjective alone"
    rows = [(row[0], row[1:]) for row in words.DETERMINERS if not (definite and row[1] == "ein")]
    stem, endings, declension, *english = pick_weighted(generator, rows)
    if plural and stem == "ein":
        parts = [phrase(pick(generator, words.NUMERALS))]
    else:
        text = "her*4/their*3/your*3" if first and stem == "ihr" else english[plural]
        parts, after = [word(declined(stem, endings), text, "pronoun")], declension
    if generator.random() < adjectives:
        german, text = pick(generator, words.ADJECTIVES[noun.kind].split()).split("=")
        parts.append(word(declined(german, after), text))
    if plural:
        return join(*parts, word(noun.plural, words.plural(noun.english)))
    return join(*parts, word(noun.singular, noun.english))


def subject(generator: random.Random, first: bool, kind: str = "") -> tuple[Phrase, bool]:
    """Draw a subject, and tell whether it is plural; `kind`: of the nouns of a description."""
    draw = generator.random()
    if kind in ("", "person") and draw < 0.25:
        name = pick(generator, words.NAMES)
        return word(name, name), False
    if kind in ("", "person") and draw < 0.5:
        german, english, plural = pick(generator, words.PRONOUNS)
        if first and english in ("they", "you"):  # "Sie" at the beginning may be either
            german, english = "sie", "they*6/you*4"
        return word(german, english, "pronoun"), plural
    noun, plural = pick(generator, words.NOUNS[kind or "person"]), generator.random() < 0.35
    return noun_phrase(generator, noun, 0, plural, first, 0.0 if kind else 0.3), plural


def copula(generator: random.Random, plural: bool) -> tuple[dict[str, Phrase], list[Tense]]:
    german, english = pick(generator, (("ist", "is"), ("war", "was")))
    finite = (Word(words.AGREEMENT[german][plural]),)
    main = tokens(words.AGREEMENT[english][plural], finite)
    return {"V": Phrase(finite, NOTHING)}, [(1.0, NOTHING, main)]


def verb_phrase(
    generator: random.Random,
    verb: words.Verb,
    plural: bool,
    tense: str,
    english: dict[str, float],
    with_do: bool,
    last: bool,
) -> tuple[dict[str, Phrase], list[Tense]]:
    """Conjugate a verb in both languages.

    Args:
        generator: the source of all choices.
        verb: the verb.
        plural: whether the subject is.
        tense: of the German verb, one of `words.TENSES`.
        english: the English tenses and their probabilities.
        with_do: whether English needs "do".
        last: whether the finite verb ends its clause, so that the particle stays with it.
    """
    modal = ""
    if tense == "present":
        form = verb.plural if plural else verb.singular
        german = [verb.particle + form] if last else [form, *verb.particle.split()]
    elif tense == "perfect":
        german = ["haben" if plural else "hat", verb.participle]
    else:
        *forms, modal = pick(generator, words.MODALS)
        german = [forms[plural], verb.particle + verb.plural]
    finite, *rest = map(Word, german)
    content = (finite, *rest) if tense == "present" else tuple(rest)
    forms = {  # auxiliary, and which form of the main verb
        "simple": ("does" if with_do else "", 0 if plural or with_do else 4),
        "past": ("did", 0) if with_do else ("", 1),
        "perfect": ("has", 2),
        "progressive": ("is", 3),
        "future": ("will", 0),
        "modal": (modal, 0),
    }
    tenses = []
    for name, probability in english.items():
        auxiliary, form = forms[name]
        auxiliary = words.AGREEMENT.get(auxiliary, (auxiliary, auxiliary))[plural]
        translated = name in ("perfect", "modal")  # others have no German word of their own
        helper = tokens(auxiliary, *([(finite,)] if translated else [(), (finite,)]))
        unspoken = (finite,) if name == "past" and not with_do else ()
        mains = []
        for *main, particle in verb.english:
            sure = content[:1] if particle else content
            parts = tokens(main[form], sure, unspoken), tokens(particle, content[-1:])
            mains.append((1 / len(verb.english), sequence(*parts)))
        tenses.append((probability, helper, choice("word", *mains)))
    return {"V": Phrase((finite,), NOTHING), "P": Phrase(tuple(rest), NOTHING)}, tenses


def fits(verb: words.Verb, template: Template) -> bool:
    """Return whether a verb can stand in a template."""
    if "T" in template.german:
        return not verb.stative
    return template.name != "what" or verb.objects != ("person",)


def clause(
    generator: random.Random, template: Template, number: int
) -> tuple[dict[str, Phrase], list[Tense], list[Pair]]:
    """Draw the phrases of the first (0) or the second (1) clause by their symbols."""
    symbols = [s.upper() for s in template.german.split() if (s in "sopv") == bool(number)]
    kind = template.verbs[number]
    adjectives = pick(generator, sorted(words.ADJECTIVES)) if kind == "be" else ""
    who, plural = subject(generator, symbols[0] == "S" and not number, adjectives)
    slots, pairs = {"S": who}, []
    if kind == "be":
        slots["E"] = phrase(pick(generator, words.ADJECTIVES[adjectives].split()))
        verbs, tenses = copula(generator, plural)
        return slots | verbs, tenses, pairs
    verb = pick(generator, [verb for verb in words.VERBS[kind] if fits(verb, template)])
    negated = template.name == "negation"
    # Without a modal verb if negated, because "muss nicht" does not mean "must not".
    usable = 1 if kind == "say" else 3 - (negated or verb.stative)
    tense = pick(generator, [*words.TENSES][:usable])
    english = words.TENSES[tense]
    if "clause" in template.name or (verb.stative and tense == "present"):
        english = dict.fromkeys([*english][:1], 1.0)  # the first: simple or past
    if "T" in symbols:
        text, tenses = pick(generator, words.TIMES)
        tense = pick(generator, sorted(tenses))
        slots["T"], english = phrase(text), tenses[tense]
    if "L" in symbols:
        slots["L"] = place(generator)
    if "D" in symbols:
        slots["D"] = noun_phrase(generator, pick(generator, words.NOUNS["person"]), 2, False)
        slots["to"] = Phrase((), tokens("to", (), slots["D"].german[:1]))
    if "O" in symbols:
        object_first = symbols[0] == "O"  # must be masculine and singular: "den" marks it
        nouns = words.NOUNS[pick(generator, verb.objects)]
        noun = pick(generator, [noun for noun in nouns if noun.gender == "m" or not object_first])
        many = not object_first and generator.random() < 0.35
        slots["O"] = noun_phrase(generator, noun, 1, many, definite=negated)
        pairs = [(verb, noun)]
    with_do, last = template.name in WITH_DO, symbols[-1] == "V"
    verbs, tenses = verb_phrase(generator, verb, plural, tense, english, with_do, last)
    return slots | verbs, tenses, pairs


def make_sentence(generator: random.Random) -> Sentence:
    """Draw a sentence with all of its translations."""
    template = pick_weighted(generator, [(template.weight, template) for template in TEMPLATES])
    clauses = [clause(generator, template, number) for number in range(len(template.verbs))]
    fixed = [symbol for symbol in template.german.split() if symbol in words.FIXED]
    slots = {symbol: phrase(words.FIXED[symbol]) for symbol in fixed}
    says = template.verbs[0] == "say"
    slots["K"] = phrase("dass=that*7/*3" if says else pick(generator, words.CONJUNCTIONS))
    for (phrases, _, _), names in zip(clauses, (str, str.lower), strict=False):
        slots |= {names(symbol): found for symbol, found in phrases.items()}
    english = {symbol: slot.english for symbol, slot in slots.items()}
    branches = []
    for chosen in itertools.product(*(tenses for _, tenses, _ in clauses)):
        for (_, auxiliary, main), names in zip(chosen, ("AM", "am"), strict=False):
            english |= {names[0]: auxiliary, names[1]: main}
        orders = (
            (p, sequence(*(english[symbol] for symbol in order.split())))
            for order, p in template.english.items()
        )
        branches.append((math.prod(p for p, _, _ in chosen), choice("order", *orders)))
    german = tuple(word for symbol in template.german.split() for word in slots[symbol].german)
    pairs = [pair for _, _, found in clauses for pair in found]
    return Sentence(template.name, german, choice("tense", *branches), pairs)

"""Draw sentences from templates: a German word order and its English translations.

The symbols are S (subject), O (object), D (indirect object), C (clause) and those of
`words.PHRASES`; in German V (finite verb), P (its separable particle), E (both as one word),
I (infinitive) and Q (participle); in English base, third (person), past, done (participle) and ing.
Anything else is an English word; "did~hat" is a "did" that translates no German word, but has a
possible link to "hat". Four kinds of ambiguity give several translations:

    word     Bank: bank, bench; macht zu: closes, shuts
    pronoun  Sie sehen: they see, you see; ihr: her, their
    tense    kauft: buys, is buying; hat gekauft: bought, has bought
    order    Jetzt liest Anna ein Buch: Now Anna is reading a book, Anna is reading a book now
"""

import random
from collections.abc import Sequence
from typing import NamedTuple

import words
from alternatives import Alternatives, Word, choice, pick, sequence, tokens

# Name | use of the verb | German order | difference between the English orders | English orders.
TEMPLATES = """
present | object | S V O P . | tense | S third O ./S is~V ing O .
perfect | object | S hat O Q . | tense | S past~hat O .*6/S hat done O .*4
modal | object | S MODAL O I . | - | S MODAL base O .
negation | object | S hat O nicht Q . | tense | S did~hat nicht base O .*6/S hat nicht done O .*4
question | object | V S O P ? | tense | does~V S base O ?/is~V S ing O ?
where | place | wo hat S Q ? | tense | wo did~hat S base ?*6/wo hat S done ?*4
object first | object | O V S P . | tense | S third O ./S is~V ing O .
now | object | NOW V S O P . | order | NOW S is~V ing O .*6/S is~V ing O NOW .*4
habit | place | S V HABIT IN L P . | - | S third IN L HABIT .
past | object | S hat PAST O Q . | - | S past~hat O PAST .
future | object | FUTURE V S O P . | order | FUTURE S will~V base O .*6/S will~V base O FUTURE .*4
gift | gift | S hat D O Q . | order | S past~hat D O .*6/S past~hat O to~D D .*4
that | clause | S V , dass C . | - | S third dass C .
reason | place | S MODAL IN L I , K C . | - | S MODAL base IN L K C .
reason first | place | K C , V S IN L P . | order | K C , S third IN L .*7/S third IN L K C .*3
""".strip().splitlines()
CLAUSES = """
present clause | object | S O E | - | S third O
perfect clause | object | S O Q hat | - | S past~hat O
""".strip().splitlines()


class Phrase(NamedTuple):
    """German words and their translations."""

    german: tuple[Word, ...]
    english: Alternatives


class Sentence(NamedTuple):
    """A German sentence with all of its translations, before conversion to text."""

    template: str
    german: tuple[Word, ...]
    english: Alternatives
    pairs: list[tuple[str, str]]  # each verb with the noun that is its object


def word(german: str, english: str, kind: str = "word", first: bool = False) -> Phrase:
    """Return a German word with its translations, which may depend on whether it comes first."""
    source = (Word(german),)
    english = words.AT_THE_BEGINNING.get(english, english) if first else english
    options = ((p, tokens(text, source)) for p, text in words.options(english))
    return Phrase(source, choice(kind, *options))


def join(*parts: Phrase) -> Phrase:
    german = tuple(word for part in parts for word in part.german)
    return Phrase(german, sequence(*(part.english for part in parts)))


def noun_phrase(
    rng: random.Random, noun: words.Noun, case: int, plural: bool, first: bool, definite: bool
) -> Phrase:
    """Put a determiner (but not "ein" if `definite`) and perhaps an adjective before a noun."""
    column = 3 if plural else "mfn".index(noun.gender)

    def declined(stem: str, pattern: str) -> str:
        return stem + words.ENDINGS[pattern][case].split()[column].strip("-")

    definite = definite or plural
    usable = [row for row in words.DETERMINERS if not (definite and row.startswith("ein "))]
    stem, pattern, english = pick(rng, usable).split()
    parts = [word(declined(stem, pattern), english, "pronoun", first)]
    if rng.random() < 0.3:
        stem, english = pick(rng, words.ADJECTIVES[noun.kind].split()).split("=")
        parts.append(word(declined(stem, f"adjective after {pattern}"), english))
    return join(*parts, word(*noun.pair[plural]))


def translations(item: str, slots: dict, verb: words.Verb, plural: bool) -> Alternatives:
    """Return the translations of one item of an English word order."""
    if item in slots:
        return slots[item].english
    text, _, source = item.partition("~")
    possible = slots[source].german[:1] if source else ()
    if text not in verb.english[0]:
        return tokens(words.AGREEMENT[plural].get(text, text), (), possible)
    sure = [word for symbol in verb.pair[0] if symbol in slots for word in slots[symbol].german]
    form = "base" if plural and text == "third" else text
    mains = [tokens(forms[form], sure, possible) for forms in verb.english]
    return choice("word", *((1 / len(mains), main) for main in mains))


def make_sentence(rng: random.Random, templates: Sequence[str] = TEMPLATES) -> Sentence:
    """Draw a sentence, or a clause of one, with all of its translations."""
    name, use, german_order, ambiguity, english_orders = pick(rng, templates).split(" | ")
    verb, plural = pick(rng, words.VERBS[use]), rng.random() < 0.35
    forms = verb.pair[plural]
    slots, pairs = {}, []
    for place, symbol in enumerate(german_order.split()):
        first = place == 0 and templates is not CLAUSES
        if symbol in forms:
            slots[symbol] = Phrase(tuple(map(Word, forms[symbol].split())), tokens(""))
        elif symbol == "S" and rng.random() < 0.5:
            german, english = pick(rng, words.PRONOUNS[plural].split()).split("=")
            slots["S"] = word(german, english, "pronoun", first)
        elif symbol in ("S", "D"):
            case, many = (words.NOMINATIVE, plural) if symbol == "S" else (words.DATIVE, False)
            noun = pick(rng, words.NOUNS["person"])
            slots[symbol] = noun_phrase(rng, noun, case, many, first, False)
        elif symbol == "O":
            # An object that comes first is masculine and singular: "den" marks it.
            nouns = words.NOUNS[pick(rng, verb.objects.split())]
            noun = pick(rng, [noun for noun in nouns if noun.gender == "m" or not first])
            many, definite = rng.random() < 0.35 and not first, "nicht" in german_order
            slots["O"] = noun_phrase(rng, noun, words.ACCUSATIVE, many, first, definite)
            pairs.append((forms["I"], noun.pair[0][0]))
        elif symbol == "C":
            _, german, english, pairs = make_sentence(rng, CLAUSES)
            slots["C"] = Phrase(german, english)
        else:
            text = pick(rng, words.PHRASES.get(symbol, f"{symbol}={symbol}").split(", "))
            items = words.AGREEMENT[plural].get(text, text).split()
            slots[symbol] = join(*(word(*item.split("=")) for item in items))
    orders = []
    for p, order in words.options(english_orders):
        items = (translations(item, slots, verb, plural) for item in order.split())
        orders.append((p, sequence(*items)))
    german = join(*map(slots.get, german_order.split())).german
    return Sentence(name, german, choice(ambiguity, *orders), pairs)

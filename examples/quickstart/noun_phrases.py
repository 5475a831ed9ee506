"""Noun phrases, pronouns and phrases with a preposition, each with its links."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from alignment import parse_talp
from derivation import Derivation
from lexicon import (
    ADJECTIVES,
    CITIES,
    NUMERALS,
    PEOPLE,
    Adverbial,
    Noun,
    nouns_of,
    synonyms,
)
from morphology import CONTRACTIONS, DEFINITE, adjective, determiner, noun_form
from phrases import NOTHING, Alt, Node, Phrase, Seq, Token, Word, either_for, one_of, same

PERSONAL = {
    "nom": {
        "ich": ("I", "1sg"), "er": ("he", "3sg"), "sie": ("she", "3sg"), "wir": ("we", "pl"),
        "sie alle": ("they", "pl"),
    },
    "acc": {"mich": ("me", "1sg"), "ihn": ("him", "3sg"), "uns": ("us", "pl")},
    "dat": {
        "mir": ("me", "1sg"), "ihm": ("him", "3sg"), "ihr": ("her", "3sg"), "uns": ("us", "pl")
    },
}  # fmt: skip


FIRST_PERSON = ("I", "we", "me", "us")


@dataclass
class NounPhrase:
    """A noun phrase in its case.

    Attributes:
        agreement: of the verb with it
        kind: definite, indefinite, pronoun, relative, or empty (moved away in a relative clause
            or question)
        reference: (German, English) pronoun that can refer to it later, if there is one
        noun, form: the head and its gender or "pl", if there is a head
        negation: the word "kein"
        adjective: the stem of its adjective
        open: it can take a relative clause
        relative: its relative clause, between commas, as German words
    """

    german: list[Word]
    english: Node
    agreement: str
    kind: str
    reference: tuple[str, str] | None = None
    noun: Noun | None = None
    form: str = ""
    negation: Word | None = None
    adjective: str = ""
    open: bool = False
    relative: list[Word] = field(default_factory=list)

    @property
    def is_pronoun(self) -> bool:
        return self.kind == "pronoun"

    @property
    def is_one_word(self) -> bool:
        return len(self.german) <= 1

    @property
    def is_first_person(self) -> bool:
        return self.reference is not None and self.reference[1] in FIRST_PERSON

    def attach(self, clause: Phrase) -> None:
        """Add a relative clause between commas; English has none."""
        self.relative = [Word(","), *clause.german, Word(",")]
        self.english = Seq(self.english, clause.english)


def nothing() -> NounPhrase:
    """The empty place of an object that a question or relative clause has at its beginning."""
    return NounPhrase([], NOTHING, "3sg", "empty")


def translated(entry: str, number: int, word: Word) -> Node:
    """The translation of a word: the n-th form of each synonym of an entry."""
    return either_for(word, *((p, forms[number]) for p, forms in synonyms(entry)))


def adverbial(entry: Adverbial) -> Phrase:
    """A fixed phrase of the lexicon, with the links that stand there."""
    german = [Word(text) for text in entry.german.split()]
    branches = []
    for probability, text, talp in entry.english:
        links = parse_talp(talp)
        tokens = [
            Token(
                token,
                [german[s] for s, t in sorted(links.sure) if t == position],
                [german[s] for s, t in sorted(links.possible) if t == position],
            )
            for position, token in enumerate(text.split())
        ]
        branches.append((probability, Seq(*tokens)))
    return Phrase(german, one_of(branches))


def pronoun(german: str, case: str) -> NounPhrase:
    """A personal pronoun; "sie alle" stands for the plural "sie"."""
    english, agreement = PERSONAL[case][german]
    word = Word(german.split()[0])
    return NounPhrase([word], Token(english, [word]), agreement, "pronoun", (german, english))


def reference_to(noun: Noun, plural: bool) -> tuple[str, str] | None:
    """The pronoun for a noun; none for "das Kind", which English would call he or she."""
    if plural:
        return "sie alle", "they"
    if noun.gender == "n":
        return None
    german = {"m": "er", "f": "sie"}[noun.gender]
    if "person" in noun.kinds:
        return german, {"er": "he", "sie": "she"}[german]
    return german, "it"


def referring(reference: tuple[str, str]) -> NounPhrase:
    """The pronoun that refers back to a subject."""
    german, english = reference
    agreement = PERSONAL["nom"][german][1]
    word = Word(german.split()[0])
    return NounPhrase([word], Token(english, [word]), agreement, "pronoun", reference)


def person_by_name(d: Derivation) -> NounPhrase:
    name, gender = d.pick_fresh(PEOPLE)
    word = Word(name)
    reference = {"f": ("sie", "she"), "m": ("er", "he")}[gender]
    return NounPhrase([word], Token(name, [word]), "3sg", "definite", reference)


def noun_phrase(
    d: Derivation,
    nouns: Sequence[Noun],
    case: str,
    determiners: str,
    plurals: float = 0.25,
    adjectives: float = 0.25,
) -> NounPhrase:
    """A noun with its determiner, numeral and adjective.

    Args:
        nouns: to pick from
        determiners: to pick from, as in the lexicon and repeated to be likelier; k(ein) goes with
            every noun
        plurals: probability of the plural where the determiner leaves the choice
        adjectives: probability of an adjective
    """
    noun = d.pick_fresh(nouns)
    if "numeral" in d.constructions:
        determiners = determiners.replace("n", "")
    usable = [code for code in determiners if code in noun.determiners or code == "k"]
    code = d.pick(usable or noun.determiners)
    choose_number = noun.plural and code in "dmk"
    plural = code in "pn" or bool(choose_number and d.chance(plurals))
    stems = noun.adjectives.split()
    stem = d.pick(stems) if stems and d.option(adjectives) else ""
    article = code == "n" and "d" in determiners and d.chance(0.3)
    return decline(d, noun, case, code, plural, stem, article)


def decline(
    d: Derivation,
    noun: Noun,
    case: str,
    code: str,
    plural: bool,
    stem: str,
    article: bool = False,
) -> NounPhrase:
    """Put together the phrase of a noun whose determiner, number and adjective are chosen.

    `article` asks for "die" before the numeral.
    """
    form = "pl" if plural else noun.gender
    start = determine(d, noun, case, code, form, article)
    german, english = [*start.german], [start.english]
    declension = "weak" if code == "d" or article else "mixed" if code in "mek" else "strong"
    if code == "n":
        d.construction("numeral")
        numeral, number = d.pick(NUMERALS)
        d.combine("numeral", f"{numeral} {noun.name}")
        german.append(Word(numeral))
        english.append(Token(number, [german[-1]]))
    if stem:
        d.construction("adjective")
        d.combine("adjective", f"{stem} {noun.name}")
        german.append(Word(adjective(stem, declension, case, form)))
        english.append(translated(ADJECTIVES[stem], 0, german[-1]))
    german.append(Word(noun_form(noun, case, plural)))
    english.append(translated(noun.english, int(plural), german[-1]))
    if case == "dat":
        d.combine("dative", noun.name)
    return NounPhrase(
        german,
        Seq(*english),
        "pl" if plural else "3sg",
        "definite" if code in "dm" or article else "indefinite",
        reference_to(noun, plural),
        noun,
        form,
        german[0] if code == "k" else None,
        adjective=stem,
        open=code in "den" and bool(noun.plural),
    )


def determine(d: Derivation, noun: Noun, case: str, code: str, form: str, article: bool) -> Phrase:
    """The article, possessive or negation before a noun, if there is one."""
    if code == "d" or article:
        return same(DEFINITE[case][form], "the")
    if code == "m":
        stem, english = d.pick((("mein", "my"), ("mein", "my"), ("unser", "our")))
        return same(determiner(stem, case, form), english)
    if code == "e":
        return same(determiner("ein", case, form), "a")
    if code == "k":
        d.construction("negation with kein")
        word = Word(determiner("kein", case, form))
        return Phrase([word], no_article(noun, form == "pl", word))
    return Phrase([], NOTHING)


def no_article(noun: Noun, plural: bool, negation: Word) -> Node:
    """What stands for "kein" before the English noun; "not" is elsewhere and has the sure link."""
    if plural or noun.is_substance:
        return Alt((0.5, NOTHING), (0.5, Token("any", possible=[negation])))
    return Token("a", possible=[negation])


def couple(d: Derivation, nouns: Sequence[Noun]) -> NounPhrase:
    """Two subjects joined by "und"."""
    if len(d.fresh(PEOPLE)) > 1 and d.chance(0.5):
        first, second = person_by_name(d), person_by_name(d)
    else:
        first, second = (noun_phrase(d, nouns, "nom", "dm", plurals=0.1) for _ in range(2))
    und = Word("und")
    return NounPhrase(
        [*first.german, und, *second.german],
        Seq(first.english, Token("and", [und]), second.english),
        "pl",
        "definite",
        ("sie alle", "they"),
    )


def with_preposition(preposition: tuple[str, str], phrase: NounPhrase) -> Phrase:
    """A German and English preposition before a noun phrase, contracted as in "im", "zum"."""
    german, english = preposition
    article = phrase.german[0]
    contracted = CONTRACTIONS.get((german, article.text))
    if contracted is None:
        word = Word(german)
        return Phrase([word, *phrase.german], Seq(Token(english, [word]), phrase.english))
    # The article's own word becomes the contraction, so "the" stays linked to it.
    article.text = contracted
    return Phrase(phrase.german, Seq(Token(english, [article]), phrase.english))


def at_place(d: Derivation, noun: Noun, where_to: bool = False) -> Phrase:
    """Where something is ("im Garten") or where someone goes ("in den Garten")."""
    german, english = (noun.goal if where_to else noun.location).split()
    case = "acc" if where_to and german != "zu" else "dat"
    if noun.bare:
        article, head = Word(DEFINITE[case][noun.gender]), Word(noun.name)
        bare = Seq(Token(noun.english.split()[0], [head], [article]))
        return with_preposition((german, english), NounPhrase([article, head], bare, "3sg", ""))
    code = d.pick([code for code in "dddm" if code in noun.determiners])
    stems = noun.adjectives.split()
    stem = d.pick(stems) if d.option(0.12) else ""
    return with_preposition((german, english), decline(d, noun, case, code, False, stem))


def in_city(d: Derivation) -> Phrase:
    preposition, city = Word("in"), Word(d.pick(CITIES))
    return Phrase([preposition, city], Seq(Token("in", [preposition]), Token(city.text, [city])))


def human_phrase(
    d: Derivation, case: str, kinds: str = "person", names: bool = True, feminine: bool = True
) -> NounPhrase:
    """A person, by noun or perhaps by name; `feminine` allows feminine nouns."""
    if names and d.chance(0.25):
        return person_by_name(d)
    nouns = [noun for noun in nouns_of(kinds) if feminine or noun.gender != "f"]
    return noun_phrase(d, nouns, case, "dddemn")

"""What the words of the corpus are, and the tables of the small classes of words.

English entries may have synonyms, `0.6 big | 0.4 large`, with the probability of each.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

import word_lists


@functools.cache
def synonyms(entry: str) -> tuple[tuple[float, tuple[str, ...]], ...]:
    """Read `0.6 big | 0.4 large` as probabilities and words; one synonym needs no probability."""
    if "|" not in entry:
        return ((1.0, tuple(entry.split())),)
    choices = (choice.split() for choice in entry.split("|"))
    return tuple((float(probability), tuple(words)) for probability, *words in choices)


def matches(kinds: str, wanted: str) -> bool:
    """Whether one of the kinds is wanted; both are words separated by spaces."""
    return any(kind in wanted.split() for kind in kinds.split())


def entries(table: str) -> Iterator[tuple[list[str], str, dict]]:
    """The entries of a table: the German forms, English, and the fields by name."""
    for entry in table.strip().replace("\n    ", " ").splitlines():
        if entry:
            forms, *fields = entry.split(" : ")
            german, english = forms.split(" = ")
            named = (field.strip().partition(" ") for field in fields)
            yield german.split(), english, {name: value or True for name, _, value in named}


@dataclass(frozen=True)
class Noun:
    """A noun.

    Attributes:
        name: nominative singular
        gender: m, f or n
        plural: nominative plural, "" if none is used
        english: singular and plural
        kinds: what the verbs ask for
        adjectives: those that can stand before it
        determiners: d(er), e(in), p(lural without an article), m(ein), n(umeral); s for a
            substance, which has no article
        weak: takes the ending -(e)n in all cases but the nominative
        location, goal: German and English preposition, for where and for where to
        bare: English has no article after those prepositions ("at school")
    """

    name: str
    gender: str
    plural: str
    english: str
    kinds: str
    adjectives: str = ""
    determiners: str = ""
    weak: bool = False
    location: str = ""
    goal: str = ""
    bare: bool = False

    @property
    def is_substance(self) -> bool:
        return "s" in self.determiners


@dataclass(frozen=True)
class Verb:
    """A verb.

    Attributes:
        stem, third, participle: infinitive and forms, all without the particle
        particle: of a separable verb
        english: base form, third person, past, -ing form, and what follows the verb ("pick up")
        subjects, objects: kinds of nouns
        frame: what it takes: none, acc, dat, dat+acc, goal, location, auf (+ accusative), clause,
            or likes (the nominative is what is liked)
        auxiliary: of the perfect
        aspect: of the English present: dynamic (progressive or simple), simple, state, which has
            no time and no modal besides, fact, which is a state that is told in the present
            only, or event, which has no plain present
        places, manners: nouns and adverbs that can be added
        company: kinds of nouns that can be added after "mit"
        benefit: "für" and a person can be added
        plain: takes no modal verb
        once: is not done every day
    """

    stem: str
    third: str
    participle: str
    particle: str
    english: str
    subjects: str = ""
    objects: str = ""
    frame: str = "none"
    auxiliary: str = "haben"
    aspect: str = "dynamic"
    places: str = ""
    manners: str = ""
    company: str = ""
    benefit: bool = False
    plain: bool = False
    once: bool = False

    @property
    def name(self) -> str:
        """The infinitive."""
        return self.particle + self.stem

    @property
    def is_state(self) -> bool:
        return self.aspect in ("state", "fact")


def read_nouns() -> Iterator[Noun]:
    for (name, gender, plural), english, fields in entries(word_lists.NOUNS):
        yield Noun(name, gender, plural.strip("-"), english, **fields)


def read_verbs() -> Iterator[Verb]:
    for (name, third, participle), english, fields in entries(word_lists.VERBS):
        particle, _, stem = name.rpartition("|")
        yield Verb(stem, third, participle, particle, english, **fields)


NOUNS = tuple(read_nouns())
VERBS = tuple(read_verbs())
NOUN = {noun.name: noun for noun in NOUNS}
VERB = {verb.name: verb for verb in VERBS}


@functools.cache
def nouns_of(kinds: str) -> tuple[Noun, ...]:
    """The nouns that are of one of the kinds, in the order of the table."""
    return tuple(noun for noun in NOUNS if matches(noun.kinds, kinds))


PEOPLE = (("Anna", "f"), ("Maria", "f"), ("Peter", "m"), ("Paul", "m"))
CITIES = ("Berlin", "Paris")

NUMERALS = (("zwei", "two"), ("drei", "three"), ("vier", "four"), ("fünf", "five"))

# Before a noun.
ADJECTIVES = {
    "groß": "0.6 big | 0.4 large",
    "klein": "0.7 small | 0.3 little",
    "alt": "old",
    "jung": "young",
    "neu": "new",
    "schön": "beautiful",
    "rot": "red",
    "schwarz": "black",
    "kalt": "cold",
    "lang": "long",
    "interessant": "interesting",
    "müde": "tired",
    "krank": "sick",
}
# How someone can feel, after "to be"; what people do has its reasons there.
STATES = {
    "müde": "tired",
    "krank": "0.6 sick | 0.4 ill",
    "hungrig": "hungry",
    "glücklich": "happy",
}
PREDICATES = ADJECTIVES | STATES | {"klein": "small"}


@dataclass(frozen=True)
class Modal:
    """A modal verb. English "want to" and "have to" are full verbs, the others auxiliaries.

    Attributes:
        name, third: infinitive and third person singular
        english: in a plain statement
        inverted: in questions and with a negation, where that is another
    """

    name: str
    third: str
    english: str
    inverted: str = ""


MODALS = (
    Modal("können", "kann", "can"),
    Modal("müssen", "muss", "0.4 must | 0.6 have to", "have to"),
    Modal("wollen", "will", "want to"),
    Modal("sollen", "soll", "should"),
    Modal("dürfen", "darf", "0.4 may | 0.6 are allowed to"),
)


@dataclass(frozen=True)
class Adverbial:
    """A fixed adverbial with its translations, their probabilities and links (talp form).

    Attributes:
        english: (probability, tokens, links)
        meaning: what it says of the time: past, now, today, future or habit
        first: it can begin a sentence
    """

    german: str
    english: tuple[tuple[float, str, str], ...]
    meaning: str = ""
    first: bool = True

    @property
    def name(self) -> str:
        return self.german


def only(text: str, links: str) -> tuple[tuple[float, str, str], ...]:
    """The one translation of an adverbial."""
    return ((1.0, text, links),)


RIGHT_NOW = ((0.7, "right now", "1p1 1-2"), (0.3, "at the moment", "1p1 1p2 1-3"))
IN_SUMMER = ((0.5, "in summer", "1-1 2-2"), (0.5, "in the summer", "1-1 1-2 2-3"))
TIMES = (
    Adverbial("gestern", only("yesterday", "1-1"), "past"),
    Adverbial("letzte Woche", only("last week", "1-1 2-2"), "past"),
    Adverbial("am Montag", only("on Monday", "1-1 2-2"), "past"),
    Adverbial("heute", only("today", "1-1"), "today"),
    Adverbial("jetzt", only("now", "1-1"), "now"),
    Adverbial("gerade", RIGHT_NOW, "now", first=False),
    Adverbial("morgen", only("tomorrow", "1-1"), "future"),
    Adverbial("bald", only("soon", "1-1"), "future"),
    Adverbial("jeden Tag", only("every day", "1-1 2-2"), "habit"),
    Adverbial("am Abend", only("in the evening", "1-1 1-2 2-3"), "habit"),
    Adverbial("im Sommer", IN_SUMMER, "habit"),
)
# They stand before the English verb.
FREQUENCIES = (
    Adverbial("oft", only("often", "1-1")),
    Adverbial("immer", only("always", "1-1")),
    Adverbial("manchmal", only("sometimes", "1-1")),
)
MANNERS = {
    "schnell": Adverbial("schnell", only("quickly", "1-1")),
    "leise": Adverbial("leise", only("quietly", "1-1")),
    "allein": Adverbial("allein", only("alone", "1-1")),
}

# What is where, for "es gibt".
CONTENTS = {
    "Garten": "animal",
    "Park": "animal",
    "Küche": "food drink",
    "Büro": "gift",
    "Stadt": "house",
    "Bahnhof": "transit",
}
# What people do because they feel so or because it rains, and what they do all the same.
BECAUSE = {
    "müde": "schlafen trinken",
    "krank": "schlafen anrufen",
    "hungrig": "essen",
    "glücklich": "singen spielen danken einladen schwimmen",
    "regnen": "schlafen lesen schreiben abholen aufräumen zumachen",
}
DESPITE = {
    "müde": "arbeiten spielen singen lesen schreiben gehen laufen aufräumen helfen reparieren "
    "schwimmen aufstehen",
    "krank": "arbeiten gehen laufen schwimmen besuchen aufstehen singen aufräumen schreiben "
    "reparieren",
    "hungrig": "schlafen arbeiten spielen warten lesen schreiben",
    "regnen": "gehen laufen schwimmen spielen besuchen warten reparieren verkaufen",
}
# What people go somewhere for.
PURPOSES = {
    "Markt": "kaufen verkaufen",
    "Stadt": "kaufen arbeiten suchen",
    "Bahnhof": "warten abholen",
    "Schule": "lesen singen abholen",
    "Büro": "arbeiten schreiben lesen",
    "Küche": "essen trinken aufräumen",
    "Garten": "spielen lesen singen arbeiten",
    "Park": "spielen lesen suchen singen",
}
# What they also do whenever they do something.
HABITS = {
    "arbeiten": "trinken singen",
    "lesen": "trinken essen",
    "warten": "lesen essen trinken singen",
    "aufräumen": "singen",
    "besuchen": "mitbringen",
    "aufstehen": "trinken essen lesen",
    "schreiben": "trinken",
}

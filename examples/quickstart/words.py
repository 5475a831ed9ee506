"""The words of the quickstart's corpus, as tables.

``bank*6/bench*4`` is a word with two translations, with probabilities 0.6 and 0.4; without numbers,
the translations are equally likely. ``right_now`` stands for two English tokens.
"""

import functools
import re
from collections import namedtuple

# Pairs are of the singular and the plural. Verb forms are named by their symbols in templates.
Noun = namedtuple("Noun", "kind gender pair")
Verb = namedtuple("Verb", "pair english objects")


def pairs(text: str) -> dict[str, str]:
    """Read a table of two columns, whose rows are separated by commas."""
    return dict(row.split() for row in text.split(","))


@functools.cache
def options(text: str) -> list[tuple[float, str]]:
    """Read ``bank*6/bench*4`` as pairs of a probability and a translation."""
    found = [option.partition("*")[::2] for option in text.split("/")]
    total = sum(float(weight or 1) for _, weight in found)
    return [(float(weight or 1) / total, english) for english, weight in found]


def with_s(word: str) -> str:
    """Return the plural of an English noun, or the third person singular of a verb."""
    ending = "es" if word.endswith(("s", "sh", "ch", "x")) else "s"
    return IRREGULAR_PLURALS.get(word) or re.sub("([^aeiou])y$", r"\1ie", word) + ending


def read_noun(kind: str, row: str) -> Noun:
    gender, singular, plural, english = row.split()
    plurals = re.sub("[a-z]+", lambda word: with_s(word[0]), english)
    return Noun(kind, gender, ((singular, english), (plural, plurals)))


def read_verb(row: str) -> Verb:
    german, english, objects = row.split("|")
    infinitive, singular, participle = german.split()
    particle, _, plural = infinitive.rpartition("-")
    others = {"P": particle, "I": particle + plural, "Q": participle}
    pair = [{"V": finite, "E": particle + finite} | others for finite in (singular, plural)]
    return Verb(pair, [english_forms(*text.split()) for text in english.split("/")], objects)


def english_forms(base: str, *others: str) -> dict[str, str]:
    """Return the forms of an English verb by name; a second token (pick_up) is part of each."""
    base, mark, particle = base.partition("_")
    forms = {"base": base, "third": with_s(base), "past": others[0], "done": others[-2]}
    return {name: form + mark + particle for name, form in {**forms, "ing": others[-1]}.items()}


IRREGULAR_PLURALS = pairs("man men, woman women, child children, leaf leaves, mouse mice")
NOUN_TABLE = {  # gender, singular, plural, English singular
    "person": """m Mann Männer man, f Frau Frauen woman, n Kind Kinder child,
        m Lehrer Lehrer teacher, f Lehrerin Lehrerinnen teacher, m Arzt Ärzte doctor,
        f Ärztin Ärztinnen doctor, m Freund Freunde friend*7/boyfriend*3,
        f Freundin Freundinnen friend*7/girlfriend*3, n Mädchen Mädchen girl,
        m Bruder Brüder brother, f Schwester Schwestern sister, m Sohn Söhne son,
        f Tochter Töchter daughter, m Koch Köche cook*6/chef*4, m Gast Gäste guest,
        m Bäcker Bäcker baker, f Nachbarin Nachbarinnen neighbor""",
    "thing": """n Haus Häuser house, n Schloss Schlösser castle*6/lock*4, f Karte Karten map/card,
        f Birne Birnen pear/bulb, f Decke Decken blanket*7/ceiling*3, m Hahn Hähne rooster*6/tap*4,
        m Flügel Flügel wing/piano, f Uhr Uhren clock/watch, m Wagen Wagen car*7/cart*3,
        f Leiter Leitern ladder, m Tisch Tische table, m Stuhl Stühle chair, f Lampe Lampen lamp,
        m Schlüssel Schlüssel key, n Fahrrad Fahrräder bike, f Bank Bänke bank*6/bench*4,
        m Hut Hüte hat, m Mantel Mäntel coat, n Kleid Kleider dress, m Ball Bälle ball,
        m Teller Teller plate, n Bild Bilder picture*7/painting*3, n Schiff Schiffe ship,
        m Ring Ringe ring""",
    "door": """f Tür Türen door, n Fenster Fenster window, m Koffer Koffer suitcase,
        f Kiste Kisten box, n Tor Tore gate*7/goal*3, f Tasche Taschen bag*6/pocket*4""",
    "food": """m Apfel Äpfel apple, m Kuchen Kuchen cake, f Melone Melonen melon, n Ei Eier egg,
        f Banane Bananen banana, m Salat Salate salad, m Keks Kekse cookie, f Beere Beeren berry""",
    "text": """n Buch Bücher book, m Brief Briefe letter, f Zeitung Zeitungen newspaper,
        f Geschichte Geschichten story, n Gedicht Gedichte poem, m Bericht Berichte report,
        m Satz Sätze sentence, f Nachricht Nachrichten message, n Blatt Blätter leaf/sheet""",
    "animal": """m Hund Hunde dog, f Katze Katzen cat, n Pferd Pferde horse, m Vogel Vögel bird,
        f Kuh Kühe cow, f Maus Mäuse mouse, n Schwein Schweine pig, f Ente Enten duck""",
}
NOUNS = {
    kind: [read_noun(kind, row) for row in text.split(",")] for kind, text in NOUN_TABLE.items()
}
ADJECTIVES = {
    "person": "alt=old jung=young groß=tall klein=short*6/small*4 nett=nice*6/kind*4 "
    "klug=clever*6/smart*4 reich=rich berühmt=famous",
    "thing": "alt=old neu=new groß=big*6/large*4 klein=small*6/little*4 rot=red blau=blue "
    "schön=beautiful*6/pretty*4 billig=cheap",
    "door": "alt=old neu=new groß=big*6/large*4 schwer=heavy schön=beautiful*6/pretty*4",
    "food": "frisch=fresh süß=sweet groß=big*6/large*4 klein=small*6/little*4 billig=cheap",
    "text": "lang=long kurz=short alt=old schwer=difficult*6/heavy*4 leicht=easy*6/light*4",
    "animal": "alt=old jung=young groß=big*6/large*4 schwarz=black schnell=fast*6/quick*4",
}

# Infinitive (with a hyphen after a separable particle), third person singular, participle | base,
# past, participle if it differs, and -ing form of each English verb | kinds of objects.
VERB_TABLE = {
    "object": """
        verkaufen verkauft verkauft | sell sold selling | thing food text animal
        kaufen kauft gekauft | buy bought buying | thing food text animal
        suchen sucht gesucht | look_for looked looking | thing door text animal person
        zeichnen zeichnet gezeichnet | draw drew drawn drawing | thing door animal person
        putzen putzt geputzt | clean cleaned cleaning | thing door
        reparieren repariert repariert | repair repaired repairing/fix fixed fixing | thing door
        tragen trägt getragen | carry carried carrying | thing food text
        ab-holen holt abgeholt | pick_up picked picking/collect collected collecting | thing person
        auf-machen macht aufgemacht | open opened opening | door
        zu-machen macht zugemacht | close closed closing/shut shut shutting | door
        essen isst gegessen | eat ate eaten eating | food
        schneiden schneidet geschnitten | cut cut cutting | food
        weg-werfen wirft weggeworfen | throw_away threw thrown throwing | food text
        lesen liest gelesen | read read reading | text
        schreiben schreibt geschrieben | write wrote written writing | text
        ab-schreiben schreibt abgeschrieben | copy copied copying | text
        füttern füttert gefüttert | feed fed feeding | animal
        besuchen besucht besucht | visit visited visiting | person
        treffen trifft getroffen | meet met meeting | person
        ein-laden lädt eingeladen | invite invited inviting | person""",
    "gift": """
        geben gibt gegeben | give gave given giving | thing food text
        zeigen zeigt gezeigt | show showed shown showing | thing text animal
        bringen bringt gebracht | bring brought bringing | thing food text""",
    "place": """
        arbeiten arbeitet gearbeitet | work worked working |
        warten wartet gewartet | wait waited waiting |
        schlafen schläft geschlafen | sleep slept sleeping |
        tanzen tanzt getanzt | dance danced dancing |
        auf-räumen räumt aufgeräumt | tidy_up tidied tidying |""",
    "clause": """
        sagen sagt gesagt | say said saying |
        glauben glaubt geglaubt | believe believed believing/think thought thinking |""",
}
VERBS = {use: [read_verb(row) for row in text.split("\n")[1:]] for use, text in VERB_TABLE.items()}

NOMINATIVE, ACCUSATIVE, DATIVE = range(3)
# Endings before masculine, feminine, neuter and plural nouns, by case; "-" is none.
ENDINGS = {
    "der": ("er ie as ie", "en ie as ie", "em er em en"),
    "ein": ("- e - e", "en e - e", "em er em en"),
    "adjective after der": ("e e e en", "en e e en", "en en en en"),
    "adjective after ein": ("er e es en", "en e es en", "en en en en"),
}
# Stem, endings, English. Articles are three times as frequent as the others.
ARTICLES = ("d der the", "ein ein a")
DETERMINERS = (*3 * ARTICLES, "mein ein my", "unser ein our", "ihr ein her*6/their*4")
# Singular, plural.
PRONOUNS = (
    "Anna=Anna Paul=Paul Maria=Maria Peter=Peter Eva=Eva Max=Max er=he er=he sie=she sie=she",
    "wir=we sie=they Sie=you",
)
# Ambiguities at the beginning of a sentence, where every word has a capital.
AT_THE_BEGINNING = pairs("they they*6/you*4, you they*6/you*4, her*6/their*4 her*4/their*3/your*3")
# Plurals of words that agree with the subject; the singular needs no change.
PLURALS = (
    "hat=has haben=have, kann=can können=can, muss=must müssen=must, soll=should sollen=should"
)
AGREEMENT = ({}, pairs(f"{PLURALS}, is are, does do"))
PHRASES = {  # by symbols of templates
    "NOW": "jetzt=now, gerade=right_now/at_the_moment, heute=today",
    "HABIT": "jeden=every Tag=day, jede=every Woche=week, am=in_the Abend=evening",
    "PAST": "gestern=yesterday, letzte=last Woche=week, am=on Montag=Monday",
    "FUTURE": "morgen=tomorrow, bald=soon, nächste=next Woche=week",
    "MODAL": "kann=can, muss=must, soll=should",
    "K": "weil=because, obwohl=although*6/though*4, da=as/since",
    "IN": "im=in_the, neben=next_to dem=the, vor=in_front_of dem=the, hinter=behind dem=the",
    "L": "Park=park, Garten=garden, Museum=museum, Hotel=hotel, Bahnhof=station, Hof=yard",
    **{"hat": "hat=has", "nicht": "nicht=not", "wo": "wo=where", "dass": "dass=that*7/*3"},
}

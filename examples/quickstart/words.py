"""The words of the quickstart's corpus, as tables.

``bank*6/bench*4`` is a word with two translations, of probabilities 0.6 and 0.4; without numbers
they are equally likely. ``pick+up`` is a verb with a particle, ``right_now`` two English tokens for
one German. Nouns: gender, singular, plural, English singular. Verbs: infinitive, which is also the
plural of the present (a separable particle before ``|``), third person singular, participle; base,
past, participle and -ing form of each English verb; kinds of objects. ``!`` marks a verb that
English does not use in the progressive.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

NOUN_ROWS = {
    "person": """
        m Mann Männer man, f Frau Frauen woman, n Kind Kinder child, m Lehrer Lehrer teacher,
        f Lehrerin Lehrerinnen teacher, m Arzt Ärzte doctor, f Ärztin Ärztinnen doctor,
        m Freund Freunde friend*7/boyfriend*3, f Freundin Freundinnen friend*7/girlfriend*3,
        n Mädchen Mädchen girl, m Bruder Brüder brother, f Schwester Schwestern sister,
        m Sohn Söhne son, f Tochter Töchter daughter, m Koch Köche cook*6/chef*4,
        m Gast Gäste guest, m Bäcker Bäcker baker, f Nachbarin Nachbarinnen neighbor""",
    "thing": """
        f Bank Bänke bank*6/bench*4, n Schloss Schlösser castle*6/lock*4,
        f Karte Karten map/card, f Birne Birnen pear/bulb, f Decke Decken blanket*7/ceiling*3,
        m Hahn Hähne rooster*6/tap*4, n Blatt Blätter leaf/sheet, m Flügel Flügel wing/piano,
        f Uhr Uhren clock/watch, m Wagen Wagen car*7/cart*3, f Leiter Leitern ladder,
        m Tisch Tische table, m Stuhl Stühle chair, f Lampe Lampen lamp, m Schlüssel Schlüssel key,
        n Fahrrad Fahrräder bike, n Haus Häuser house, m Hut Hüte hat, m Mantel Mäntel coat,
        n Kleid Kleider dress, m Ball Bälle ball, n Bild Bilder picture*7/painting*3,
        m Teller Teller plate, n Schiff Schiffe ship, m Stein Steine stone, m Ring Ringe ring""",
    "door": """
        f Tür Türen door, n Fenster Fenster window, m Koffer Koffer suitcase,
        n Tor Tore gate*7/goal*3, f Tasche Taschen bag*6/pocket*4, f Kiste Kisten box""",
    "food": """
        m Apfel Äpfel apple, m Kuchen Kuchen cake, f Melone Melonen melon, n Ei Eier egg,
        f Banane Bananen banana, f Kartoffel Kartoffeln potato, m Salat Salate salad,
        m Keks Kekse cookie""",
    "text": """
        n Buch Bücher book, m Brief Briefe letter, f Zeitung Zeitungen newspaper,
        f Geschichte Geschichten story, n Gedicht Gedichte poem, m Bericht Berichte report,
        m Satz Sätze sentence, f Nachricht Nachrichten message""",
    "animal": """
        m Hund Hunde dog, f Katze Katzen cat, n Pferd Pferde horse, m Vogel Vögel bird,
        f Kuh Kühe cow, f Maus Mäuse mouse, n Schwein Schweine pig""",
    "place": """
        m Park - park, m Garten - garden, f Schule - school, m Bahnhof - station, n Museum - museum,
        n Hotel - hotel, f Kirche - church, n Büro - office, f Küche - kitchen, f Fabrik - factory,
        n Theater - theater, f Stadt - city""",
}
IRREGULAR_PLURALS = {
    "man": "men", "woman": "women", "child": "children", "leaf": "leaves", "mouse": "mice",
    "potato": "potatoes",
}  # fmt: skip

VERB_ROWS = {
    "object": """
    kaufen kauft gekauft; buy bought bought buying; thing food text animal
    verkaufen verkauft verkauft; sell sold sold selling; thing food text animal
    suchen sucht gesucht; look+for looked looked looking; thing door text animal person
    finden findet gefunden; find found found finding; thing door text animal
    sehen sieht gesehen; !see saw seen seeing; thing door text animal person
    zeichnen zeichnet gezeichnet; draw drew drawn drawing; thing door animal person
    fotografieren fotografiert fotografiert; photograph photographed photographed photographing;
        thing animal person
    putzen putzt geputzt; clean cleaned cleaned cleaning; thing door
    tragen trägt getragen; carry carried carried carrying; thing food text
    reparieren repariert repariert; repair repaired repaired repairing/fix fixed fixed fixing;
        thing door
    holen holt geholt; fetch fetched fetched fetching; thing food text
    bezahlen bezahlt bezahlt; pay+for paid paid paying; thing food
    essen isst gegessen; eat ate eaten eating; food
    schneiden schneidet geschnitten; cut cut cut cutting; food
    lesen liest gelesen; read read read reading; text
    schreiben schreibt geschrieben; write wrote written writing; text
    mögen mag gemocht; !like liked liked liking; thing food text animal person
    kennen kennt gekannt; !know knew known knowing; thing text animal person
    lieben liebt geliebt; !love loved loved loving; food animal person
    brauchen braucht gebraucht; !need needed needed needing; thing food text
    vergessen vergisst vergessen; !forget forgot forgotten forgetting; thing food text
    füttern füttert gefüttert; feed fed fed feeding; animal
    besuchen besucht besucht; visit visited visited visiting; person
    treffen trifft getroffen; meet met met meeting; person
    an|rufen ruft angerufen; call called called calling; person
    ab|holen holt abgeholt; pick+up picked picked picking/collect collected collected collecting;
        thing person
    ein|laden lädt eingeladen; invite invited invited inviting; person
    auf|machen macht aufgemacht; open opened opened opening; door
    zu|machen macht zugemacht; close closed closed closing/shut shut shut shutting; door
    an|sehen sieht angesehen; look+at looked looked looking; thing door text animal
    weg|werfen wirft weggeworfen; throw+away threw thrown throwing; food text
    ab|schreiben schreibt abgeschrieben; copy copied copied copying; text""",
    "gift": """
    geben gibt gegeben; give gave given giving; thing food text
    zeigen zeigt gezeigt; show showed shown showing; thing text animal
    schicken schickt geschickt; send sent sent sending; thing text
    bringen bringt gebracht; bring brought brought bringing; thing food text""",
    "place": """
    arbeiten arbeitet gearbeitet; work worked worked working;
    warten wartet gewartet; wait waited waited waiting;
    schlafen schläft geschlafen; sleep slept slept sleeping;
    spielen spielt gespielt; play played played playing;
    singen singt gesungen; sing sang sung singing;
    tanzen tanzt getanzt; dance danced danced dancing;
    auf|räumen räumt aufgeräumt; tidy+up tidied tidied tidying;
    sitzen sitzt gesessen; sit sat sat sitting;""",
    "say": """
    sagen sagt gesagt; !say said said saying;
    glauben glaubt geglaubt; !believe believed believed believing/think thought thought thinking;
    wissen weiß gewusst; !know knew known knowing;
    hoffen hofft gehofft; !hope hoped hoped hoping;""",
}

# Third person singular and plural of irregular verbs.
AGREEMENT = {
    "ist": ("ist", "sind"), "war": ("war", "waren"), "is": ("is", "are"), "was": ("was", "were"),
    "has": ("has", "have"), "does": ("does", "do"),
}  # fmt: skip
MODALS = (
    ("kann", "können", "can"), ("muss", "müssen", "must"), ("soll", "sollen", "should"),
    ("darf", "dürfen", "may"),
)  # fmt: skip

ADJECTIVES = {
    "person": "alt=old jung=young groß=tall klein=short*6/small*4 nett=nice*6/kind*4 reich=rich "
    "klug=clever*6/smart*4 berühmt=famous",
    "thing": "alt=old neu=new groß=big*6/large*4 klein=small*6/little*4 rot=red blau=blue "
    "schön=beautiful*6/pretty*4 billig=cheap",
    "food": "frisch=fresh süß=sweet groß=big*6/large*4 klein=small*6/little*4",
    "text": "lang=long kurz=short neu=new alt=old schwer=difficult*6/heavy*4 leicht=easy*6/light*4",
    "animal": "alt=old jung=young groß=big*6/large*4 klein=small*6/little*4 schwarz=black "
    "schnell=fast*6/quick*4",
}
ADJECTIVES["door"] = ADJECTIVES["thing"]

# Masculine, feminine, neuter, plural of nominative, accusative, dative; "x": not used.
ENDINGS = {
    "der": ("er ie as ie", "en ie as ie", "em er em x"),
    "dieser": ("er e es e", "en e es e", "em er em x"),
    "ein": ("- e - e", "en e - e", "em er em x"),
    "adjective after der": ("e e e en", "en e e en", "en en en x"),
    "adjective after ein": ("er e es en", "en e es en", "en en en x"),
    "adjective alone": ("x x x e", "x x x e", "x x x x"),
}
# Weight, stem, its endings, those of an adjective after it, English singular and plural.
DETERMINERS = (
    (4, "d", "der", "adjective after der", "the", "the"),
    (4, "ein", "ein", "adjective after ein", "a", ""),
    (1, "dies", "dieser", "adjective after der", "this", "these"),
    (1, "mein", "ein", "adjective after ein", "my", "my"),
    (1, "unser", "ein", "adjective after ein", "our", "our"),
    (1, "ihr", "ein", "adjective after ein", "her*6/their*4", "her*6/their*4"),
)
NUMERALS = ("zwei=two", "drei=three", "viele=many", "")  # "": the noun alone

NAMES = ("Anna", "Paul", "Maria", "Peter", "Lena", "Jonas", "Eva", "Max")
# German, English, plural?
PRONOUNS = (
    ("er", "he", False), ("sie", "she", False), ("wir", "we", True), ("sie", "they", True),
    ("Sie", "you", True),
)  # fmt: skip
PREPOSITIONS = ("in=in", "vor=in_front_of", "hinter=behind", "neben=next_to")

# Adverbials of time, with the English tenses that the German ones can have beside them.
TIMES = (
    ("jetzt=now", {"present": {"progressive": 1}, "modal": {"modal": 1}}),
    ("gerade=right_now/at_the_moment", {"present": {"progressive": 1}}),
    ("jeden=every Tag=day", {"present": {"simple": 1}, "modal": {"modal": 1}}),
    ("jede=every Woche=week", {"present": {"simple": 1}, "modal": {"modal": 1}}),
    ("morgen=tomorrow", {"present": {"future": 0.7, "progressive": 0.3}, "modal": {"modal": 1}}),
    ("bald=soon", {"present": {"future": 1}, "modal": {"modal": 1}}),
    ("nächste=next Woche=week", {"present": {"future": 1}, "modal": {"modal": 1}}),
    ("am=on Montag=Monday", {"present": {"future": 1}, "perfect": {"past": 1}}),
    ("am=in_the Abend=evening", {"present": {"simple": 1}, "perfect": {"past": 1}}),
    ("gestern=yesterday", {"perfect": {"past": 1}}),
    ("letzte=last Woche=week", {"perfect": {"past": 1}}),
    ("heute=today", {"present": {"progressive": 1}, "perfect": {"past": 0.6, "perfect": 0.4}}),
)
TENSES = {
    "present": {"simple": 0.5, "progressive": 0.5},
    "perfect": {"past": 0.6, "perfect": 0.4},
    "modal": {"modal": 1},
}
CONJUNCTIONS = ("weil=because", "obwohl=although*6/though*4", "wenn=when*6/if*4", "bevor=before")
FIXED = {
    "nicht": "nicht=not", "was": "was=what", "wo": "wo=where", ".": ".=.", "?": "?=?", ",": ",=,",
}  # fmt: skip


class Noun(NamedTuple):
    """A noun and the options of its translation."""

    gender: str
    singular: str
    plural: str
    english: str
    kind: str


class Verb(NamedTuple):
    """A verb and its translations: base, past, participle, -ing form, third person, particle."""

    particle: str
    plural: str
    singular: str
    participle: str
    english: tuple[tuple[str, ...], ...]
    stative: bool
    objects: tuple[str, ...]


@functools.cache
def options(text: str) -> list[tuple[float, str]]:
    """Read ``bank*6/bench*4`` as pairs of a probability and a translation."""
    pairs = [option.partition("*")[::2] for option in text.split("/")]
    weights = [float(weight or 1) for _, weight in pairs]
    return [(w / sum(weights), english) for w, (english, _) in zip(weights, pairs, strict=True)]


def with_s(word: str) -> str:
    """Return the plural of an English noun, or the third person singular of a verb."""
    if word.endswith(("s", "sh", "ch", "x")):
        return word + "es"
    return word[:-1] + "ies" if word[-1] == "y" and word[-2] not in "aeiou" else word + "s"


@functools.cache
def plural(english: str) -> str:
    """Return the plural of each translation of a noun, in the same form."""
    return "/".join(
        (IRREGULAR_PLURALS.get(word) or with_s(word)) + mark + weight
        for word, mark, weight in (option.partition("*") for option in english.split("/"))
    )


def read_verb(row: str) -> Verb:
    german, english, objects = row.split(";")
    infinitive, singular, participle = german.split()
    particle, _, plural = infinitive.rpartition("|")
    forms = []
    for entry in english.strip(" !").split("/"):
        base, *others = entry.split()
        base, _, english_particle = base.partition("+")
        forms.append((base, *others, with_s(base), english_particle))
    kinds = tuple(objects.split())
    return Verb(particle, plural, singular, participle, tuple(forms), "!" in english, kinds)


NOUNS = {
    kind: tuple(Noun(*row.split(), kind) for row in rows.split(","))
    for kind, rows in NOUN_ROWS.items()
}
VERBS = {
    kind: tuple(map(read_verb, rows.replace(";\n        ", "; ").strip().splitlines()))
    for kind, rows in VERB_ROWS.items()
}

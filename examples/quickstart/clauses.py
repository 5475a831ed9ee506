"""The choice of what a clause says: verb, objects and adverbials that go together."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace

from arguments import add_objects, object_pronoun, subject_kinds, subject_of
from clause import Clause, Setting
from derivation import Derivation
from lexicon import (
    FREQUENCIES,
    MANNERS,
    NOUN,
    NOUNS,
    PREDICATES,
    STATES,
    TIMES,
    VERB,
    VERBS,
    Modal,
    Noun,
    Verb,
    matches,
    nouns_of,
)
from noun_phrases import (
    PERSONAL,
    NounPhrase,
    adverbial,
    at_place,
    human_phrase,
    noun_phrase,
    person_by_name,
    pronoun,
    translated,
    with_preposition,
)
from phrases import Phrase, Word

PROGRESSIVE_OR_SIMPLE = ((0.7, "progressive"), (0.3, "simple"))


def verbs_for(kinds: str, setting: Setting, frames: str = "") -> tuple[Verb, ...]:
    """The verbs of some frames whose subject can be of these kinds; "" for all."""
    return verbs_where(kinds, frames, setting.habitual)


@functools.cache
def verbs_where(kinds: str, frames: str, habitual: bool) -> tuple[Verb, ...]:
    return tuple(
        verb
        for verb in VERBS
        if verb.frame not in ("clause", "copula")
        and verb.subjects != "weather"
        and (not kinds or (matches(kinds, verb.subjects) and verb.frame != "likes"))
        and (not frames or verb.frame in frames.split())
        and not (habitual and (verb.once or verb.is_state))
    )


def make_clause(
    d: Derivation,
    setting: Setting,
    verbs: Sequence[Verb],
    subject: NounPhrase | None = None,
    accusative: NounPhrase | None = None,
    dative: NounPhrase | None = None,
    goal: Noun | None = None,
    place: bool = True,
) -> Clause:
    """Choose a verb and everything that belongs to it; what is given is not chosen.

    `place` allows the place where something happens.
    """
    verb = d.pick_fresh(verbs)
    tense = tense_of(verb, d.weighted(setting.tenses))
    negated = d.chance(setting.negation)
    if subject is None:
        definite = replace(setting, definite=setting.definite or negated)
        subject = subject_of(d, verb, tense, definite)
    if tense == "modal" and "transit" in subject_kinds(subject):
        tense = "present"
    clause = Clause(verb, subject, dative=dative, accusative=accusative)
    if tense == "modal":
        clause.modal = d.pick(modals_for(subject, setting))
    else:
        clause.tense = tense
    condition = setting.habitual and not setting.is_main
    can_like = "gern" in verb.manners and tense == "present" and accusative is None
    gern = can_like and not negated and not condition and d.option(0.12)
    add_objects(d, clause, setting, negated, gern, goal)
    if negated and clause.negation is None:
        clause.nicht = Word("nicht")
    if gern:
        d.construction("gern")
        clause.gern = Word("gern")
        if verb.frame == "none" and d.chance(0.25):
            clause.nicht = Word("nicht")
    meaning = add_time(d, clause, setting)
    add_adverbial(d, clause, setting, place)
    clause.present = present_tenses(clause, setting, meaning)
    note(d, clause, setting)
    return clause


def tense_of(verb: Verb, tense: str) -> str:
    """The tense nearest to the one wanted that goes with the verb."""
    if verb.aspect == "fact" or (tense == "modal" and (verb.is_state or verb.plain)):
        return "present"
    if verb.aspect == "event" and tense == "present":
        return "perfect"
    return tense


def modals_for(subject: NounPhrase, setting: Setting) -> list[Modal]:
    """The modals for a subject: "wollen wir" is no question, and nobody asks "will ich"."""
    asks_oneself = setting.name == "question" and subject.is_first_person
    return [m for m in setting.modals if not (asks_oneself and m.name == "wollen")]


def meanings_of_time(clause: Clause, setting: Setting) -> list[str]:
    """What a time can say in the clause; repeated to be likelier."""
    verb = clause.verb
    if clause.modal is not None:
        meanings = ["today", "now", "future", "habit"]
    elif clause.tense == "perfect":
        meanings = ["past", "past", "habit"]
    elif clause.gern is not None:
        meanings = ["habit"]
    elif verb.aspect == "simple":
        meanings = ["future", "habit"]
    else:
        meanings = ["today", "now", "now", "future", "habit"]
    usual = not (verb.once or clause.negation is not None or clause.subject.kind == "indefinite")
    accusative = clause.accusative
    if accusative is not None and accusative.noun is not None and accusative.kind == "definite":
        # One visits the same person every day, but does not eat the same egg.
        usual = usual and "person" in accusative.noun.kinds
    excluded = ["habit"] * (not usual) + ["future"] * (not setting.future)
    return [meaning for meaning in meanings if meaning not in excluded]


def add_time(d: Derivation, clause: Clause, setting: Setting) -> str:
    """Perhaps add a time or a frequency; returns what it says of the time."""
    meanings = meanings_of_time(clause, setting)
    if clause.verb.is_state or setting.habitual or not meanings or not d.option(setting.time):
        return ""
    meaning = d.pick(meanings)
    if meaning == "habit" and clause.modal is None and clause.gern is None and d.chance(0.5):
        d.construction("frequency adverb")
        clause.frequency = adverbial(d.pick(FREQUENCIES))
        d.optional.append(("adverbial", clause.frequency.german))
        return meaning
    # "gerade" tells what is happening, not what shall happen; what does not happen is not soon.
    usable = [
        entry
        for entry in TIMES
        if (entry.first or clause.modal is None)
        and (entry.german != "bald" or clause.negation is None)
    ]
    entry = d.pick_fresh([entry for entry in usable if entry.meaning == meaning])
    clause.time, clause.time_first = adverbial(entry), entry.first
    d.construction("time adverbial")
    d.optional.append(("adverbial", clause.time.german))
    return meaning


def add_adverbial(d: Derivation, clause: Clause, setting: Setting, place: bool) -> None:
    """Perhaps add one of manner, company, place and benefit."""
    verb = clause.verb
    if clause.gern is not None or not d.option(setting.adverbial):
        return
    manners = [name for name in verb.manners.split() if name != "gern"]
    if clause.subject.agreement == "pl":
        manners = [name for name in manners if name != "allein"]
    used = [part.noun.name for part in (clause.subject, *clause.objects) if part.noun]
    places = [name for name in verb.places.split() if place and name not in used]
    choices = ["place", "place"] if places else []
    if clause.negation is None:
        choices += ["manner"] * bool(manners) + ["company"] * bool(verb.company)
        choices += ["benefit"] * verb.benefit
    choice = d.pick(choices) if choices else ""
    if choice == "manner":
        clause.manner = part = adverbial(MANNERS[d.pick(manners)])
    elif choice == "place":
        clause.place = part = at_place(d, NOUN[d.pick_fresh(places)])
    elif choice == "company":
        clause.company = part = with_preposition(("mit", "with"), companion(d, clause))
    elif choice == "benefit":
        for_me = d.chance(0.3)
        who = object_pronoun(d, clause.subject, "acc") if for_me else human_phrase(d, "acc")
        clause.benefit = part = with_preposition(("für", "for"), who)
    else:
        return
    d.construction(choice)
    d.optional.append(("adverbial", part.german))


def companion(d: Derivation, clause: Clause) -> NounPhrase:
    """With whom someone does something."""
    kinds = clause.verb.company
    if not matches("person adult", kinds):
        return noun_phrase(d, nouns_of(kinds), "dat", "dem")
    if d.chance(0.3):
        return object_pronoun(d, clause.subject, "dat")
    return human_phrase(d, "dat", kinds)


def present_tenses(clause: Clause, setting: Setting, meaning: str) -> Sequence[tuple[float, str]]:
    """How English renders the present tense of the clause."""
    if meaning == "future":
        return ((1.0, "future"),)
    if clause.verb.aspect != "dynamic" or setting.habitual or meaning == "habit":
        return ((1.0, "simple"),)
    raining = clause.verb.subjects == "weather" and not setting.is_main
    if meaning in ("now", "today") or clause.verb.once or raining:
        return ((1.0, "progressive"),)
    return PROGRESSIVE_OR_SIMPLE


def note(d: Derivation, clause: Clause, setting: Setting) -> None:
    """Note the constructions of a clause, and the verb in them."""
    name = clause.verb.name
    if clause.modal is not None:
        d.construction("modal")
        d.combine("modal", name)
    if clause.tense == "perfect":
        d.construction(f"perfect with {clause.verb.auxiliary}")
        if setting.is_main:
            d.combine("perfect in a main clause", name)
    if clause.nicht is not None:
        d.construction("negation with nicht")
    if clause.negation is not None:
        d.combine("negation", name)
    if not setting.is_main:
        d.combine("subordinate clause", name)
    if clause.verb.particle and clause.tense == "present" and clause.modal is None:
        d.construction("separable verb" if setting.is_main else "separable verb, not separated")
        if setting.name == "question":
            d.combine("separated in a question", name)


def make_copula(
    d: Derivation, setting: Setting, subject: NounPhrase | None = None, state: str = ""
) -> Clause:
    """A clause with "sein" and an adjective, `state` if that is given."""
    d.construction("copula")
    subject = subject or copula_subject(d)
    noun = subject.noun
    qualities = noun.adjectives.split() if noun is not None else []
    stem = state or d.pick(qualities or [*STATES])
    free = not setting.habitual and setting.name != "relative"
    past = setting.tenses[0][1] == "perfect" or (free and d.chance(0.35))
    clause = Clause(VERB["sein"], subject, tense="preterite" if past else "present")
    word = Word(stem)
    clause.complement = Phrase([word], translated(PREDICATES[stem], 0, word))
    if d.chance(setting.negation):
        clause.nicht = Word("nicht")
    if stem in STATES and d.option(setting.time):
        german = "gestern" if past else "heute"
        entry = next(entry for entry in TIMES if entry.german == german)
        clause.time, clause.time_first = adverbial(entry), True
        d.construction("time adverbial")
        d.optional.append(("adverbial", clause.time.german))
    note(d, clause, setting)
    return clause


def copula_subject(d: Derivation) -> NounPhrase:
    if d.chance(0.15):
        return pronoun(d.pick([*PERSONAL["nom"]]), "nom")
    if d.chance(0.15):
        return person_by_name(d)
    nouns = [noun for noun in NOUNS if noun.adjectives]
    return noun_phrase(d, nouns, "nom", "dddm", adjectives=0.0)

"""Sentences with a subordinate clause: what someone knows, thinks or says, and circumstances."""

from __future__ import annotations

from dataclasses import replace

from arguments import subject_of
from clause import (
    CONDITION,
    CONSEQUENCE,
    MAIN,
    ONLY_MODAL,
    ONLY_PERFECT,
    ONLY_PRESENT,
    SUBORDINATE,
    Clause,
    Setting,
)
from clauses import make_clause, make_copula, verbs_for
from derivation import Derivation
from lexicon import (
    BECAUSE,
    DESPITE,
    HABITS,
    MODALS,
    NOUN,
    PURPOSES,
    VERB,
    Modal,
    Verb,
    matches,
)
from noun_phrases import NounPhrase, referring
from phrases import Phrase, Word, comma, either, joined, same
from statements import main_clause
from word_order import arrange


def modals(*names: str) -> list[Modal]:
    return [modal for modal in MODALS if modal.name in names]


THOUGHT = replace(SUBORDINATE, time=0.3, adverbial=0.3)
AIM = replace(
    SUBORDINATE,
    tenses=ONLY_MODAL,
    negation=0.0,
    time=0.1,
    modals=modals("wollen", "müssen"),
)

QUESTION_WORDS = {"wo": "where", "warum": "why", "wann": "when"}
CONJUNCTIONS = {
    "weil": ((1.0, "because"),),
    "obwohl": ((0.7, "although"), (0.3, "though")),
    "wenn": ((0.5, "if"), (0.5, "when")),
}


def complement_clause(d: Derivation) -> Phrase:
    """Someone knows, thinks or says that something is so, or does not know whether."""
    verb = d.pick((VERB["wissen"], VERB["wissen"], VERB["glauben"], VERB["sagen"]))
    clause = Clause(verb, subject_of(d, verb, d.pick(("present", "perfect"))))
    conjunction = "dass"
    if verb.name == "wissen" and d.chance(0.45):
        conjunction = d.pick(("ob", "ob", *QUESTION_WORDS))
    d.construction("dass" if conjunction == "dass" else "embedded question")
    alone = "coordinated clauses" not in d.constructions
    asked = alone and conjunction == "dass" and verb.name != "sagen" and d.chance(0.15)
    if conjunction != "dass" or (verb.name == "glauben" and not asked and d.chance(0.25)):
        clause.nicht = Word("nicht")
        d.construction("negation with nicht")
        d.combine("negation", verb.name)
    if asked:
        d.construction("yes/no question")
        main = arrange(clause, "first", inverted=True)
    else:
        main = arrange(clause, front="subject")
    return joined(main, comma(), *thought(d, conjunction, verb))


def thought(d: Derivation, conjunction: str, verb: Verb) -> tuple[Phrase, Phrase]:
    """The conjunction and the clause that is known, thought or said."""
    setting, verbs = THOUGHT, [*verbs_for("", THOUGHT)]
    if conjunction == "dass":
        knows = verb.name == "wissen"
        first = same("dass", "that") if knows else either("dass", (0.7, "that"), (0.3, ""))
    elif conjunction == "ob":
        first = either("ob", (0.6, "whether"), (0.4, "if"))
        setting = replace(setting, negation=0.0)
    else:
        first = same(conjunction, QUESTION_WORDS[conjunction])
        asks_reason = conjunction == "warum"
        setting = replace(
            setting, definite=True, pronouns=False, negation=0.2 if asks_reason else 0.0
        )
        if conjunction == "wo":
            verbs = [verb for verb in verbs if verb.places]
        if conjunction == "wann":
            setting = replace(setting, time=0.0)
            verbs = [verb for verb in verbs if not verb.is_state]
    if conjunction in ("dass", "ob") and d.chance(0.15):
        clause = make_copula(d, setting)
    else:
        clause = make_clause(d, setting, verbs, place=conjunction != "wo")
    return first, arrange(clause, order="last")


def adverbial_clause(d: Derivation) -> Phrase:
    """A main clause with a reason, a concession or a condition, before it or after it."""
    conjunction = d.weighted(((0.45, "weil"), (0.25, "obwohl"), (0.3, "wenn")))
    d.construction(conjunction)
    starts = d.chance(0.4)
    if conjunction != "obwohl" and d.chance(0.4):
        main, side = (habit if conjunction == "wenn" else purpose)(d, starts)
    else:
        main, side = circumstance(d, conjunction, starts)
    first = either(conjunction, *CONJUNCTIONS[conjunction])
    if starts:
        d.construction("clause first")
        side_phrase = arrange(side, order="last")
        return joined(first, side_phrase, comma(english=True), arrange(main, order="first"))
    return joined(main_clause(d, main, last=False), comma(), first, arrange(side, order="last"))


def subject_twice(
    d: Derivation, verb: Verb, setting: Setting, starts: bool
) -> tuple[NounPhrase, NounPhrase]:
    """A subject for the main and the subordinate clause; the second of them is a pronoun."""
    setting = replace(setting, definite=True, referable=True)
    subject = subject_of(d, verb, "present", setting)
    assert subject.reference is not None
    pair = (subject, referring(subject.reference))
    return pair[::-1] if starts else pair


def circumstance(d: Derivation, conjunction: str, starts: bool) -> tuple[Clause, Clause]:
    """What someone does, or does not do, for a feeling or the weather, or in spite of them."""
    habitual = conjunction == "wenn"
    negated = d.chance(0.25)
    table = BECAUSE if (conjunction == "obwohl") == negated else DESPITE
    reason = d.pick([*table])
    verbs = [VERB[name] for name in table[reason].split()]
    setting = replace(
        CONSEQUENCE if habitual else MAIN,
        negation=float(negated),
        future=False,
        definite=True,
        modals=modals("wollen", "können") if negated else modals("wollen", "müssen"),
    )
    verb = d.pick([verb for verb in verbs if not (habitual and verb.once)] or verbs)
    if reason == "regnen":
        main = make_clause(d, setting, [verb])
        tenses = ONLY_PERFECT if main.tense == "perfect" else ONLY_PRESENT
        weather = replace(CONDITION if habitual else SUBORDINATE, tenses=tenses, negation=0.0)
        return main, make_clause(d, replace(weather, time=0.0), [VERB["regnen"]])
    # "Der müde Mann schläft, weil er müde ist" would say it twice.
    plain = replace(setting, adjectives=0.0)
    subject, repeated = subject_twice(d, verb, plain, starts)
    main = make_clause(d, setting, [verb], subject=subject)
    side = make_copula(d, replace(CONDITION, negation=0.0), repeated, state=reason)
    side.tense = "preterite" if main.tense == "perfect" else "present"
    return main, side


def purpose(d: Derivation, starts: bool) -> tuple[Clause, Clause]:
    """Where someone goes, or that they get up, and what they want or have to do then."""
    verb, goal = d.pick((VERB["gehen"], VERB["laufen"], VERB["aufstehen"])), None
    if verb.frame == "goal":
        goal = NOUN[d.pick_fresh([*PURPOSES])]
        aims = PURPOSES[goal.name]
    else:
        aims = "arbeiten lesen aufräumen schreiben gehen"
    setting = replace(
        MAIN, tenses=ONLY_PRESENT, negation=0.0, future=False, adverbial=0.1, definite=True
    )
    subject, repeated = subject_twice(d, replace(verb, subjects="adult"), setting, starts)
    main = make_clause(d, setting, [verb], subject=subject, goal=goal)
    verbs = [VERB[name] for name in aims.split()]
    verbs = [aim for aim in verbs if matches("person adult", aim.subjects)]
    return main, make_clause(d, AIM, verbs, subject=repeated, place=False)


def habit(d: Derivation, starts: bool) -> tuple[Clause, Clause]:
    """What someone also does whenever they do something."""
    verb = VERB[d.pick([*HABITS])]
    setting = replace(CONSEQUENCE, tenses=ONLY_PRESENT, negation=0.0)
    subject, repeated = subject_twice(d, verb, setting, starts)
    main = make_clause(d, setting, [VERB[name] for name in HABITS[verb.name].split()], subject)
    side = replace(CONDITION, tenses=ONLY_PRESENT, negation=0.0, adverbial=0.1)
    return main, make_clause(d, side, [verb], subject=repeated)

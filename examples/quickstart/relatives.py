"""Relative clauses, whose pronoun agrees with the noun and has a case of its own."""

from __future__ import annotations

from dataclasses import replace

from arguments import subject_of
from clause import ONLY_PERFECT, RELATIVE, Setting
from clauses import make_clause, make_copula, verbs_for
from derivation import Derivation
from lexicon import Verb, matches, nouns_of
from morphology import RELATIVE as PRONOUN
from noun_phrases import NounPhrase, nothing, noun_phrase, pronoun
from phrases import Phrase, Word, either_for
from word_order import arrange

# English relative pronouns; "" for none at all.
PRONOUNS = {
    ("person", "nom"): ((0.7, "who"), (0.3, "that")),
    ("person", "object"): ((0.4, "who"), (0.3, "that"), (0.3, "")),
    ("thing", "nom"): ((0.7, "that"), (0.3, "which")),
    ("thing", "object"): ((0.5, "that"), (0.2, "which"), (0.3, "")),
}


def add_relative(d: Derivation, phrase: NounPhrase, tense: str) -> None:
    """Give a noun phrase a relative clause, if it can have one; `tense` is that of the main one."""
    noun = phrase.noun
    if noun is None or not phrase.open:
        return
    setting = replace(RELATIVE, tenses=ONLY_PERFECT) if tense != "present" else RELATIVE
    person = "person" if "person" in noun.kinds else "thing"
    verbs = {
        "nom": verbs_for(noun.kinds, RELATIVE),
        "acc": [v for v in verbs_for("", RELATIVE, "acc") if matches(noun.kinds, v.objects)],
        "dat": verbs_for("", RELATIVE, "dat") if person == "person" else [],
    }
    cases = [case for case in ("nom", "nom", "nom", "acc", "acc", "dat") if verbs[case]]
    if noun.adjectives and not phrase.adjective and "copula" not in d.constructions:
        cases.append("copula")
    if not cases:
        return
    case = d.pick(cases)
    form = "nom" if case == "copula" else case
    word = Word(PRONOUN[form][phrase.form])
    who = either_for(word, *PRONOUNS[person, "nom" if form == "nom" else "object"])
    if form == "nom":
        subject = NounPhrase([word], who, phrase.agreement, "relative", noun=noun)
        if case == "copula":
            clause = make_copula(d, setting, subject)
        else:
            clause = make_clause(d, setting, verbs["nom"], subject)
        body = arrange(clause, order="last")
    else:
        question = Phrase([word], who)
        body = object_relative(d, setting, phrase.form, case, d.pick(verbs[case]), question)
    d.construction(f"relative clause ({form})")
    d.combine("relative clause", noun.name)
    phrase.attach(body)
    d.optional.append(("relative clause", phrase.relative))


def object_relative(
    d: Derivation, setting: Setting, form: str, case: str, verb: Verb, relative: Phrase
) -> Phrase:
    """A clause whose object is the relative pronoun.

    Its subject cannot be taken for the object: the pronoun or the subject shows its case.
    """
    if form == "m" or case == "dat":
        subject = subject_of(d, verb, "present")
    elif d.chance(0.5):
        subject = pronoun(d.pick(("er", "wir")), "nom")
    else:
        masculine = [n for n in nouns_of(verb.subjects) if n.gender == "m" and n.plural]
        subject = noun_phrase(d, masculine, "nom", "dddm", plurals=0.0)
    given = {"accusative" if case == "acc" else "dative": nothing()}
    clause = make_clause(d, setting, [verb], subject, **given)
    return arrange(clause, order="last", question=relative)

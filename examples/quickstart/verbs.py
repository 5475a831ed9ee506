"""The verb of a clause on both sides: German verb words, and the English verb group.

English tenses: the German perfect becomes the simple past. The German present becomes what the
clause says of it: progressive, simple or "will"; where both of the first two are right, they are
alternatives. "do", "be" and "will" have no counterpart of their own: possible links to the verb.
"""

from __future__ import annotations

from typing import NamedTuple

from clause import Clause
from lexicon import synonyms
from morphology import AUXILIARIES, ENGLISH_BE, ENGLISH_WAS, WAS, english_do, present
from phrases import Token, Word


class VerbWords(NamedTuple):
    """The German verb of a clause.

    Attributes:
        finite: what agrees with the subject; second, first or last in the clause
        bracket: what stands at the end before it or without it: particle, participle, infinitive
        lexical: the word that carries the meaning
        particle: of a separable verb, where it is a word of its own
        helper: the auxiliary or modal
    """

    finite: Word
    bracket: list[Word]
    lexical: Word
    particle: Word | None = None
    helper: Word | None = None


class Group(NamedTuple):
    """An English verb group: the auxiliary, which a question puts first, and the rest."""

    probability: float
    auxiliary: list[Token]
    main: list[Token]


def verb_words(clause: Clause, final: bool) -> VerbWords:
    """The German verb words; `final` for a clause whose finite verb is its last word."""
    verb, agreement = clause.verb, clause.subject.agreement
    if clause.modal is not None:
        helper, infinitive = Word(present(clause.modal, agreement)), Word(verb.name)
        return VerbWords(helper, [infinitive], infinitive, helper=helper)
    if clause.tense == "perfect":
        helper = Word(AUXILIARIES[verb.auxiliary][agreement])
        participle = Word(verb.particle + verb.participle)
        return VerbWords(helper, [participle], participle, helper=helper)
    if clause.tense == "preterite":
        finite = Word(WAS[agreement])
        return VerbWords(finite, [], finite)
    finite = Word(present(verb, agreement))
    if verb.particle and final:
        finite.text = verb.particle + finite.text
    elif verb.particle:
        particle = Word(verb.particle)
        return VerbWords(finite, [particle], finite, particle)
    return VerbWords(finite, [], finite)


def english_groups(clause: Clause, german: VerbWords, inverted: bool) -> list[Group]:
    """The English verb groups, with an auxiliary if the clause is inverted or negated."""
    if clause.verb.frame == "copula":
        forms = ENGLISH_WAS if clause.tense == "preterite" else ENGLISH_BE
        return [Group(1.0, [Token(forms[clause.english_subject.agreement], [german.finite])], [])]
    groups = []
    for probability, forms in synonyms(clause.verb.english):
        for group in groups_of(clause, german, forms, inverted or clause.negation is not None):
            groups.append(group._replace(probability=probability * group.probability))
    return groups


def groups_of(
    clause: Clause, german: VerbWords, forms: tuple[str, ...], support: bool
) -> list[Group]:
    """The groups of one English verb; with `support` each gets an auxiliary."""
    base, third, past, gerund = (main_tokens(german, form, forms[4:]) for form in forms[:4])
    agreement = clause.english_subject.agreement
    verb = [german.lexical]
    if clause.modal is not None:
        return modal_groups(clause, german, base, support)
    if clause.gern is not None:
        likes = "likes" if agreement == "3sg" and not support else "like"
        first = Token(likes, [clause.gern])
        auxiliary = [do_support(clause, german)] if support else []
        to = Token("to", possible=verb)
        return [Group(0.5, auxiliary, [first, to, *base]), Group(0.5, auxiliary, [first, *gerund])]
    if clause.tense == "perfect":
        if support:
            return [Group(1.0, [do_support(clause, german, "did")], base)]
        helped = Token(past[0].text, past[0].sure, [*past[0].possible, german.helper])
        return [Group(1.0, [], [helped, *past[1:]])]
    groups = []
    for probability, tense in clause.present:
        if tense == "progressive":
            group = Group(probability, [Token(ENGLISH_BE[agreement], possible=verb)], gerund)
        elif tense == "future":
            group = Group(probability, [Token("will", possible=verb)], base)
        elif support:
            group = Group(probability, [do_support(clause, german)], base)
        else:
            group = Group(probability, [], third if agreement == "3sg" else base)
        groups.append(group)
    return groups


def main_tokens(german: VerbWords, form: str, rest: tuple[str, ...]) -> list[Token]:
    """A form of the English verb and what follows it: "pick" and "up"."""
    if german.particle is None:
        return [Token(form, [german.lexical]), *(Token(text, [german.lexical]) for text in rest)]
    if rest:
        return [Token(form, [german.lexical]), *(Token(text, [german.particle]) for text in rest)]
    return [Token(form, [german.lexical], [german.particle])]


def do_support(clause: Clause, german: VerbWords, form: str = "") -> Token:
    """The auxiliary "do" of questions and negations."""
    linked = [german.finite] if clause.modal else [german.lexical]
    if clause.tense == "perfect" and german.helper is not None:
        linked.append(german.helper)
    if clause.negation is not None:
        linked.append(clause.negation)
    form = form or english_do(clause.english_subject.agreement)
    return Token(form, possible=linked)


def modal_groups(
    clause: Clause, german: VerbWords, base: list[Token], support: bool
) -> list[Group]:
    """A modal and the infinitive."""
    assert clause.modal is not None and german.helper is not None
    third = clause.english_subject.agreement == "3sg"
    entry = clause.modal.inverted if support and clause.modal.inverted else clause.modal.english
    modal = [german.helper]
    groups = []
    for probability, words in synonyms(entry):
        to = Token("to", possible=[german.lexical])
        if words[0] == "are":
            be = Token(ENGLISH_BE[clause.english_subject.agreement], possible=modal)
            group = Group(probability, [be], [Token(words[1], modal), to, *base])
        elif words[-1] != "to":
            group = Group(probability, [Token(words[0], modal)], base)
        elif support:
            auxiliary = [do_support(clause, german)]
            group = Group(probability, auxiliary, [Token(words[0], modal), to, *base])
        else:
            form = {"want": "wants", "have": "has"}[words[0]] if third else words[0]
            group = Group(probability, [], [Token(form, modal), to, *base])
        groups.append(group)
    return groups

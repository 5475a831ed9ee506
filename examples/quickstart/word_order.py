"""The order of a clause on both sides.

German: verb second, first or last, with the rest of the verb at the end. Between them stand the
subject unless it comes first, pronouns, time, definite objects, place, indefinite objects; with
"nicht" the objects come before the time. English: subject, verb, objects, manner, place, time.
"""

from __future__ import annotations

from clause import Clause
from noun_phrases import NounPhrase
from phrases import NOTHING, Alt, Node, Phrase, Seq, Token, Word, one_of
from verbs import Group, VerbWords, english_groups, verb_words


def arrange(
    clause: Clause,
    order: str = "second",
    front: str = "",
    question: Phrase | None = None,
    inverted: bool = False,
    movable: bool = False,
) -> Phrase:
    """Put a clause in order.

    Args:
        order: of the German finite verb: "second", "first" (also after what another rule puts
            before the verb) or "last"
        front: what comes first in German with the verb in second place: "subject", "time",
            "place", "accusative" or "dative"
        question: the question word, first on both sides
        inverted: English has the auxiliary before the subject
        movable: English may have the time at the front or at the end
    """
    verb = verb_words(clause, final=order == "last")
    german = list(question.german) if question else []
    if front:
        german += front_words(clause, front)
    rest = [*middle(clause, front, extraposed=bool(verb.bracket)), *verb.bracket]
    german += [*rest, verb.finite] if order == "last" else [verb.finite, *rest]
    if verb.bracket and clause.accusative is not None:
        german += clause.accusative.relative
    core = english_core(clause, verb, inverted)
    if question is not None:
        core = Seq(question.english, core)
    return Phrase(german, with_adverbials(clause, core, front, movable))


def with_relative(phrase: NounPhrase) -> list[Word]:
    return [*phrase.german, *phrase.relative]


def front_words(clause: Clause, front: str) -> list[Word]:
    part = getattr(clause, front)
    return with_relative(part) if isinstance(part, NounPhrase) else part.german


def middle(clause: Clause, front: str, extraposed: bool) -> list[Word]:
    """The German words between the verb in second place and the end."""
    objects = [
        part
        for name, part in (("dative", clause.dative), ("accusative", clause.accusative))
        if part is not None and name != front
    ]
    time = [
        part for part in (clause.time, clause.frequency) if part is not None and front != "time"
    ]
    result = with_relative(clause.subject) if front != "subject" else []
    if clause.verb.frame == "likes" and front != "subject":
        # "weil meiner Schwester der Film gefällt": the other order could be a genitive.
        objects = []
        if clause.dative is not None and front != "dative":
            result = [*clause.dative.german, *result]
    pronouns = [word for part in objects if part.is_pronoun for word in part.german]
    # "Gestern hat uns der Arzt geholfen", but "gestern hat er uns geholfen".
    ahead = front not in ("", "subject") and not clause.subject.is_pronoun
    result = [*pronouns, *result] if ahead else [*result, *pronouns]
    objects = [part for part in objects if not part.is_pronoun]
    early = [part for part in objects if part is clause.dative or part.kind == "definite"]
    late = [part for part in objects if part not in early]

    def place_objects(parts: list[NounPhrase]) -> list[Word]:
        return [
            word for part in parts for word in (part.german if extraposed else with_relative(part))
        ]

    if clause.nicht is not None:
        result += place_objects(early)
        early = []
    for part in time:
        result += part.german
    result += place_objects(early)
    result += [word for word in (clause.nicht, clause.gern) if word is not None]
    for part in (clause.manner, clause.company, clause.place if front != "place" else None):
        result += part.german if part is not None else []
    result += place_objects(late)
    for part in (clause.benefit, clause.complement):
        result += part.german if part is not None else []
    return result


def english_core(clause: Clause, verb: VerbWords, inverted: bool) -> Node:
    """English from the subject, or the auxiliary of a question, to the objects."""
    groups = english_groups(clause, verb, inverted)
    branches = [(group.probability, english_order(clause, group, inverted)) for group in groups]
    return one_of(branches)


def english_order(clause: Clause, group: Group, inverted: bool) -> Node:
    """One verb group among the subject and the objects."""
    subject, negation = clause.english_subject.english, []
    auxiliary = group.auxiliary
    if clause.negation is not None:
        negation = [Token("not", [clause.negation])]
        if auxiliary[-1].text == "can" and not inverted:
            can = auxiliary[-1]
            auxiliary, negation = [Token("cannot", [*can.sure, clause.negation])], []
    first: list[Node] = [*auxiliary, subject] if inverted else [subject, *auxiliary]
    frequency = [clause.frequency.english] if clause.frequency else []
    verb, rest = group.main, []
    accusative = clause.accusative
    if clause.verb.particle and accusative is not None and accusative.is_pronoun:
        length = len(clause.verb.english.split("|")[0].split()) - 4
        verb, rest = verb[: len(verb) - length], verb[len(verb) - length :]
    return Seq(*first, *negation, *frequency, *verb, english_objects(clause), *rest)


def english_objects(clause: Clause) -> Node:
    dative, accusative = clause.dative, clause.accusative
    if clause.verb.frame == "likes":
        return clause.subject.english
    if dative is None or accusative is None:
        return Seq(*(part.english for part in clause.objects))
    double = Seq(dative.english, accusative.english)
    if accusative.relative:
        return double
    to = Token("to", possible=dative.german[:1])
    return Alt((0.7, double), (0.3, Seq(accusative.english, to, dative.english)))


def with_adverbials(clause: Clause, core: Node, front: str, movable: bool) -> Node:
    """Add the English adverbials after the core, or before it where that is possible."""
    parts = (clause.complement, clause.manner, clause.company, clause.benefit)
    core = Seq(core, *(part.english for part in parts if part is not None))
    place = clause.place.english if clause.place else NOTHING
    time = clause.time.english if clause.time else NOTHING
    if front == "place":
        core = Alt((0.6, Seq(core, place, time)), (0.4, Seq(place, core, time)))
    elif clause.time is None or not movable:
        core = Seq(core, place, time)
    elif clause.accusative is not None and clause.accusative.relative:
        core = Seq(time, core, place)
    else:
        ahead = 0.7 if front == "time" else 0.2
        if front != "time" and not clause.time_first:
            ahead = 0.0
        ends = Seq(core, place, time)
        core = Alt((ahead, Seq(time, core, place)), (1 - ahead, ends)) if ahead else ends
    return core

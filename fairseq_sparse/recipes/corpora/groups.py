"""Splits of a corpus in which many sentences have several translations: ``corpus split``."""

from __future__ import annotations

import random
import unicodedata
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from fairseq_sparse.errors import RecipeError
from fairseq_sparse.recipes.corpora.reading import (
    decode,
    in_step,
    keep_inputs,
    log,
    open_all,
    read_lines,
)

Pair = tuple[str, str]


def split_groups(
    source: Path,
    output: Path,
    languages: Sequence[str],
    valid: int,
    test: int,
    references: int = 1,
    seed: int = 1,
) -> None:
    """Split pairs by groups of translations, as ``corpus split`` describes.

    Where a group has fewer references, the first is repeated: BLEU and chrF stay as they are.
    """
    keep_inputs(output, source)
    paths = [source / f"train.{language}" for language in languages]
    sides = [decode(read_lines(path.parent, path.name), path) for path in paths]
    groups = find_groups([(first, second) for first, second in in_step(sides, paths)])
    if len(groups) <= valid + test:
        raise RecipeError(f"{paths[0]}: has {len(groups)} groups, too few to hold out")
    order = random.Random(seed).sample(range(len(groups)), valid + test)
    names = dict.fromkeys(order[:valid], "valid") | dict.fromkeys(order[valid:], "test")
    pairs: dict[str, list[Sequence[str]]] = {"train": [], "valid": [], "test": []}
    for number, group in enumerate(groups):
        split = names.get(number, "train")
        pairs[split] += _with_references(group, references) if split == "test" else group
    for split, rows in pairs.items():
        more = range(2, references + 1) if split == "test" else ()
        endings = [*languages, *(f"{languages[1]}.{number}" for number in more)]
        with open_all([output / f"{split}.{ending}" for ending in endings]) as handles:
            for row in rows:
                for handle, text in zip(handles, row, strict=True):
                    handle.write(text + "\n")
        log(f"{split}: {len(rows):,} {'sentences' if split == 'test' else 'pairs'}")


def find_groups(pairs: Sequence[Pair]) -> list[list[Pair]]:
    """Return the connected components of pairs, in the order of their first pairs.

    Sentences that differ only in case, punctuation or white space are taken for the same; empty
    ones join no pairs.
    """
    parents: dict[tuple[int, str], tuple[int, str]] = {}

    def root(node: tuple[int, str]) -> tuple[int, str]:
        while parents.setdefault(node, node) != node:
            parents[node] = node = parents[parents[node]]
        return node

    nodes = [(0, _words(source) or f"\n{number}") for number, (source, _) in enumerate(pairs)]
    for number, (node, (_, target)) in enumerate(zip(nodes, pairs, strict=True)):
        parents[root(node)] = root((1, _words(target) or f"\n{number}"))
    groups: dict[tuple[int, str], list[Pair]] = {}
    for node, pair in zip(nodes, pairs, strict=True):
        groups.setdefault(root(node), []).append(pair)
    return list(groups.values())


def _words(text: str) -> str:
    composed = unicodedata.normalize("NFC", text.casefold())
    return " ".join("".join(map(_letter_or_space, composed)).split()) or text.strip()


@cache
def _letter_or_space(character: str) -> str:
    # \w does not match marks, such as the vowels of Hindi.
    kind = unicodedata.category(character)[0]
    return character if kind in "LMN" or character == "_" else " "


def _with_references(group: Sequence[Pair], count: int) -> list[list[str]]:
    """Return each source sentence of a group with ``count`` references."""
    rows = []
    for sentence in dict.fromkeys(source for source, _ in group):
        own = [target for source, target in group if source == sentence]
        found = list(dict.fromkeys([*own, *(target for _, target in group)]))[:count]
        rows.append([sentence, *found, *found[:1] * (count - len(found))])
    return rows

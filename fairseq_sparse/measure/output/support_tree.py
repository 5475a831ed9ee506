"""The tree of all translations to which a sparse model gives nonzero probability (S2S, Fig. 1)."""

import heapq
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch

from fairseq_sparse.generation.exact_search import NextTokens
from fairseq_sparse.measure.translator import Translator

# Prefixes that are expanded at once: few, so that the most probable ones come first.
_AT_ONCE = 8
# A tree with so many nodes grows no further: each prefix of a dense model has the whole vocabulary.
_MOST_CREATED = 100_000
# Default depth limit of a tree: prefixes of this length can only end.
MAX_LEN = 200


def grow(
    next_tokens: NextTokens,
    word: Callable[[int], str],
    most_nodes: int = 1000,
    max_len: int = MAX_LEN,
) -> dict[str, Any]:
    """Expand the most probable prefixes until all are expanded, or *most_nodes* of them are, or the
    tree has become too large for the memory.

    Args:
        next_tokens: the distributions after the prefixes of one sentence's translations.
        word: gives the text of a token.
        most_nodes: largest number of prefixes to expand.
        max_len: prefixes of this length can only end.

    Returns:
        ``complete``: whether the tree has all translations of nonzero probability;
        ``translations``, the number of those in it, and ``mass``, the sum of their probabilities;
        ``eos``, the text of the token that ends them; and ``root``, the empty prefix. A node has
        the text of its last ``token``; the ``probability`` of that token, given those before it
        (for alpha-ReLU its raw value); ``total``, the product of the probabilities from the root;
        ``children``, the continuations of nonzero probability, most probable first; and
        ``expanded``, whether these are known. If not, a limit ended the tree there.
    """
    root = _node("", 1.0, 1.0)
    waiting = [(-1.0, 0, (), root)]
    totals = []
    created = expanded = cut = 0
    while waiting and expanded < most_nodes and created < _MOST_CREATED:
        width = min(_AT_ONCE, len(waiting), most_nodes - expanded)
        chosen = [heapq.heappop(waiting) for _ in range(width)]
        rows = next_tokens.log_probs([prefix for _, _, prefix, _ in chosen]).exp().cpu()
        expanded += width
        for (_, _, prefix, node), row in zip(chosen, rows, strict=True):
            node["expanded"] = True
            for token in row.argsort(descending=True)[: int((row > 0).sum())].tolist():
                p = row[token].item()
                child = _node(word(token), p, node["total"] * p)
                node["children"].append(child)
                created += 1
                if token == next_tokens.eos:
                    child["expanded"] = True
                    totals.append(child["total"])
                elif len(prefix) < max_len:
                    heapq.heappush(waiting, (-child["total"], created, (*prefix, token), child))
                else:
                    cut += 1
    return {
        "complete": not waiting and not cut,
        "translations": len(totals),
        "mass": math.fsum(totals),
        "eos": word(next_tokens.eos),
        "root": root,
    }


def trees_of(
    translator: Translator, sample: dict[str, Any], most_nodes: int
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the number in the data set, and the tree, of each sentence of a batch."""
    models, words = translator.models, translator.task.target_dictionary
    # Learned positions are limited, and the EOS that begins each prefix takes the first.
    max_len = min(MAX_LEN, *(model.max_decoder_positions() - 1 for model in models))
    with torch.no_grad():
        encoded = [model.encoder.forward_torchscript(sample["net_input"]) for model in models]
    for row, number in enumerate(sample["id"].tolist()):
        ends = (words.pad(), words.eos(), words.eos())
        next_tokens = NextTokens.of_sentence(models, encoded, row, *ends)
        yield number, grow(next_tokens, words.__getitem__, most_nodes, max_len)


def _node(token: str, probability: float, total: float) -> dict[str, Any]:
    return {
        "token": token,
        "probability": probability,
        "total": total,
        "expanded": False,
        "children": [],
    }

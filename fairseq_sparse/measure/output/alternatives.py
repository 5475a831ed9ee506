"""Alternatives at each step of a translation (Sparse Sequence-to-Sequence Models, Fig. 2).

A translation is given to the model token by token; at each step the tokens with a nonzero
probability are the alternatives to the one that is given.
"""

import math
from collections.abc import Iterable
from typing import Any

from fairseq.data import Dictionary
from torch import Tensor

from fairseq_sparse.generation.normalized_scores import refuse_nan
from fairseq_sparse.measure.translator import Translator, forced_steps, with_references

RAW_VALUES = "raw values of alpha_relu, which need not sum to 1"


def find_alternatives(
    translator: Translator,
    batches: Iterable[dict[str, Any]],
    subset: str,
    top: int,
    given: str = "reference",
) -> list[dict[str, Any]]:
    """Find the alternatives at each step of a translation of each sentence.

    Args:
        batches: fairseq's batches; :func:`with_best_translations` gives the model's translations.
        top: largest number of alternatives to list, the most probable ones.
        given: what the translations are.

    Returns:
        For each sentence, by its number: ``sentence``, ``name``, ``output``, ``subset``, ``given``,
        ``values`` (what the numbers are), ``source``, ``target`` (text), ``log_p`` of the target
        (None if it is impossible), and ``steps`` as :func:`describe_step` returns them.

    Raises:
        AnalysisError: there are no references.
    """
    words = translator.task.target_dictionary
    common = {
        "name": translator.name,
        "output": translator.describe_output(),
        "subset": subset,
        "given": given,
        "values": "probabilities" if translator.is_normalised else RAW_VALUES,
    }
    found = []
    for sample in with_references(batches, subset):
        target, sources = sample["target"], source_texts(translator, sample)
        steps: list[list[dict[str, Any]]] = [[] for _ in sources]
        log_p = [0.0] * len(sources)
        for part in forced_steps(translator.models, sample["net_input"], target, words.pad()):
            refuse_nan(part.log_p)
            rows = zip(part.sentence.tolist(), part.log_p.cpu(), part.token.tolist(), strict=True)
            for row, step_log_p, token in rows:
                steps[row].append(describe_step(step_log_p, token, words, top))
                log_p[row] += step_log_p[token].item()
        for row, (number, source) in enumerate(sources.items()):
            texts = {"source": source, "target": _text(words, target[row])}
            whole = log_p[row] if math.isfinite(log_p[row]) else None
            found.append(
                {"sentence": number, **common, **texts, "log_p": whole, "steps": steps[row]}
            )
    return sorted(found, key=lambda sentence: sentence["sentence"])


def describe_step(log_p: Tensor, token: int, words: Dictionary, top: int) -> dict[str, Any]:
    """Return the alternatives at one step.

    Args:
        log_p: log-probabilities of all tokens, ``[V]``.
        token: the given token.
        words: the target dictionary.
        top: as for :func:`find_alternatives`.

    Returns:
        ``token`` and its ``p``; ``nonzeros``, the number of tokens with p > 0, and ``prob_sum``,
        the sum of p; ``alternatives``: the most probable tokens with p > 0, in descending order,
        each with ``token``, ``p``, ``rank`` from 1 and ``given``. The given token is always listed,
        at the end if it is not one of the most probable, and with ``rank`` None if its p is 0.
        ``left_out``: the number of other tokens with p > 0, and ``left_out_p``, the sum of their p.
    """
    p = log_p.double().exp()
    nonzeros, total = int((log_p > -math.inf).sum()), p.sum().item()
    # Sorted, not topk: tied tokens come in the same order everywhere.
    order = log_p.sort(descending=True, stable=True).indices
    ranks = {index: rank for rank, index in enumerate(order[: min(top, nonzeros)].tolist(), 1)}
    if token not in ranks:
        possible = log_p[token] > -math.inf
        ranks[token] = int((order == token).nonzero()) + 1 if possible else None
    alternatives = [
        {"token": words[index], "p": p[index].item(), "rank": rank, "given": index == token}
        for index, rank in ranks.items()
    ]
    left_out = nonzeros - sum(entry["rank"] is not None for entry in alternatives)
    shown = sum(entry["p"] for entry in alternatives)
    return {
        "token": words[token],
        "p": p[token].item(),
        "nonzeros": nonzeros,
        "prob_sum": total,
        "alternatives": alternatives,
        "left_out": left_out,
        "left_out_p": max(0.0, total - shown) if left_out else 0.0,
    }


def source_texts(translator: Translator, sample: dict[str, Any]) -> dict[int, str]:
    """Return the source of each sentence of a batch, by the number of the sentence."""
    words = translator.task.source_dictionary
    rows = zip(sample["id"].tolist(), sample["net_input"]["src_tokens"], strict=True)
    return {number: _text(words, tokens) for number, tokens in rows}


def _text(words: Dictionary, tokens: Tensor) -> str:
    return " ".join(words[index] for index in tokens.tolist() if index != words.pad())

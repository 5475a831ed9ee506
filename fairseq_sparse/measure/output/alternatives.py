"""Alternatives at each step of a translation (Sparse Sequence-to-Sequence Models, Fig. 2).

A translation is given to the model token by token; at each step the tokens with a nonzero
probability are the alternatives to the one that is given.
"""

import math
from collections.abc import Iterable
from typing import Any

from fairseq.data import Dictionary
from torch import Tensor

from fairseq_sparse.errors import AnalysisError
from fairseq_sparse.measure.translator import Translator, forced_steps, with_best_translations

RAW_VALUES = "raw values of alpha_relu, which need not sum to 1"


def find_alternatives(
    translator: Translator,
    batches: Iterable[dict[str, Any]],
    subset: str,
    most: int,
    beam: int | None = None,
) -> list[dict[str, Any]]:
    """Find the alternatives at each step of a translation of each sentence.

    Args:
        translator: the models.
        batches: fairseq's batches.
        subset: the name of the data.
        most: largest number of alternatives to list, the most probable ones.
        beam: give the model its own best translation, found by a beam of this size; None: give
            it the reference.

    Returns:
        For each sentence, by its number: ``sentence``, ``name``, ``output``, ``subset``, ``given``,
        ``values`` (what the numbers are), ``source``, ``target`` (text), ``log_p`` of the target
        (None if it is impossible), and ``steps`` as :func:`describe_step` returns them.

    Raises:
        AnalysisError: there are no references.
    """
    words = translator.task.target_dictionary
    source_words = translator.task.source_dictionary
    common = {
        "name": translator.name,
        "output": translator.describe_output(),
        "subset": subset,
        "given": f"best translation, beam {beam}" if beam else "reference",
        "values": "probabilities" if translator.is_normalised else RAW_VALUES,
    }
    found = []
    if beam:
        batches = with_best_translations(translator, batches, beam)
    for sample in batches:
        net_input, target = sample["net_input"], sample["target"]
        if target is None:
            raise AnalysisError(f"--subset {subset}: there are no references; use --hypothesis")
        log_p, steps = _describe_targets(translator, net_input, target, most)
        for row, number in enumerate(sample["id"].tolist()):
            texts = {
                "source": _text(source_words, net_input["src_tokens"][row]),
                "target": _text(words, target[row]),
            }
            whole = log_p[row] if math.isfinite(log_p[row]) else None
            found.append(
                {"sentence": number, **common, **texts, "log_p": whole, "steps": steps[row]}
            )
    return sorted(found, key=lambda sentence: sentence["sentence"])


def describe_step(log_p: Tensor, token: int, words: Dictionary, most: int) -> dict[str, Any]:
    """Return the alternatives at one step.

    Args:
        log_p: log-probabilities of all tokens, ``[V]``.
        token: the given token.
        words: the target dictionary.
        most: largest number of alternatives to list.

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
    ranks = {index: rank for rank, index in enumerate(order[: min(most, nonzeros)].tolist(), 1)}
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


def as_text(sentence: dict[str, Any]) -> str:
    """Format one sentence of :func:`find_alternatives` for a terminal."""
    lines = [heading(sentence), f"source  {sentence['source']}", f"target  {sentence['target']}"]
    for number, step in enumerate(sentence["steps"], start=1):
        lines.append(f"\n{number:>3}  {summary(step)}")
        width = max(len(entry["token"]) for entry in step["alternatives"])
        for position, entry in enumerate(step["alternatives"], start=1):
            note = remark(entry, position)
            mark = " " if not note else "!" if entry["rank"] is None else ">"
            value = number_text(entry["p"])
            lines.append(f"   {mark} {entry['token']:<{width}}  {value:<5}  {note}".rstrip())
        if step["left_out"]:
            lines.append(f"     {left_out_text(step)}")
    return "\n".join(lines)


def heading(sentence: dict[str, Any]) -> str:
    """Return a heading that names the sentence, the model and the kind of numbers."""
    log_p = sentence["log_p"]
    whole = "p = 0" if log_p is None else f"log p = {log_p:.2f}"
    model = sentence["name"]
    if model != sentence["output"]:
        model += f", {sentence['output']}"
    return (
        f"Sentence {sentence['sentence']} of {sentence['subset']}, {model}, "
        f"given its {sentence['given']}: {whole}; {sentence['values']}"
    )


def summary(step: dict[str, Any]) -> str:
    """Return the number of alternatives at a step, as text."""
    count = step["nonzeros"]
    text = f"{count:,} {'token' if count == 1 else 'tokens'} with p > 0"
    return text if abs(step["prob_sum"] - 1) < 1e-3 else f"{text}, Σp = {step['prob_sum']:.3f}"


def remark(entry: dict[str, Any], position: int) -> str:
    """Return a remark on the given token, and an empty text for any other alternative."""
    if not entry["given"]:
        return ""
    if entry["rank"] is None:
        return "given, impossible"
    return "given" if entry["rank"] == position else f"given, rank {entry['rank']:,}"


def left_out_text(step: dict[str, Any]) -> str:
    """Return the number of alternatives that are not listed, as text."""
    return f"{step['left_out']:,} more, together {number_text(step['left_out_p'])}"


def number_text(p: float) -> str:
    """Format a probability so that only an exact 0 or 1 reads as 0 or 1."""
    if p == 0:
        return "0"
    if 0.9995 <= p < 1:
        return ">.999"
    return f"{p:.3f}" if p >= 0.001 else f"{p:.0e}"


def _describe_targets(
    translator: Translator, net_input: dict[str, Tensor], target: Tensor, most: int
) -> tuple[list[float], list[list[dict[str, Any]]]]:
    """Return the log-probability and the steps of each target of a batch."""
    words = translator.task.target_dictionary
    described: list[list[dict[str, Any]]] = [[] for _ in target]
    log_p = [0.0] * len(target)
    for steps in forced_steps(translator.models, net_input, target, words.pad()):
        rows = zip(steps.sentence.tolist(), steps.log_p.cpu(), steps.token.tolist(), strict=True)
        for row, step_log_p, token in rows:
            described[row].append(describe_step(step_log_p, token, words, most))
            log_p[row] += step_log_p[token].item()
    return log_p, described


def source_texts(translator: Translator, sample: dict[str, Any]) -> dict[int, str]:
    """Return the source of each sentence of a batch, by the number of the sentence."""
    words = translator.task.source_dictionary
    rows = zip(sample["id"].tolist(), sample["net_input"]["src_tokens"], strict=True)
    return {number: _text(words, tokens) for number, tokens in rows}


def _text(words: Dictionary, tokens: Tensor) -> str:
    return " ".join(words[index] for index in tokens.tolist() if index != words.pad())

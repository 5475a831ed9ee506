"""Attention and alternatives of a model in single sentences."""

import base64
from collections.abc import Iterable
from typing import Any

import numpy as np
from torch import Tensor

from fairseq_sparse.measure.attention.attention_statistics import (
    attention_kind,
    find_attention,
    head_count,
)
from fairseq_sparse.measure.attention.forced_attention import forced_attention
from fairseq_sparse.measure.output.alternatives import find_alternatives
from fairseq_sparse.measure.translator import Translator
from fairseq_sparse.modules.attention_kinds import ATTENTION_KINDS

# Largest number of alternatives listed per step.
TOP = 8
# The smallest number of float16 that is not 0, and its largest.
_TINY, _LARGEST = np.float16(2**-24), np.finfo(np.float16).max


def describe_sentences(
    translator: Translator, batches: Iterable[dict[str, Any]], subset: str
) -> dict[str, Any]:
    """Return the attention and the alternatives of a model, teacher-forced on the references.

    Returns:
        ``output``; ``vocabulary``; ``normalised``, whether Σp is 1; ``places``: for each place of
        attention ``kinds`` and ``sums_to_one``, a list over layers, ``layers`` and ``heads``;
        ``sentences``: for each, by its number, ``number``, the tokens of ``source`` and ``target``,
        ``attention``: for each place the weights as :func:`encode` packs them, and ``steps`` as
        ``describe_step`` gives them.

    Raises:
        AnalysisError: there are no references.
        ValueError: attention weights are not finite.
    """
    samples = list(batches)
    found = find_alternatives(translator, samples, subset, TOP)
    sentences = {
        entry["sentence"]: {
            "number": entry["sentence"],
            "source": entry["source"].split(" "),
            "target": entry["target"].split(" "),
            "attention": {},
            "steps": entry["steps"],
        }
        for entry in found
    }
    places = _places(translator)
    if places:
        padding = translator.task.source_dictionary.pad()
        for sample in samples:
            for pair in forced_attention(translator.model, sample, padding, list(places)):
                packed = {place: encode(weights) for place, weights in pair.weights.items()}
                sentences[pair.number]["attention"] = packed
    return {
        "output": translator.describe_output(),
        "vocabulary": translator.vocabulary,
        "normalised": translator.is_normalised,
        "places": places,
        "sentences": [sentences[number] for number in sorted(sentences)],
    }


def encode(weights: Tensor) -> str:
    """Return weights as base64 of little-endian float16, row by row.

    0 stays 0 and nothing else becomes 0: sizes below the smallest number of float16, 6e-8, are
    raised to it. Above 6e-5, three digits are kept.

    Raises:
        ValueError: weights are not finite.
    """
    exact = weights.numpy()
    if not np.isfinite(exact).all():
        raise ValueError(
            "attention weights are not finite: the model's parameters are NaN or infinite"
        )
    half = exact.clip(-_LARGEST, _LARGEST).astype("<f2")
    vanished = (half == 0) & (exact != 0)
    half[vanished] = np.copysign(_TINY, exact[vanished])
    return base64.b64encode(half.tobytes()).decode("ascii")


def _places(translator: Translator) -> dict[str, dict[str, Any]]:
    places = {}
    for place, modules in find_attention(translator.model).items():
        kinds = [attention_kind(module) for module in modules]
        if kinds:
            places[place] = {
                "kinds": kinds,
                "layers": len(kinds),
                "heads": head_count(modules[0]),
                "sums_to_one": [ATTENTION_KINDS[kind].sums_to_one for kind in kinds],
            }
    return places

"""Temperatures, and truncations of softmax, that let in a wanted share of gold tokens.

A gold token enters the support of a sparse output at one temperature and stays in it at all higher
ones. A quantile of these temperatures over a validation set is the temperature at which a share of
gold tokens is possible; top-p, min-p and epsilon truncation have such limits, too.

The promise is that of conformal risk control (Angelopoulos, Bates, Fisch, Lei, Schuster 2022,
arXiv 2208.02814), with the missed tokens of a sentence as its loss. Suppose that the validation
sentences and a new one are exchangeable, as sentences drawn from one source in any order are. Given
that the new one is not the longest of them all, the expected number of its gold tokens that are
missed is at most ``1 - coverage`` times the expected number of its gold tokens. If each sentence is
one token, this is split conformal prediction. Nothing is promised for a single sentence or token,
as the tokens of a sentence are not exchangeable; nor for text from elsewhere; nor for search, which
continues the model's own words and not those of the reference.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor

from fairseq_sparse.errors import AnalysisError
from fairseq_sparse.generation.normalized_scores import refuse_nan
from fairseq_sparse.measure.output.gold_by_frequency import WordClasses
from fairseq_sparse.measure.text.word_frequency import LIMITS
from fairseq_sparse.measure.translator import Translator, forced_steps, with_references

# Digits of a temperature after the point; it is rounded up.
DIGITS = 4


@dataclass(frozen=True)
class TokenSets:
    """A family of growing sets of tokens, such as the supports by temperature.

    Attributes:
        gold: computes from logits ``[rows, V]`` and tokens ``[rows]`` the limit from which on each
            token is in the set.
        inside: returns for logits a function that computes from a limit the mask of the tokens in
            the set, ``[rows, V]``.
        usable: turns a limit into one that a user can give.
        parameter: turns such a limit into the usual parameter of the family.
    """

    gold: Callable[[Tensor, Tensor], Tensor]
    inside: Callable[[Tensor], Callable[[float], Tensor]]
    usable: Callable[[float], float] = float
    parameter: Callable[[float], float] = float


def _truncation(score: Callable[[Tensor], Tensor], **how: Callable[[float], float]) -> TokenSets:
    """Return the sets of the tokens whose score does not exceed the limit."""
    return TokenSets(
        lambda logits, token: score(logits).gather(1, token.unsqueeze(1)).squeeze(1),
        lambda logits: score(logits).__le__,
        **how,
    )


def _mass_before(logits: Tensor) -> Tensor:
    """Return the softmax probability of all tokens that are sorted before each one."""
    p, order = logits.softmax(1).sort(dim=1, descending=True)
    before = p.cumsum(1, dtype=torch.double) - p
    return torch.empty_like(before).scatter_(1, order, before)


def _below_largest(logits: Tensor) -> Tensor:
    return logits.amax(1, keepdim=True) - logits


def _surprisal(logits: Tensor) -> Tensor:
    # The most probable token is always inside, as in sampling.
    largest = logits == logits.amax(1, keepdim=True)
    return -logits.log_softmax(1).masked_fill(largest, 0.0)


# --sampling-topp 0 would be no truncation.
LEAST_TOP_P = 1e-6
# Truncations of the softmax of the logits, as fairseq-generate samples with them.
TRUNCATIONS = {
    "top-p": _truncation(_mass_before, usable=partial(max, LEAST_TOP_P)),
    "min-p": _truncation(_below_largest, parameter=lambda limit: math.exp(-limit)),
    "epsilon": _truncation(_surprisal, parameter=lambda limit: math.exp(-limit)),
}


def round_up(temperature: float) -> float:
    """Return a temperature of at least 1 that is larger, with few digits."""
    if math.isinf(temperature):
        return temperature
    return max(1.0, (math.floor(temperature * 10**DIGITS) + 1) / 10**DIGITS)


def sets_of(translator: Translator) -> dict[str, TokenSets]:
    """Return the sets that a model can be asked for: of a dense one, only truncations."""
    if not translator.is_sparse:
        return TRUNCATIONS
    transform = translator.projections[0].transform

    def support(logits: Tensor) -> Callable[[float], Tensor]:
        return lambda limit: transform.probs(transform.at_temperature(logits, limit)) > 0

    temperature = TokenSets(transform.entry_temperature, support, usable=round_up)
    return {"temperature": temperature, **TRUNCATIONS}


def conformal_limit(sentences: Sequence[Tensor], coverage: float) -> float:
    """Return the least limit that covers enough tokens, the longest sentence counted as missed.

    The promise is in the module's docstring.

    Args:
        sentences: the limits of the tokens of each sentence.
        coverage: the wanted share of tokens, in (0, 1).

    Returns:
        a token is covered if its own limit is not larger; infinite if no finite one is enough.
    """
    given = sorted((part.tolist() for part in sentences if len(part)), key=_length_then_content)
    rest = sorted(value for part in given[:-1] for value in part)
    wanted = math.ceil(coverage * sum(map(len, given)))
    return rest[wanted - 1] if 0 < wanted <= len(rest) else math.inf


def _length_then_content(values: list[float]) -> tuple[int, list[float]]:
    # Not by the order in which sentences were read, so that the longest is that of the whole set.
    return len(values), sorted(values)


def calibrate(
    translator: Translator,
    batches: Callable[[str], Iterable[dict[str, Any]]],
    validation: str,
    subset: str,
    coverages: Sequence[float],
    classes: Optional[WordClasses] = None,
) -> list[dict[str, Any]]:
    """Find the sets that cover each wanted share of gold, and measure them on another part.

    Args:
        batches: returns fairseq's batches of a part of the data.
        validation, subset: the parts to find the limits on, and to measure the sets on.
        coverages: the wanted shares.
        classes: if given, what each frequency class needs is found, too.

    Returns:
        For each kind of sets and each coverage ``sets``, ``wanted``, the ``parameter``, and on
        ``subset`` the share of gold ``covered`` and the mean ``size`` of a set. With *classes*,
        ``by_class`` has for each class ``least``, ``most``, the ``tokens`` of the validation set,
        the ``parameter`` that covers the wanted share of the class itself (None if the class has
        too few tokens for the promise), and the share that the row's parameter has ``covered`` of
        the class on ``subset`` (None without tokens).

    Raises:
        AnalysisError: there are no references, too few tokens, or the model is an ensemble.
        ValueError: a logit is NaN.
    """
    kinds = sets_of(translator)
    scores: dict[str, list[Tensor]] = {name: [] for name in kinds}
    numbers, sentence = [], []
    for steps in _gold_steps(translator, batches(validation), validation, classes):
        for name, kind in kinds.items():
            scores[name].append(kind.gold(steps.logits, steps.token).cpu())
        numbers.append(steps.of_class)
        sentence.append(steps.sentence)
    lengths = torch.cat(sentence).bincount().tolist()
    classes_of = torch.cat(numbers).split(lengths)
    sentences = {name: torch.cat(parts).split(lengths) for name, parts in scores.items()}
    rows = []
    for name, kind in kinds.items():
        for coverage in coverages:
            found = partial(_limit, kind, coverage=coverage)
            limit = found(sentences[name])
            if math.isinf(limit):
                count = sum(lengths)
                raise AnalysisError(
                    f"--coverage {coverage:g}: {count} tokens of {validation} are too few, or as "
                    "many are impossible at any temperature; ask for less"
                )
            row = {"sets": name, "wanted": coverage}
            if classes:
                parts = [
                    [
                        scores[of_class == number]
                        for scores, of_class in zip(sentences[name], classes_of, strict=True)
                    ]
                    for number in range(len(LIMITS))
                ]
                needed = list(map(found, parts))
                row["by_class"] = [
                    {
                        "least": least,
                        "most": most,
                        "tokens": sum(map(len, part)),
                        "parameter": kind.parameter(one) if math.isfinite(one) else None,
                    }
                    for (least, most), part, one in zip(LIMITS, parts, needed, strict=True)
                ]
            rows.append({**row, "limit": limit, "parameter": kind.parameter(limit)})
    _measure(translator, batches(subset), subset, classes, kinds, rows)
    return rows


def _limit(kind: TokenSets, sentences: Sequence[Tensor], coverage: float) -> float:
    return kind.usable(conformal_limit(sentences, coverage))


def _measure(translator, batches, subset, classes, kinds, rows) -> None:
    """Add to the rows what their sets cover on a part of the data, and how large they are."""
    inside: list[list[Tensor]] = [[] for _ in rows]
    sizes: list[list[Tensor]] = [[] for _ in rows]
    of_class = []
    for steps in _gold_steps(translator, batches, subset, classes):
        of_class.append(steps.of_class)
        masks = {name: kind.inside(steps.logits) for name, kind in kinds.items()}
        for row, covered, size in zip(rows, inside, sizes, strict=True):
            mask = masks[row["sets"]](row["limit"])
            covered.append(mask.gather(1, steps.token.unsqueeze(1)).squeeze(1).cpu())
            size.append(mask.sum(1).cpu())
    numbers = torch.cat(of_class)
    for row, covered, size in zip(rows, inside, sizes, strict=True):
        every = torch.cat(covered).double()
        row |= {"covered": every.mean().item(), "size": torch.cat(size).double().mean().item()}
        del row["limit"]
        for number, part in enumerate(row.get("by_class", [])):
            of_part = every[numbers == number]
            part["covered"] = of_part.mean().item() if len(of_part) else None


class _GoldSteps(NamedTuple):
    """Some teacher-forced steps: ``logits`` [steps, V]; gold's ``token``, the number ``of_class``
    (0 without classes) and that of its ``sentence`` in the order of reading, ``[steps]``."""

    logits: Tensor
    token: Tensor
    of_class: Tensor
    sentence: Tensor


def _gold_steps(translator, batches, subset, classes) -> Iterator[_GoldSteps]:
    model, padding = translator.model, translator.task.target_dictionary.pad()
    sentences = 0
    for sample in with_references(batches, subset):
        rows = [row[row != padding] for row in sample["target"].cpu()]
        numbers = torch.cat([classes.classify(row)[0] if classes else row * 0 for row in rows])
        start = 0
        for steps in forced_steps([model], sample["net_input"], sample["target"], padding):
            logits = steps.log_p if steps.logits is None else steps.logits
            refuse_nan(logits)
            of_class = numbers[start : start + len(logits)]
            yield _GoldSteps(logits, steps.token, of_class, sentences + steps.sentence.cpu())
            start += len(logits)
        sentences += len(rows)
    if not sentences:
        raise AnalysisError(f"{subset}: no sentence was counted")

"""How often the empty translation is the most probable one: Table 2 of Speeding Up Entmax.

Stahlberg and Byrne (2019) found that a softmax model often gives the empty string a higher
probability than anything that beam search finds. The probability of the empty string is that of EOS
as the first token; it is compared with the highest probability, EOS included, of all translations
that the beam finds. The list is ranked by scores divided by the length, so this need not be the
probability of its first one. A sparse model can give the empty string probability 0.
"""

from collections.abc import Iterable
from typing import Any, Optional

import torch
from torch import Tensor

from fairseq_sparse.errors import AnalysisError
from fairseq_sparse.generation.normalized_scores import refuse_nan
from fairseq_sparse.measure.translator import Translator, score_targets, search


def scores_to_compare(translator: Translator) -> dict[str, Translator]:
    """Return the scores for comparing translations: p and, if Σp need not be 1, p / Σp.

    Each score comes with the translator that computes it.
    """
    scores = {"p": translator}
    if not translator.is_normalised:
        scores["p / Σp"] = translator.normalised()
    return scores


def count_empty_translations(
    translator: Translator, batches: Iterable[dict[str, Any]], beam: int
) -> dict[str, Any]:
    """Compare the empty translation with the most probable one of the beam, for every sentence.

    The search never ends before the first word (``--min-len 1``): it cannot find the empty one.

    Returns:
        The result of :func:`compare`.

    Raises:
        AnalysisError: there are no sentences.
        ValueError: a probability is NaN.
    """
    eos = torch.tensor([translator.task.target_dictionary.eos()])
    empty, found = [], []
    for sample, hypotheses in search(translator, batches, beam, nbest=beam):
        empty.append(score_targets(translator, sample["net_input"], [eos] * len(hypotheses)))
        found.append(torch.stack([max(map(_log_p, hypos)) for hypos in hypotheses]))
    if not empty:
        raise AnalysisError("no sentence was translated")
    return compare(torch.cat(empty), torch.cat(found))


def compare(empty: Tensor, found: Tensor) -> dict[str, Any]:
    """Count the sentences whose empty translation is the more probable one.

    Args:
        empty: log-probabilities of the empty translation, ``[sentences]``.
        found: those of the most probable translation found; -inf where none was.

    Returns:
        ``sentences``, their number; ``empty_is_best``, the share with ``empty > found``;
        ``empty_is_impossible``, the share with p(empty) = 0; ``nothing_found``, the share without a
        complete translation; ``log_p_empty`` and ``log_p_found``, the means of the finite values,
        or None if all are infinite.

    Raises:
        ValueError: a log-probability is NaN.
    """
    refuse_nan(torch.stack([empty, found]))
    return {
        "sentences": len(empty),
        "empty_is_best": _share(empty > found),
        "empty_is_impossible": _share(empty.isneginf()),
        "nothing_found": _share(found.isneginf()),
        "log_p_empty": _finite_mean(empty),
        "log_p_found": _finite_mean(found),
    }


def _log_p(hypothesis: dict[str, Any]) -> Tensor:
    """Return the log-probability of a complete hypothesis, and -inf for an incomplete one."""
    if hypothesis.get("incomplete", False):
        return torch.tensor(float("-inf"), dtype=torch.float64)
    return hypothesis["positional_scores"].double().sum().cpu()


def _share(condition: Tensor) -> float:
    return condition.double().mean().item()


def _finite_mean(values: Tensor) -> Optional[float]:
    finite = values[~values.isneginf()]
    return finite.mean().item() if len(finite) else None

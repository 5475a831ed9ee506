"""Means and standard deviations of attention measures over several seeds of a model."""

from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from fairseq_sparse.errors import AnalysisError

_PARTS = ("attention", "shuffled")
_OF_ONE_SEED = ("checkpoint", "by_previous")


def group_by_name(results: Sequence[Any], names: Sequence[str]) -> dict[str, list[Any]]:
    """Return the results of the models with each name, which are seeds of one model."""
    groups: dict[str, list[Any]] = {}
    for result, name in zip(results, names, strict=True):
        groups.setdefault(name, []).append(result)
    return groups


def average_seeds(
    results: Sequence[Mapping[str, Any]], names: Sequence[str]
) -> dict[str, Mapping[str, Any]]:
    """Return the numbers of each model by its name; models with one name are averaged.

    Args:
        results: of ``fairseq-sparse analyze attention``, with ``attention`` and perhaps
            ``shuffled``, as from :meth:`AttentionStatistics.rates`.
        names: of each model; seeds of one model have the same name.

    Returns:
        For a name with several seeds, the same structure with means. Each place and each layer has,
        under ``deviation``, the sample standard deviations of its numbers over the seeds. Single
        heads are left out, because head 2 of one seed does not correspond to head 2 of another.
        ``seeds`` holds the results of the seeds.

    Raises:
        AnalysisError: seeds differ in places, layers or kinds of attention.
    """
    models: dict[str, Mapping[str, Any]] = {}
    for name, group in group_by_name(results, names).items():
        models[name] = group[0]
        if len(group) > 1:
            shared = {key: x for key, x in group[0].items() if key not in _OF_ONE_SEED}
            parts = {part: [seed[part] for seed in group] for part in _PARTS if part in shared}
            means = {part: mean_of(values) for part, values in parts.items()}
            models[name] = {**shared, **means, "seeds": group}
    return models


def mean_of(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Average all floating-point numbers of nested results of the same shape.

    Returns:
        The same shape without single heads. A mapping with numbers has their standard deviations
        under ``deviation``, if there are several results.

    Raises:
        AnalysisError: the results differ in shape, or in a value that is not floating-point.
    """
    result: dict[str, Any] = {}
    deviation: dict[str, Any] = {}
    if any(part.keys() != parts[0].keys() for part in parts):
        raise AnalysisError("seeds of one model must have the same attention in the same places")
    for name in parts[0]:
        values = [part[name] for part in parts]
        if name == "heads" and len(set(map(len, values))) > 1:
            raise AnalysisError("seeds of one model must have the same number of heads")
        if name in ("heads", "best_head"):
            continue
        if isinstance(values[0], (str, int)):
            if len(set(values)) > 1:
                different = ", ".join(map(str, values))
                raise AnalysisError(f"seeds of one model, but their {name} is {different}")
            result[name] = values[0]
        elif isinstance(values[0], list):
            if len(set(map(len, values))) > 1:
                raise AnalysisError("seeds of one model must have the same number of layers")
            result[name] = [mean_of(several) for several in zip(*values, strict=True)]
        elif isinstance(values[0], Mapping):
            result[name] = mean_of(values)
        else:
            result[name] = fmean(values)
            if len(values) > 1:
                deviation[name] = stdev(values)
    return {**result, "deviation": deviation} if deviation else result

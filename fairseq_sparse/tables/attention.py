"""Tables of the attention: zeros, null attention, diversity of the heads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Results = Mapping[str, Mapping[str, Any]]
Table = tuple[list[str], list[list[object]]]


def with_deviation(part: Mapping[str, Any], name: str, digits: int, factor: float = 1) -> str:
    """Format a number, with its standard deviation over the seeds if there are several."""
    if name not in part:
        return "-"
    cell = f"{factor * part[name]:.{digits}f}"
    if "deviation" in part:
        cell += f" ± {factor * part['deviation'][name]:.{digits}f}"
    return cell


def attention_table(results: Results) -> Table:
    """Return the header and the rows for results of ``fairseq-sparse analyze attention --json`` by
    model: first the means of each place, then its layers."""
    shuffled = any("shuffled" in result for result in results.values())
    header = ["model", "place", "layer", "attention", "sparsity rate (%)"]
    header += ["nonzeros", "sum of weights"]
    header += ["null rate (%)", "variance", "of layer attention (%)"]
    header += ["shuffled: null rate (%)", "variance"] if shuffled else []
    header += ["diversity (nats)", "on the first (%)", "on EOS (%)"]

    def nulls(part: Mapping[str, Any]) -> list[str]:
        return [with_deviation(part, "null", 2, 100), with_deviation(part, "null_variance", 4)]

    rows = []
    for model, result in results.items():
        for place, number, part in _parts(result):
            other = result.get("shuffled", {}).get(place, {})
            if number != "mean" and other:
                other = other["layers"][number - 1]
            rows.append(
                [model, place, number, kinds_of(part)]
                + [with_deviation(part, "sparsity", 2, 100)]
                + [with_deviation(part, name, 2) for name in ("nonzeros", "sum")]
                + [*nulls(part), with_deviation(part, "layer_null", 2, 100)]
                + [*(nulls(other) if shuffled else []), with_deviation(part, "diversity", 3)]
                + [with_deviation(part, name, 2, 100) for name in ("first", "eos")]
            )
    return header, rows


def exponent_table(results: Results) -> Table:
    """Return the header and the rows for the diversities of weights that do not sum to 1; no rows
    if there are none."""
    found = [
        (model, place, number, part["diversity_by_exponent"])
        for model, result in results.items()
        for place, number, part in _parts(result)
        if "diversity_by_exponent" in part
    ]
    names = [key for *_, values in found for key in values if key != "deviation"]
    exponents = list(dict.fromkeys(names))
    header = ["model", "place", "layer", *(f"diversity, exponent {x}" for x in exponents)]
    rows = [
        [model, place, number, *(with_deviation(values, x, 3) for x in exponents)]
        for model, place, number, values in found
    ]
    return header, rows


def previous_table(results: Mapping[str, Mapping[str, Any]]) -> Table:
    """Return the header and the rows for null rates of each cross-attention head after each word or
    tag: results of ``Measurements.by_previous``, by model."""
    names = list(
        dict.fromkeys(entry["name"] for found in results.values() for entry in found["previous"])
    )
    rows: list[list[object]] = []
    for model, found in results.items():
        queries = {entry["name"]: entry["queries"] for entry in found["previous"]}
        rows.append([model, "", "queries", found["queries"], *(queries.get(x, "-") for x in names)])
        for number, layer in enumerate(found["layers"], start=1):
            for head, part in enumerate(layer["heads"], start=1):
                after = part["null_after"]
                cells = [f"{100 * after[x]:.2f}" if x in after else "-" for x in names]
                rows.append([model, number, head, f"{100 * part['null']:.2f}", *cells])
    return ["model", "layer", "head", "null rate (%)", *(f"after {x}" for x in names)], rows


def precision_table(found: Mapping[str, Any]) -> Table:
    """Return the header and the rows for a result of ``evaluate`` on a ranking by null rate."""
    chance = found["chance"]
    rows = [
        [f"precision at {part['at']}", part["value"], chance["precision"]]
        for part in found["precision"]
    ]
    rows.append(["average precision", found["average_precision"], chance["average_precision"]])
    cells = [[name, *(f"{100 * value:.1f}" for value in values)] for name, *values in rows]
    return ["", "ranking (%)", "chance (%)"], cells


def kinds_of(part: Mapping[str, Any]) -> str:
    """Return the kinds of attention of a layer, or of the layers of a place."""
    return ", ".join(dict.fromkeys(layer["attention"] for layer in part.get("layers", [part])))


def _parts(result: Mapping[str, Any]) -> Iterator[tuple[str, Any, Mapping[str, Any]]]:
    """Yield place, layer and numbers: first the means, then each layer."""
    for place, part in result["attention"].items():
        yield place, "mean", part
    for place, part in result["attention"].items():
        for number, layer in enumerate(part["layers"], start=1):
            yield place, number, layer

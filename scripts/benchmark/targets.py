"""Targets of the benchmarks: limits on the ratios that they measure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

from benchmark import attention, decoding, harness, linear_loss, losses, training_step

# Time as a ratio to F.cross_entropy, given logits.
LOSSES = {
    "cpu": {
        "alpha_relu_loss": 0.5,
        "entmax_loss, 1.5": 1.0,
        "entmax_loss, 2": 1.0,
        "entmax_loss, 1.25": 2.0,
        "entmax_loss, 1.75": 2.0,
    },
    "cuda": {"alpha_relu_loss": 0.6, "entmax_loss, 1.5": 1.0},
}
# Speed-up of 1.5-entmax over the package `entmax`.
PACKAGE = {losses.PARTIAL: 3.0, losses.SORT: 15.0, losses.BISECTION: 40.0}
# Time, and memory, as a ratio to F.linear and F.cross_entropy.
LAYERS = {"linear_alpha_relu_loss": 0.5, "linear_entmax_loss, 1.5": 0.6}
LAYER_MEMORY = 0.3
# Tokens a second as a ratio to the stock model.
TRAINING = {
    "alpha_relu": 1.35,
    "entmax15": 1.2,
    "alpha_relu+rela_g": 1.35,
    "entmax15+rela_g": 1.2,
}
# Sentences a second as a ratio to softmax.
DECODING = 1.0
# On a GPU: time of the output layer with trained support, as a ratio to the fastest layer with
# cross-entropy; speed of sparse attention, as a ratio to PyTorch's softmax attention, up to
# SHORT_LENGTH and (1.0) beyond it.
BEST_PEER = 0.5
SPARSE_ATTENTION = ("rela_g", "entmax15")
SHORT_LENGTH, SHORT_ATTENTION = 4096, 1 / 1.2


@dataclass(frozen=True)
class Target:
    """One figure and its limit.

    Attributes:
        point: the measured quantity.
        what: the case: sizes, dtype or model.
        limit: the value to reach.
        at_least: whether the limit is a lower bound; otherwise it is an upper bound.
        measured: median and quartiles; None if there is no measurement.
    """

    point: str
    what: str
    limit: float
    at_least: bool
    measured: tuple[float, float, float] | None

    @property
    def reached(self) -> bool:
        if self.measured is None:
            return False
        return self.measured[0] >= self.limit if self.at_least else self.measured[0] <= self.limit

    def cells(self) -> list[str]:
        """Return a row of a table."""
        limit = f"{'≥' if self.at_least else '≤'} {self.limit:.2f}"
        if self.measured is None:
            return [self.point, self.what, limit, "-", "not measured"]
        median, lower, upper = self.measured
        found = f"{median:.2f} ({lower:.2f}-{upper:.2f})"
        return [self.point, self.what, limit, found, "yes" if self.reached else "no"]


HEADER = ["point", "what", "target", "measured (quartiles)", "reached"]


def targets(contents: Iterable[dict]) -> list[Target]:
    """Return the targets of all benchmarks whose records are given."""
    found: list[Target] = []
    for content in contents:
        rule = RULES.get(content["benchmark"])
        if rule:
            device = "cpu" if content["options"]["device"] == "cpu" else "cuda"
            found += rule(content["results"], device)
    return found


def loss_targets(results: list[dict], device: str) -> Iterator[Target]:
    results = [result for result in results if result["part"] == "loss"]
    for (dtype, rows, vocabulary), group in grouped(results, "dtype", "rows", "vocabulary"):
        by_name = {result["name"]: result for result in group}
        label = f"[{rows}, {vocabulary}] {dtype}"
        for name, limit in LOSSES[device].items():
            point = f"{name}: time by cross_entropy's"
            yield Target(point, label, limit, False, ratio(by_name.get(name), "time"))
        ours = by_name.get("entmax_loss, 1.5", {})
        for name, limit in PACKAGE.items() if device == "cpu" else ():
            theirs = next((by_name[other] for other in by_name if other.startswith(name)), {})
            if theirs:
                point = f"{name}: time by entmax_loss's, 1.5"
                yield Target(point, label, limit, True, ratio_of(theirs, ours))


def layer_targets(results: list[dict], device: str) -> Iterator[Target]:
    keys = ("dtype", "tokens", "width", "vocabulary", "state")
    for (dtype, *size, state), group in grouped(results, *keys):
        by_name = {result["name"]: result for result in group}
        label = f"({', '.join(map(str, size))}) {dtype}, {state}"
        if device == "cpu":
            for name, limit in LAYERS.items():
                result = by_name.get(name)
                yield Target(f"{name}: time", label, limit, False, ratio(result, "time"))
                yield Target(f"{name}: memory", label, LAYER_MEMORY, False, ratio(result, "memory"))
        elif state != "untrained":
            yield from peer_targets(by_name, label)


def peer_targets(by_name: dict[str, dict], label: str) -> Iterator[Target]:
    """Compare our losses with the fastest cross-entropy that was measured beside them."""
    cross_entropies = {linear_loss.BASELINE, *(name for name in by_name if is_peer(name))}
    timed = [by_name[name] for name in cross_entropies if "seconds" in by_name.get(name, {})]
    if timed:
        best = min(timed, key=lambda result: statistics.median(result["seconds"]))
        for name in LAYERS:
            point = f"{name}: time by that of {best['name']}"
            measured = ratio_of(by_name.get(name, {}), best)
            yield Target(point, label, BEST_PEER, False, measured)


def is_peer(name: str) -> bool:
    """Return whether a function of the output layer is another package's cross-entropy."""
    known = ("linear_", "alpha_relu_loss", "entmax_loss", "entmax package")
    return not name.startswith(known) and name not in linear_loss.PRODUCTS


def attention_targets(results: list[dict], device: str) -> Iterator[Target]:
    for result in results if device == "cuda" else ():
        if result["part"] == "attend" and result["attention"] in SPARSE_ATTENTION:
            limit = SHORT_ATTENTION if result["length"] <= SHORT_LENGTH else 1.0
            what = f"{result['length']} keys, {result['dtype']}"
            point = f"{result['attention']} attention: speed"
            yield Target(point, what, limit, True, ratio(result, "speed"))


def training_targets(results: list[dict], device: str) -> Iterator[Target]:
    for result in results if device == "cpu" else ():
        limit = TRAINING.get(result["model"])
        if limit:
            what = f"{result['model']}, V = {result['vocabulary']}"
            yield Target("training step: speed", what, limit, True, ratio(result, "speed"))


def decoding_targets(results: list[dict], device: str) -> Iterator[Target]:
    baseline = results[0]["model"] if results else None
    for result in results:
        if result["part"] == "beam" and result["model"] != baseline:
            what = f"{result['model']}, beam {result['beam']}, batch {result['batch']}"
            yield Target("decoding: speed", what, DECODING, True, ratio(result, "speed"))


RULES = {
    "losses": loss_targets,
    "linear_loss": layer_targets,
    "attention": attention_targets,
    "training_step": training_targets,
    "decoding": decoding_targets,
}
# The function that makes each benchmark's table.
TABLES = {
    "losses": losses.table,
    "linear_loss": linear_loss.table,
    "attention": attention.table,
    "training_step": training_step.table,
    "decoding": decoding.table,
}


def grouped(results: list[dict], *keys: str) -> Iterator:
    """Group adjacent results by their values of some keys."""
    return groupby(results, key=lambda result: tuple(result[key] for key in keys))


def ratio(result: dict | None, name: str) -> tuple[float, float, float] | None:
    if not result or name not in result:
        return None
    return (result[name], *result.get(f"{name}_quartiles", [result[name]] * 2))


def ratio_of(numerator: dict, denominator: dict) -> tuple[float, float, float] | None:
    """Return the ratio of two results that were measured in turns."""
    if "seconds" not in numerator or "seconds" not in denominator:
        return None
    values = harness.ratios(numerator["seconds"], denominator["seconds"])
    return ratio(harness.summary("time", values), "time")

"""The model of a run, by its output and its attention: the fields of ``recipe.Model``."""

from __future__ import annotations

import re
from typing import Any, Optional

# The alphas of entmax by its other names.
ALPHAS = {"softmax": 1.0, "entmax15": 1.5, "sparsemax": 2.0}
PLACES = ("enc", "dec", "cross")
# Flags of the model that have fields of their own.
_FIELDS = {"attention", "attention-alpha", *(f"attention-{place}" for place in PLACES)}
# Estimates of tau for which a user need not name any: which one is part of a paper's settings.
_ESTIMATES = ("", "data", "weights")
Identity = tuple[Any, ...]


def identity(model: dict[str, Any]) -> Identity:
    """Return the same value for all names of a model: entmax with an alpha of 1 is softmax.

    Args:
        model: fields of ``recipe.Model``; those left out are softmax, and the default search.
    """
    attention = model.get("attention") or "softmax"
    places = [model.get(f"attention_{place}") or attention for place in PLACES]
    tau = model.get("output_tau") or ""
    flags = model.get("flags") or {}
    output, output_alpha = model.get("output") or "softmax", model.get("output_alpha")
    return (
        (output, output_alpha or 1.5) if output == "alpha_relu" else _kind(output, output_alpha),
        "" if tau in _ESTIMATES else tau,
        model.get("output_algorithm") or "newton",
        *(_kind(kind, model.get("attention_alpha")) for kind in places),
        *sorted(flag for flag in flags if flag.startswith("attention-") and flag not in _FIELDS),
    )


def _kind(name: str, alpha: Optional[float]) -> tuple[str, Optional[float]]:
    if name in ALPHAS:
        return "entmax", ALPHAS[name]
    return name, alpha if name == "entmax" else None


def alphas_of(model: dict[str, Any]) -> Optional[tuple[float, float]]:
    """Return the alphas of output and attention, or None unless both are entmax under any name."""
    output, _, _, *places = identity(model)[:6]
    if output[0] != "entmax" or set(places) != {("entmax", places[0][1])}:
        return None
    return output[1], places[0][1]


def model_of(summary: dict[str, Any]) -> dict[str, Any]:
    """Return the model in a run's summary, as :func:`identity` takes it.

    Summaries of earlier recipes have names alone. A name that says more than alphas or output means
    a model that no paper has.
    """
    if "model" in summary:
        return summary["model"]
    variant, name = summary.get("variant") or "softmax", summary.get("variant_name") or ""
    if alphas := re.fullmatch(r"entmax: output (\S+), attention (\S+)", name):
        outer, inner = map(float, alphas.groups())
        kinds = {"output": "entmax", "attention": "entmax"}
        return {**kinds, "output_alpha": outer, "attention_alpha": inner}
    if variant.startswith(("attention_", "rela_")):
        output = name.removeprefix(f"{variant}, output of ") or "softmax"
        return {"output": output, "attention": variant.removeprefix("attention_")}
    return {"output": name or variant}

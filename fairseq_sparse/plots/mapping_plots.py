"""Plots of the mappings: alpha-ReLU of a number, and entmax of two scores.

Figure 1 of "Speeding Up Entmax" and Figure 3 of "Sparse Sequence-to-Sequence Models".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fairseq_sparse.ops import alpha_relu, entmax
from fairseq_sparse.plots.pictures import COLOURS, DASHES, add_legend, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_POINTS = 601


def draw_alpha_relu(alphas: Sequence[float]) -> Figure:
    """Draw alpha-ReLU with tau = 0 by its argument; 2-ReLU is ReLU.

    Args:
        alphas: each above 1.
    """
    x = torch.linspace(-1, 3, _POINTS, dtype=torch.float64)
    names = {2.0: "2-ReLU = ReLU"}
    figure = _draw(
        x,
        {
            names.get(alpha, f"{alpha:g}-ReLU"): alpha_relu(x, tau=0.0, alpha=alpha)
            for alpha in alphas
        },
    )
    (axes,) = figure.axes
    axes.set_xlabel("x")
    axes.set_ylabel("α-ReLU(x), τ = 0")
    axes.set_ylim(-0.1, 3.1)
    return figure


def draw_entmax(alphas: Sequence[float]) -> Figure:
    """Draw the first entry of alpha-entmax([t, 0]) over t; it is 0 or 1 for |t| >= 1/(alpha - 1).

    Args:
        alphas: each at least 1, where 1 is softmax.
    """
    t = torch.linspace(-4.5, 4.5, _POINTS, dtype=torch.float64)
    names = {1.0: "softmax (α = 1)", 1.5: "1.5-entmax", 2.0: "sparsemax (α = 2)"}
    lines = {names.get(alpha, f"{alpha:g}-entmax"): entmax_of_two(t, alpha) for alpha in alphas}
    figure = _draw(t, lines)
    (axes,) = figure.axes
    axes.set_xlabel("t")
    axes.set_ylabel("α-entmax([t, 0]), first entry")
    return figure


def entmax_of_two(t: Tensor, alpha: float) -> Tensor:
    """Return the first entry of alpha-entmax([t, 0]) for each ``t``, of the same shape."""
    scores = torch.stack([t, torch.zeros_like(t)], dim=-1)
    return entmax(scores, alpha)[..., 0]


def _draw(x: Tensor, lines: dict[str, Tensor]) -> Figure:
    figure = new_figure(5.6, 3.6)
    (axes,) = figure.axes
    for number, (label, values) in enumerate(lines.items()):
        axes.plot(
            x.tolist(),
            values.tolist(),
            label=label,
            color=COLOURS[number % len(COLOURS)],
            linestyle=DASHES[number % len(DASHES)],
            linewidth=1.6,
        )
    add_legend(figure, columns=3)
    return figure

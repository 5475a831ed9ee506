"""``p - q``, the gradient of a Fenchel-Young loss with respect to the logits."""

from __future__ import annotations

from torch import Tensor


def residual(p: Tensor, target: Tensor, counts: Tensor, label_smoothing: float) -> Tensor:
    """Return ``p - (1 - label_smoothing) e_target``, in place; 0 in the rows that do not count.

    Args:
        p: ``[rows, V]``.
        target: ``[rows]``, a class where the row counts.
        counts: ``[rows]``, whether the target is not ignored.
        label_smoothing: its part of q, ``label_smoothing / V`` everywhere, is left to the caller.
    """
    ignored = ~counts.unsqueeze(-1)
    label = target.unsqueeze(-1).masked_fill(ignored, 0)
    p.scatter_add_(-1, label, p.new_full(label.shape, label_smoothing - 1))
    return p.masked_fill_(ignored, 0.0)

"""The names and signatures of the package ``entmax`` 1.3, over the ops of this package.

``from fairseq_sparse.ops.entmax_compat import entmax15, Entmax15Loss`` replaces
``from entmax import entmax15, Entmax15Loss``, and nothing else changes. ``normmax`` and ``budget``,
functions, modules and losses, are absent. Differences inside:

- The threshold is found by one exact search, so the options of other ways have no effect: ``k``, of
  a partial sort, ``n_iter`` and ``ensure_sum_one``, of bisection. The papers' algorithms are
  arguments of :func:`fairseq_sparse.ops.entmax`.
- Losses are in fp32 for half-precision logits. The mean over no target is 0, not NaN, and a row
  in which every logit is -inf gives zeros.
- ``alpha`` below 1 is refused, 1 itself is softmax.
"""

from __future__ import annotations

from typing import Optional, Union

import torch
from torch import Tensor, nn

from fairseq_sparse import ops
from fairseq_sparse.ops.reference.thresholds import Alpha

__all__ = [
    "Entmax15",
    "Entmax15Loss",
    "EntmaxBisect",
    "EntmaxBisectLoss",
    "Sparsemax",
    "SparsemaxBisect",
    "SparsemaxBisectLoss",
    "SparsemaxLoss",
    "entmax15",
    "entmax15_loss",
    "entmax_bisect",
    "entmax_bisect_loss",
    "sparsemax",
    "sparsemax_bisect",
    "sparsemax_bisect_loss",
    "sparsemax_loss",
]

_REDUCTIONS = {"elementwise_mean": "mean", "sum": "sum", "none": "none"}


def sparsemax(X: Tensor, dim: int = -1, k: Optional[int] = None) -> Tensor:
    """Return :func:`fairseq_sparse.ops.sparsemax` of ``X`` along ``dim``; ``k`` has no effect."""
    return ops.sparsemax(X, dim)


def entmax15(X: Tensor, dim: int = -1, k: Optional[int] = None) -> Tensor:
    """Return :func:`fairseq_sparse.ops.entmax15` of ``X`` along ``dim``; ``k`` has no effect."""
    return ops.entmax15(X, dim)


def sparsemax_bisect(
    X: Tensor, dim: int = -1, n_iter: Optional[int] = 50, ensure_sum_one: bool = True
) -> Tensor:
    """Return :func:`fairseq_sparse.ops.sparsemax` of ``X`` along ``dim``, without bisection."""
    return ops.sparsemax(X, dim)


def entmax_bisect(
    X: Tensor, alpha: Alpha = 1.5, dim: int = -1, n_iter: int = 50, ensure_sum_one: bool = True
) -> Tensor:
    """Return :func:`fairseq_sparse.ops.entmax` of ``X`` along ``dim``, without bisection.

    Args:
        alpha: a number >= 1, or a tensor of numbers > 1 that gets its gradient.

    Raises:
        ValueError: ``alpha`` is below 1, or a tensor of a wrong shape.
    """
    return ops.entmax(X, alpha, dim)


def sparsemax_loss(X: Tensor, target: Tensor, k: Optional[int] = None) -> Tensor:
    """Return the sparsemax loss of each row of ``X`` ``[rows, V]``; ``k`` has no effect."""
    return ops.entmax_loss(X, target, 2.0, reduction="none")


def entmax15_loss(X: Tensor, target: Tensor, k: Optional[int] = None) -> Tensor:
    """Return the 1.5-entmax loss of each row of ``X`` ``[rows, V]``; ``k`` has no effect."""
    return ops.entmax_loss(X, target, 1.5, reduction="none")


def sparsemax_bisect_loss(X: Tensor, target: Tensor, n_iter: int = 50) -> Tensor:
    """Return the sparsemax loss of each row of ``X`` ``[rows, V]``, without bisection."""
    return ops.entmax_loss(X, target, 2.0, reduction="none")


def entmax_bisect_loss(
    X: Tensor, target: Tensor, alpha: Union[float, Tensor] = 1.5, n_iter: int = 50
) -> Tensor:
    """Return the alpha-entmax loss of each row of ``X`` ``[rows, V]``, without bisection.

    ``alpha`` is a number >= 1 or a tensor with one, which gets no gradient.
    """
    return ops.entmax_loss(X, target, _as_number(alpha), reduction="none")


class Sparsemax(nn.Module):
    """:func:`sparsemax` as a module."""

    def __init__(self, dim: int = -1, k: Optional[int] = None):
        super().__init__()
        self.dim, self.k = dim, k

    def forward(self, X: Tensor) -> Tensor:
        return sparsemax(X, self.dim, self.k)


class Entmax15(nn.Module):
    """:func:`entmax15` as a module."""

    def __init__(self, dim: int = -1, k: Optional[int] = None):
        super().__init__()
        self.dim, self.k = dim, k

    def forward(self, X: Tensor) -> Tensor:
        return entmax15(X, self.dim, self.k)


class SparsemaxBisect(nn.Module):
    """:func:`sparsemax_bisect` as a module."""

    def __init__(self, dim: int = -1, n_iter: Optional[int] = None):
        super().__init__()
        self.dim, self.n_iter = dim, n_iter

    def forward(self, X: Tensor) -> Tensor:
        return sparsemax_bisect(X, self.dim, self.n_iter)


class EntmaxBisect(nn.Module):
    """:func:`entmax_bisect` as a module; an ``alpha`` that is a parameter is learned."""

    def __init__(self, alpha: Alpha = 1.5, dim: int = -1, n_iter: int = 50):
        super().__init__()
        self.alpha, self.dim, self.n_iter = alpha, dim, n_iter

    def forward(self, X: Tensor) -> Tensor:
        return entmax_bisect(X, self.alpha, self.dim, self.n_iter)


class _Loss(nn.Module):
    """A loss ``(X [rows, V], target [rows])`` of one alpha, summed as ``reduction`` says."""

    alpha: Union[float, Tensor]

    def __init__(self, ignore_index: Union[int, Tensor], reduction: str):
        super().__init__()
        if reduction not in _REDUCTIONS:
            raise ValueError(f"reduction must be one of {', '.join(_REDUCTIONS)}, got {reduction}")
        self.ignore_index, self.reduction = int(ignore_index), reduction

    def forward(self, X: Tensor, target: Tensor) -> Tensor:
        return ops.entmax_loss(
            X,
            target,
            _as_number(self.alpha),
            ignore_index=self.ignore_index,
            reduction=_REDUCTIONS[self.reduction],
        )


class SparsemaxLoss(_Loss):
    """:func:`sparsemax_loss` with ``ignore_index`` and a reduction."""

    alpha = 2.0

    def __init__(
        self,
        k: Optional[int] = None,
        ignore_index: int = -100,
        reduction: str = "elementwise_mean",
    ):
        super().__init__(ignore_index, reduction)
        self.k = k


class Entmax15Loss(_Loss):
    """:func:`entmax15_loss` with ``ignore_index`` and a reduction."""

    alpha = 1.5

    def __init__(
        self,
        k: Optional[int] = 100,
        ignore_index: int = -100,
        reduction: str = "elementwise_mean",
    ):
        super().__init__(ignore_index, reduction)
        self.k = k


class SparsemaxBisectLoss(_Loss):
    """:func:`sparsemax_bisect_loss` with ``ignore_index`` and a reduction."""

    alpha = 2.0

    def __init__(
        self, n_iter: int = 50, ignore_index: int = -100, reduction: str = "elementwise_mean"
    ):
        super().__init__(ignore_index, reduction)
        self.n_iter = n_iter


class EntmaxBisectLoss(_Loss):
    """:func:`entmax_bisect_loss` with ``ignore_index`` and a reduction."""

    def __init__(
        self,
        alpha: Union[float, Tensor] = 1.5,
        n_iter: int = 50,
        ignore_index: int = -100,
        reduction: str = "elementwise_mean",
    ):
        super().__init__(ignore_index, reduction)
        self.alpha, self.n_iter = alpha, n_iter


def _as_number(alpha: Union[float, Tensor]) -> float:
    """Return ``alpha`` as a number; as in the package, losses take no tensor of several values."""
    if not torch.is_tensor(alpha):
        return alpha
    if alpha.numel() != 1:
        raise ValueError(f"the loss takes one alpha, got a tensor of shape {tuple(alpha.shape)}")
    return float(alpha)

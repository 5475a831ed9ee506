"""Fenchel-Young losses: the losses of all sparse mappings.

A convex function Omega has the conjugate ``Omega*(z) = max_p <p, z> - Omega(p)``; its mapping takes
logits z to the p that attains the maximum. The loss of z and a target distribution q is
``Omega*(z) + Omega(q) - <q, z>``, with the gradient ``p - q`` (Blondel, Martins, Niculae 2020; for
alpha-ReLU "Speeding Up Entmax", Eq. 3).
"""

from __future__ import annotations

from typing import NamedTuple, Optional

import torch
from torch import Tensor

from fairseq_sparse.ops.checks import Tau, check_alpha, check_tau, check_topk


class FenchelYoungLoss(NamedTuple):
    """The options of a Fenchel-Young loss, and its formulas. For the fields see ``losses.py``."""

    alpha: float
    tau: Optional[Tau]  # None: alpha-entmax
    label_smoothing: float
    ignore_index: int
    reduction: str
    topk: int = 0

    def checked(self, shape: tuple[int, ...], target: Tensor) -> FenchelYoungLoss:
        """Return the same loss, with tau of shape ``[]`` if it is a tensor.

        Raises:
            ValueError: an option is out of range, or the target does not fit logits of this shape.
        """
        if len(shape) == 0 or shape[:-1] != tuple(target.shape):
            raise ValueError(
                f"logits {shape} need a target of shape {shape[:-1]}, got {tuple(target.shape)}"
            )
        if target.dtype != torch.int64:
            raise ValueError(f"target must be int64, got {target.dtype}")
        if not 0.0 <= self.label_smoothing <= 1.0:
            raise ValueError(f"label_smoothing must lie in [0, 1], got {self.label_smoothing}")
        if self.reduction not in ("none", "sum", "mean"):
            raise ValueError(f"reduction must be none, sum or mean, got {self.reduction!r}")
        check_topk(self.topk)
        if self.tau is None:
            if self.alpha != 1:
                check_alpha(self.alpha)
            elif self.topk > 0:
                raise ValueError(f"topk {self.topk} needs alpha > 1: cross-entropy has no support")
            return self
        check_alpha(self.alpha)
        check_tau(self.tau)
        if not torch.is_tensor(self.tau):
            return self
        if self.tau.numel() != 1:
            raise ValueError(f"tau must have one element, got shape {tuple(self.tau.shape)}")
        return self._replace(tau=self.tau.reshape(()))

    def reduced(self, losses: Tensor, target: Tensor) -> Tensor:
        """Reduce the losses ``[rows]`` as ``reduction`` says."""
        if self.reduction == "none":
            return losses.view(target.shape)
        if self.reduction == "sum":
            return losses.sum()
        return losses.sum() / self.counts(target).sum().clamp(min=1)

    def counts(self, target: Tensor) -> Tensor:
        """Return which targets are not ignored."""
        return target != self.ignore_index

    def losses(
        self,
        counts: Tensor,
        conjugate: Tensor,
        shift: Tensor,
        gold: Tensor,
        mean: Optional[Tensor],
        size: int,
    ) -> Tensor:
        """Return the loss of each row, fp32 or better; 0 where the target is ignored.

        Args:
            counts: which targets are not ignored.
            conjugate: the conjugate of the logits minus ``shift``: for alpha-entmax
                ``max_p <p, z> + H_alpha(p)``, the counterpart of cross-entropy's logsumexp; for
                alpha-ReLU ``sum p ** alpha / alpha``.
            shift: the maximum for alpha-entmax, ``tau / (alpha - 1)`` for alpha-ReLU.
            gold: the logit of the target.
            mean: the mean logit; used only with label smoothing.
            size: the number of logits in a row.
        """
        epsilon = self.label_smoothing
        if epsilon == 1:  # 0 * gold would be NaN where that is -inf
            expected = mean - shift
        else:
            expected = gold - shift  # <q, z - shift>
            if epsilon > 0:
                expected = (1 - epsilon) * expected + epsilon * (mean - shift)
        losses = conjugate - expected + self.constant(size)
        if self.topk == 0 or epsilon == 0:
            losses = losses.clamp(min=0)  # rounding
        return losses.masked_fill(~counts, 0.0)

    def constant(self, size: int) -> float:
        """Return the part of a row's loss that depends on q alone, not on its ``size`` logits."""
        rest = self.label_smoothing / max(size, 1)
        power_sum = (1 - self.label_smoothing + rest) ** self.alpha + (size - 1) * rest**self.alpha
        if self.tau is None:
            power_sum -= 1
        return power_sum / (self.alpha * (self.alpha - 1))

    def logits_of_target(self, z: Tensor, target: Tensor) -> tuple[Tensor, Optional[Tensor]]:
        """Return the logit of each row's target, and with label smoothing the mean logit."""
        label = target.masked_fill(~self.counts(target), 0).unsqueeze(-1)
        return z.gather(-1, label).squeeze(-1), z.mean(-1) if self.label_smoothing > 0 else None

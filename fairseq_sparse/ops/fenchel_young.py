"""Fenchel-Young losses: the losses of all sparse mappings.

A convex function Omega has the conjugate ``Omega*(z) = max_p <p, z> - Omega(p)``; its mapping takes
logits z to the p that attains the maximum. The loss of z and a target distribution q is
``Omega*(z) + Omega(q) - <q, z>``, with the gradient ``p - q`` (Blondel, Martins, Niculae 2020; for
alpha-ReLU "Speeding Up Entmax", Eq. 3).
"""

from __future__ import annotations

from typing import NamedTuple, Optional

from torch import Tensor


class RowLoss(NamedTuple):
    """The options of the loss of a row, and its formula. For the fields see ``losses.py``."""

    alpha: float
    tau: Optional[Tensor]  # None: alpha-entmax
    label_smoothing: float
    ignore_index: int

    def counts(self, target: Tensor) -> Tensor:
        """Return which targets are not ignored."""
        return target != self.ignore_index

    def losses(self, z: Tensor, target: Tensor, conjugate: Tensor, shift: Tensor) -> Tensor:
        """Return the loss of each row, in the dtype of ``z``; 0 where the target is ignored.

        Args:
            z: logits ``[rows, V]``, fp32 or better.
            target: ``[rows]``.
            conjugate: the conjugate of the logits minus ``shift``: for alpha-entmax
                ``max_p <p, z> + H_alpha(p)``, the counterpart of cross-entropy's logsumexp; for
                alpha-ReLU ``sum p ** alpha / alpha``.
            shift: the maximum for alpha-entmax, ``tau / (alpha - 1)`` for alpha-ReLU.
        """
        label = target.masked_fill(~self.counts(target), 0).unsqueeze(-1)
        mean = z.mean(-1) if self.label_smoothing > 0 else None
        gold = z.gather(-1, label).squeeze(-1)
        return self.of_logits(target, gold, mean, conjugate, shift, z.size(-1)).to(z.dtype)

    def of_logits(
        self,
        target: Tensor,
        gold: Tensor,
        mean: Optional[Tensor],
        conjugate: Tensor,
        shift: Tensor,
        size: int,
    ) -> Tensor:
        """Return the :meth:`losses` of rows of ``size`` logits, given the target's and the mean.

        The mean logit is used only with label smoothing.
        """
        epsilon = self.label_smoothing
        if epsilon == 1:  # 0 * gold would be NaN where that is -inf
            expected = mean - shift
        else:
            expected = gold - shift  # <q, z - shift>
            if epsilon > 0:
                expected = (1 - epsilon) * expected + epsilon * (mean - shift)
        losses = (conjugate - expected + self.constant(size)).clamp(min=0)  # rounding
        return losses.masked_fill(~self.counts(target), 0.0)

    def constant(self, size: int) -> float:
        """Return the part of a row's loss that depends on q alone, not on its ``size`` logits."""
        rest = self.label_smoothing / max(size, 1)
        power_sum = (1 - self.label_smoothing + rest) ** self.alpha + (size - 1) * rest**self.alpha
        if self.tau is None:
            power_sum -= 1
        return power_sum / (self.alpha * (self.alpha - 1))

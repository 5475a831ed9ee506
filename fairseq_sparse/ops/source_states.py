"""Products with source states, whose gradient is computed once instead of at each step.

An LSTM decoder attends to the same states at every step. Automatic differentiation would compute a
gradient of all states at each step and add these up; here it is one product over all steps.
"""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor
from torch.autograd import Function

from fairseq_sparse.ops.capture import is_captured
from fairseq_sparse.ops.first_order import first_order


class SourceStates:
    """The states that several queries attend to, one after another.

    There is no second derivative, and no autocast: queries and weights must have the states' dtype.

    Args:
        states: ``[source length, batch, size]``, any floating dtype.
        steps: the greatest number of queries; if the states need a gradient, one more raises an
            IndexError.
    """

    def __init__(self, states: Tensor, steps: int):
        # While PyTorch captures the operations, it derives the gradient itself.
        self._is_captured = is_captured(states)
        by_batch = states.transpose(0, 1)  # [batch, source length, size]
        self._states = by_batch if self._is_captured else by_batch.detach()
        if steps > 1:  # a copy is faster to read, but takes as long to make as two steps
            self._states = self._states.contiguous()
        # The queries and weights of the steps, each with its version when it was used.
        self._queries: list[tuple[Tensor, int]] = []
        self._weights: list[tuple[Tensor, int]] = []
        self._score_steps: tuple[Tensor, ...] = ()
        self._context_steps: tuple[Tensor, ...] = ()
        if self._is_captured:
            return
        if torch.is_grad_enabled() and states.requires_grad:
            found = _Gradient.apply(states, steps, self._queries, self._weights)
            self._score_steps, self._context_steps = found[:steps], found[steps:]

    def scores(self, query: Tensor) -> Tensor:
        """Return ``query . state`` of each state, ``[batch, source length]``.

        Args:
            query: ``[batch, size]``.
        """
        if self._is_captured or not torch.is_grad_enabled():
            return _scores(query, self._states)
        step = self._record_step(self._score_steps, self._queries, query)
        return _Product.apply(query, step, self._states, _scores, _context)

    def context(self, weights: Tensor) -> Tensor:
        """Return the weighted sum of the states, ``[batch, size]``.

        Args:
            weights: ``[batch, source length]``.
        """
        if self._is_captured or not torch.is_grad_enabled():
            return _context(weights, self._states)
        step = self._record_step(self._context_steps, self._weights, weights)
        return _Product.apply(weights, step, self._states, _context, _scores)

    def _record_step(
        self, steps, seen: list[tuple[Tensor, int]], value: Tensor
    ) -> Optional[Tensor]:
        """Record a step; return the placeholder through which its gradient reaches the states."""
        if not steps:
            return None
        seen.append((value.detach(), value._version))
        return steps[len(seen) - 1]


class _Gradient(Function):
    """A placeholder for the scores and the context of each step, whose gradients come back together
    in the backward pass."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, steps: int, queries, weights) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.queries, ctx.weights = queries, weights
        length, batch, size = states.shape
        nothing = states.new_empty(())
        scores = [nothing.expand(batch, length) for _ in range(steps)]
        return (*scores, *(nothing.expand(batch, size) for _ in range(steps)))

    @staticmethod
    @first_order
    def backward(ctx: Any, *gradients: Optional[Tensor]):
        steps = len(gradients) // 2
        # For each step: the gradient of its scores and its query; its weights and the gradient of
        # its context.
        # Fewer steps may have been taken than were announced.
        pairs = [
            *zip(gradients[:steps], _checked_unchanged(ctx.queries), strict=False),
            *zip(_checked_unchanged(ctx.weights), gradients[steps:], strict=False),
        ]
        pairs = [(left, right) for left, right in pairs if left is not None and right is not None]
        if not pairs:
            return None, None, None, None
        left = torch.stack([left for left, _ in pairs], dim=2)  # [batch, source length, pairs]
        right = torch.stack([right for _, right in pairs], dim=1)  # [batch, pairs, size]
        return torch.bmm(left, right).transpose(0, 1), None, None, None


def _checked_unchanged(seen: list[tuple[Tensor, int]]) -> list[Tensor]:
    """Return the tensors of the steps; refuse changed ones, which autograd does not check here."""
    if any(x._version != version for x, version in seen):
        raise RuntimeError(
            "a query or weight that the gradient of the source states needs was changed in place"
        )
    return [x for x, _ in seen]


class _Product(Function):
    """A product with the states, one of the two below; the other is its derivative."""

    @staticmethod
    def forward(
        ctx: Any, values: Tensor, step: Optional[Tensor], states: Tensor, product, derivative
    ) -> Tensor:
        ctx.save_for_backward(states)
        ctx.derivative = derivative
        return product(values, states)

    @staticmethod
    @first_order
    def backward(ctx: Any, gradient: Tensor):
        (states,) = ctx.saved_tensors
        # The gradient reaches the states through the step; None if they need none.
        of_step = gradient if ctx.needs_input_grad[1] else None
        return ctx.derivative(gradient, states), of_step, None, None, None


def _scores(query: Tensor, states: Tensor) -> Tensor:
    return torch.bmm(query.unsqueeze(1), states.transpose(1, 2)).squeeze(1)


def _context(weights: Tensor, states: Tensor) -> Tensor:
    return torch.bmm(weights.unsqueeze(1), states).squeeze(1)

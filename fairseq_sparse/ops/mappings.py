"""Mappings from logits to sparse probabilities: softmax, sparsemax, entmax, alpha-ReLU.

alpha-entmax (Peters, Niculae, Martins 2019, "Sparse Sequence-to-Sequence Models", Eq. 8-10):

    entmax_alpha(z) = argmax_{p in simplex} <p, z> + H_alpha(p)
                    = [(alpha - 1) z - tau(z)]_+ ** (1 / (alpha - 1)),

where ``H_alpha(p) = sum(p - p ** alpha) / (alpha (alpha - 1))`` is Tsallis' entropy and tau(z) the
one threshold for which the result sums to 1. alpha -> 1 is softmax, alpha = 2 is sparsemax.

alpha-ReLU (Tezekbayev, Nikoulina, Galle, Assylbekov, "Speeding Up Entmax", Eq. 2) is the same with
a threshold that is a constant of the model. Each coordinate is mapped by itself: there is no
maximum, no sort and no normaliser, and the result is not a distribution, though training with its
loss brings the sum near 1 (self-normalisation).

All functions here keep the dtype of the logits, compute in fp32 or better, and give exact zeros
outside the support; NaN stays NaN. The functions that normalise give a row of zeros where every
logit is -inf, and a row of NaN where a logit is NaN or +inf.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.autograd import Function, forward_ad

from fairseq_sparse.ops import operators, reference
from fairseq_sparse.ops.backends import choose
from fairseq_sparse.ops.capture import is_captured
from fairseq_sparse.ops.checks import Tau, check_alpha, check_logits, check_tau, check_topk
from fairseq_sparse.ops.precision import at_least_fp32
from fairseq_sparse.ops.reference.entmax import Alpha, EntmaxRows, entmax_gradients


def softmax(z: Tensor, dim: int = -1) -> Tensor:
    """Apply softmax, ``argmax_p <p, z> + H_1(p)``; a row of zeros where every logit is -inf.

    Args:
        z: logits of any shape and floating dtype.
        dim: the dimension that is normalised.

    Returns:
        Probabilities in the shape and dtype of ``z``.

    Raises:
        TypeError: ``z`` is not floating point.
    """
    check_logits(z)
    logits = at_least_fp32(z)
    masked = torch.isneginf(logits).all(dim, keepdim=True)
    # Both fills matter: the first keeps NaN out of the gradient, the second gives zeros.
    p = torch.softmax(logits.masked_fill(masked, 0.0), dim).masked_fill(masked, 0.0)
    return p.to(z.dtype)


def sparsemax(z: Tensor, dim: int = -1, topk: int = 0) -> Tensor:
    """Apply sparsemax (Martins & Astudillo 2016): project ``z`` onto the simplex.

    This is ``entmax(z, alpha=2)``. For the arguments see :func:`entmax15`.
    """
    return entmax_topk(z, 2.0, topk, dim)


def entmax15(z: Tensor, dim: int = -1, topk: int = 0) -> Tensor:
    """Apply 1.5-entmax, ``p = [z / 2 - tau]_+ ** 2``.

    Args:
        z: logits of any shape and floating dtype.
        dim: the dimension that is normalised.
        topk: if > 0, only the ``topk`` largest logits can be in the support, all others get
            probability 0. Equal to the exact mapping where that has at most ``topk`` nonzeros.

    Returns:
        Probabilities in the shape and dtype of ``z``.

    Raises:
        ValueError: ``topk`` is negative.
    """
    return entmax_topk(z, 1.5, topk, dim)


def entmax(z: Tensor, alpha: Alpha, dim: int = -1) -> Tensor:
    """Apply alpha-entmax for any alpha > 1, see the docstring of this module.

    Args:
        z: logits of any shape and floating dtype.
        alpha: a number, or a tensor that broadcasts over ``z`` with size 1 in ``dim`` (one alpha
            per row). A tensor gets its gradient (Correia, Niculae, Martins 2019, "Adaptively Sparse
            Transformers", Prop. 2). On a GPU, where checking the tensor would cause a stall, a row
            whose alpha is 1 or less is NaN. The number 1 is softmax.
        dim: the dimension that is normalised.

    Returns:
        Probabilities in the shape and dtype of ``z``.

    Raises:
        ValueError: ``alpha`` is a number that is below 1 or not finite, a tensor of a wrong shape,
            or, on a CPU, a tensor with a value of 1 or less.
        TypeError: ``z`` is not floating point, or ``alpha`` is neither a number nor a tensor.
    """
    if not torch.is_tensor(alpha) and alpha == 1:
        return softmax(z, dim)
    return entmax_topk(z, alpha, topk=0, dim=dim)


def alpha_relu(z: Tensor, tau: Tau, alpha: float = 1.5) -> Tensor:
    """Apply alpha-ReLU, see the docstring of this module.

    Args:
        z: logits of any shape and floating dtype; computed in fp32 or better.
        tau: the threshold of ``(alpha - 1) * z``, a finite number or a tensor that broadcasts to
            the shape of ``z``. No gradient flows to it.
        alpha: a number > 1.

    Returns:
        Non-negative weights in the shape and dtype of ``z``, exactly 0 where
        ``(alpha - 1) z <= tau``. NaN stays NaN.

    Raises:
        ValueError: ``alpha`` is <= 1 or not finite, or ``tau`` is a number that is not finite or a
            tensor that does not broadcast.
        TypeError: ``z`` is not floating point, or ``alpha`` or ``tau`` is not a number.
    """
    check_logits(z)
    check_alpha(alpha)
    tau = _checked_tau(tau, z)
    if _needs_autograd(z):
        return _AlphaReLU.apply(z, tau, alpha)
    return choose("alpha_relu", (z,), alpha=alpha, tau=tau).alpha_relu_weights(z, tau, alpha)


def log_entmax(z: Tensor, alpha: float, topk: int = 0) -> Tensor:
    """Return the logarithm of alpha-entmax over the last dimension, exactly -inf where p is 0.

    Args:
        z: logits ``[..., V]``, any floating dtype.
        alpha: a number > 1.
        topk: see :func:`entmax15`.

    Returns:
        Log-probabilities in the shape of ``z``, fp32 or better.

    Raises:
        ValueError: ``alpha`` or ``topk`` is out of range.
    """
    check_logits(z)
    check_alpha(alpha)
    check_topk(topk)
    backend = choose("log_probabilities", (z,), alpha=alpha, topk=topk)
    if backend.NAME == "reference":
        return log_with_zeros(entmax_topk(at_least_fp32(z), alpha, topk))
    return backend.log_probabilities(z, alpha)


def log_alpha_relu(z: Tensor, tau: Tau, alpha: float = 1.5) -> Tensor:
    """Return the logarithm of alpha-ReLU, exactly -inf where that is 0, fp32 or better.

    For the arguments and errors see :func:`alpha_relu`.
    """
    check_logits(z)
    check_alpha(alpha)
    tau = _checked_tau(tau, z)
    backend = choose("log_probabilities", (z,), alpha=alpha, tau=tau)
    if backend.NAME == "reference":
        return log_with_zeros(alpha_relu(at_least_fp32(z), tau, alpha))
    return backend.log_probabilities(z, alpha, float(tau))


def entmax_threshold(z: Tensor, alpha: float = 1.5, dim: int = -1) -> Tensor:
    """Return the threshold tau(z) of alpha-entmax: with it the probabilities sum to 1.

    Returns:
        A tensor of the shape of ``z`` without ``dim``, fp32 (fp64 for fp64 logits). It has
        no gradient.
    """
    check_alpha(alpha)
    check_logits(z)
    if z.dim() == 0:
        return entmax_threshold(z[None], alpha)
    rows = z.detach().movedim(dim, -1)
    return entmax_rows(_flatten(rows), alpha, conjugate=False).tau.view(rows.shape[:-1])


def entmax_topk(z: Tensor, alpha: Alpha, topk: int, dim: int = -1) -> Tensor:
    """Apply :func:`entmax` over the ``topk`` largest logits (0: all of them)."""
    check_topk(topk)
    check_logits(z)
    if z.dim() == 0:
        return entmax_topk(z[None], alpha, topk)[0]
    if torch.is_tensor(alpha):
        alpha = _checked_alphas(alpha, z, dim)
    else:
        check_alpha(alpha)
    compute = _Entmax.apply if _needs_autograd(z, alpha) else _probabilities
    return compute(z, alpha, dim, topk)


def entmax_rows(z: Tensor, alpha: Alpha, topk: int = 0, conjugate: bool = True) -> EntmaxRows:
    """Solve alpha-entmax for each row of ``z``, without a gradient.

    Args:
        z: logits, ``[rows, size]``, any floating dtype.
        alpha: a float > 1, or a tensor ``[rows, 1]``.
        topk: if > 0, only the ``topk`` largest logits of a row take part.
        conjugate: whether the conjugate is wanted.
    """
    backend = choose("entmax", (z,), alpha=alpha)
    if backend.NAME == "operators":
        return operators.entmax_rows(z, alpha, topk=topk)
    return _solve(backend, z, alpha, topk, conjugate)


def _solve(backend, z: Tensor, alpha: Alpha, topk: int, conjugate: bool) -> EntmaxRows:
    if not 0 < topk < z.size(-1):
        return backend.entmax_rows(z, alpha, conjugate)
    # Ties at the k-th place are broken by torch.topk.
    values, index = z.topk(topk, dim=-1)
    rows = backend.entmax_rows(values, alpha, conjugate)
    return rows._replace(p=torch.zeros_like(z).scatter_(-1, index, rows.p))


def _solve_in_operator(z: Tensor, alpha: Alpha, topk: int) -> EntmaxRows:
    """Solve the rows for ``operators.py``, never by the operator itself."""
    backend = choose("entmax", (z,), alpha=alpha)
    return _solve(reference if backend.NAME == "operators" else backend, z, alpha, topk, True)


operators.define_entmax_rows(_solve_in_operator)


def _checked_alphas(alpha: Tensor, z: Tensor, dim: int) -> Tensor:
    """Return one alpha per row, in the shape of ``z`` with size 1 in ``dim``, or one for all.

    Values of 1 or less are refused, or become NaN where they cannot be checked.
    """
    if not alpha.is_floating_point():
        raise TypeError(f"alpha must be floating point, got {alpha.dtype}")
    if not alpha.is_cpu or is_captured(alpha):
        alpha = alpha.masked_fill(alpha <= 1, float("nan"))
    elif (alpha <= 1).any():
        raise ValueError(f"alpha must exceed 1, its least value is {float(alpha.min())}")
    if alpha.dim() == 0:
        return alpha
    shape = list(z.shape)
    shape[dim] = 1
    try:
        return alpha.expand(shape)
    except RuntimeError as error:
        raise ValueError(
            f"alpha of shape {tuple(alpha.shape)} does not broadcast to {tuple(shape)}, "
            f"one value for each row of z {tuple(z.shape)} along dimension {dim}"
        ) from error


def _checked_tau(tau: Tau, z: Tensor) -> Tau:
    """Return a tensor tau in the shape of ``z``, or without dimensions if it has one element."""
    check_tau(tau)
    if not torch.is_tensor(tau):
        return tau
    if tau.numel() == 1:
        return tau.reshape(())
    try:
        return tau.expand(z.shape)
    except RuntimeError as error:
        raise ValueError(
            f"tau of shape {tuple(tau.shape)} does not broadcast to that of z, {tuple(z.shape)}"
        ) from error


def _needs_autograd(z: Tensor, alpha: Alpha = 0.0) -> bool:
    """Return whether autograd must see an op, for which it takes longer than a short row does."""
    if forward_ad._current_level >= 0:  # an autograd function refuses forward mode; kernels drop it
        return True
    if not torch.is_grad_enabled():
        return False
    return z.requires_grad or getattr(alpha, "requires_grad", False) or is_captured(z)


def _flatten(rows: Tensor) -> Tensor:
    """Return ``[..., size]`` as ``[rows, size]``, also where size is 0."""
    return rows.reshape(rows.shape[:-1].numel(), rows.size(-1))


def _probabilities(z: Tensor, alpha: Alpha, dim: int, topk: int) -> Tensor:
    rows = z.movedim(dim, -1)
    if torch.is_tensor(alpha):
        if alpha.dtype != torch.float64:
            alpha = alpha.float()  # 1 / (alpha - 1) in half precision is far off
        alpha = alpha.movedim(dim, -1) if alpha.dim() > 0 else alpha
        alpha = _flatten(alpha.expand([*rows.shape[:-1], 1]))
    flat = _flatten(rows)
    if 0 < topk < rows.size(-1):
        p = entmax_rows(flat, alpha, topk, conjugate=False).p
    else:
        p = choose("entmax", (flat,), alpha=alpha).entmax_probabilities(flat, alpha)
    return p.view(rows.shape).movedim(-1, dim)


class _Entmax(Function):
    @staticmethod
    def forward(z, alpha, dim, topk):
        return _probabilities(z, alpha, dim, topk)

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, alpha, ctx.dim, _ = inputs
        ctx.alpha = None if torch.is_tensor(alpha) else alpha
        ctx.save_for_backward(output, *([alpha] if ctx.alpha is None else []))

    @staticmethod
    def vmap(info, in_dims, z, alpha, dim, topk):
        z = operators.batch_first(z, in_dims[0], info.batch_size)
        if torch.is_tensor(alpha):
            alpha = operators.batch_first(alpha, in_dims[1], info.batch_size)
            if alpha.dim() == 1:  # one for each problem of the batch
                alpha = alpha.view(-1, *[1] * (z.dim() - 1))
        return _Entmax.apply(z, alpha, dim if dim < 0 else dim + 1, topk), 0

    @staticmethod
    def backward(ctx, grad):
        p, *saved = ctx.saved_tensors
        p, grad = p.movedim(ctx.dim, -1), grad.movedim(ctx.dim, -1)
        if ctx.alpha is not None:
            backend = choose("entmax_gradient", (p, grad), alpha=ctx.alpha)
            grad_z = backend.entmax_gradient(_flatten(p), _flatten(grad), ctx.alpha)
            return grad_z.view(p.shape).movedim(-1, ctx.dim), None, None, None
        alpha = saved[0].movedim(ctx.dim, -1) if saved[0].dim() > 0 else saved[0]
        grad_z, rate = entmax_gradients(p, grad, alpha)
        if saved[0].dim() > 0:
            rate = rate.movedim(-1, ctx.dim)
        grad_alpha = rate.sum_to_size(saved[0].shape).to(saved[0].dtype)
        return grad_z.movedim(-1, ctx.dim), grad_alpha, None, None


class _AlphaReLU(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(z, tau, alpha):
        backend = choose("alpha_relu", (z,), alpha=alpha, tau=tau)
        return backend.alpha_relu_weights(z, tau, alpha)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.alpha = inputs[2]
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx, grad):
        (p,) = ctx.saved_tensors
        backend = choose("alpha_relu_gradient", (p, grad))
        return backend.alpha_relu_gradient(p, grad, ctx.alpha), None, None


def log_with_zeros(probs: Tensor) -> Tensor:
    """Return the logarithm, -inf at 0; computing it at 0 is some ten times slower on a CPU."""
    if not probs.is_cpu or not probs.is_contiguous() or probs.requires_grad or is_captured(probs):
        return probs.log()
    flat = probs.view(-1)
    nonzero = flat.nonzero().squeeze(1)
    result = torch.full_like(flat, -math.inf)
    result[nonzero] = flat[nonzero].log()
    return result.view_as(probs)

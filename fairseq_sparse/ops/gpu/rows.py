"""alpha-entmax of rows of logits on a GPU, its gradient, and the losses of alpha-entmax and
alpha-ReLU.

One program has one row. As in the reference, a row is first solved (see ``thresholds.py``), and
then filled in from its solution as

    p = scale * [(alpha - 1) (z - shift) - tau]_+ ** (1 / (alpha - 1)),

so that a loss keeps nothing for its gradient but the logits and three numbers a row. Everything is
computed in fp32. The functions have the arguments and results of the operators.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Optional

import torch
import triton
import triton.language as tl
from torch import Tensor

from fairseq_sparse.ops.checks import LEAST_ALPHA_OF_KERNELS
from fairseq_sparse.ops.fenchel_young import RowLoss
from fairseq_sparse.ops.gpu.thresholds import factors, load_block, power_of_p, solve
from fairseq_sparse.ops.gpu.verification import verified
from fairseq_sparse.ops.reference.linear_loss import in_chunks

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def _fits(
    kernel: Callable, z: Tensor, alpha: float, size: int, dtype: torch.dtype, *form: Any
) -> bool:
    """Return whether a kernel takes logits like ``z``, and has been verified for such rows."""
    if z.dtype not in _DTYPES or z.numel() == 0:
        return False
    if not LEAST_ALPHA_OF_KERNELS <= alpha <= 2:
        return False
    constant = _constant_alpha(alpha)
    # Triton compiles also for sizes of 1 and for multiples of 16.
    compiled_for = (constant, *form, *row_options(size).values(), size == 1, size % 16 == 0)
    return verified(kernel, z.device, dtype, compiled_for, (size, constant or 1.3, *form))


def fits_entmax(z, row_alpha, alpha, algorithm, topk, log) -> bool:
    """Each row may have an alpha > 1 of its own, above 2, too; a single alpha is at most 2."""
    per_row = row_alpha is not None
    alpha = 1.3 if per_row else alpha
    return algorithm == "newton" and _fits(entmax, z, alpha, z.size(1), z.dtype, per_row)


def fits_entmax_backward(p, grad, alpha) -> bool:
    return grad.dtype == p.dtype and _fits(entmax_backward, p, alpha, p.size(1), p.dtype)


def fits_row_loss(z, target, tau, alpha, label_smoothing, ignore_index, algorithm, topk) -> bool:
    form = (tau is not None, label_smoothing)
    return algorithm == "newton" and _fits(row_loss, z, alpha, z.size(1), z.dtype, *form)


def fits_row_loss_backward(grad, z, target, solution, alpha, label_smoothing, ignore_index) -> bool:
    return _fits(row_loss_backward, z, alpha, z.size(1), z.dtype, label_smoothing)


def fits_linear_loss(
    x, weight, bias, target, tau, alpha, label_smoothing, ignore_index, algorithm, topk, *needed
) -> bool:
    """The loop over chunks is the reference's; only its logits, in fp32, go to a kernel."""
    if algorithm != "newton" or weight.numel() == 0:
        return False
    form = (tau is not None, label_smoothing)
    return _fits(residual_, x, alpha, weight.size(0), torch.float32, *form)


def entmax(
    z: Tensor, row_alpha: Optional[Tensor], alpha: float, algorithm: str, topk: int, log: bool
) -> tuple[Tensor, Tensor]:
    """Return alpha-entmax of ``z [rows, size]``, or its logarithm, and tau of ``(alpha - 1) z``."""
    z = z.contiguous()
    p = torch.empty_like(z, dtype=torch.float32 if log else z.dtype)
    tau = torch.empty(z.size(0), dtype=torch.float32, device=z.device)
    if row_alpha is not None:
        row_alpha, alpha = row_alpha.contiguous(), 0.0
    _launch(_entmax_kernel, z, row_alpha, p, tau, rate=alpha - 1, ALPHA=_constant_alpha(alpha))
    return p.log() if log else p, tau


def entmax_backward(p: Tensor, grad: Tensor, alpha: float) -> Tensor:
    """Return ``grad`` times the Jacobian of alpha-entmax, ``diag(s) - s s^T / sum(s)`` with
    ``s = p ** (2 - alpha)`` (Peters et al. 2019, Prop. 1). Off the support, ``grad`` may hold
    anything."""
    p, result = p.contiguous(), torch.empty_like(p, memory_format=torch.contiguous_format)
    _launch(
        _entmax_backward_kernel, p, grad.contiguous(), result, rate=alpha - 1,
        ALPHA=_constant_alpha(alpha),
    )  # fmt: skip
    return result


def row_loss(
    z: Tensor, target: Tensor, tau: Optional[Tensor], alpha: float, label_smoothing: float,
    ignore_index: int, algorithm: str, topk: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return the losses of rows ``[rows, V]``, fp32, and their solutions ``[4, rows]``, fp64.

    The loss of a target that is neither a class nor ignored is NaN: an error would have to wait for
    the GPU.
    """
    losses = torch.empty(z.size(0), dtype=torch.float32, device=z.device)
    solution = torch.full((4, z.size(0)), -torch.inf, dtype=torch.float64, device=z.device)
    options = RowLoss(alpha, tau, label_smoothing, ignore_index)
    _launch_loss(z.contiguous(), target, options, losses, solution, None, None)
    return losses, solution


def row_loss_backward(
    grad: Tensor, z: Tensor, target: Tensor, solution: Tensor, alpha: float,
    label_smoothing: float, ignore_index: int,
) -> Tensor:  # fmt: skip
    """Return ``grad [rows]`` times ``p - q``, in the dtype of ``z``; 0 in ignored rows.

    The product is rounded, not its factors: with a scaled loss, ``grad`` can be too large for fp16
    although the product is not.
    """
    z, result = z.contiguous(), torch.empty_like(z, memory_format=torch.contiguous_format)
    options = RowLoss(alpha, None, label_smoothing, ignore_index)
    _launch_loss(z, target, options, None, solution.contiguous(), grad.contiguous(), result)
    return result


def residual_(z: Tensor, target: Tensor, options: RowLoss, algorithm: str, topk: int) -> Tensor:
    """Return the losses of contiguous logits ``[rows, V]``, over which ``p - q`` is written."""
    losses = torch.empty(z.size(0), dtype=torch.float32, device=z.device)
    _launch_loss(z, target, options, losses, None, None, z)
    return losses


def linear_loss(*args: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the sum of the losses of rows, and its gradients: cuBLAS multiplies, in chunks."""
    return in_chunks(residual_, *args)


def _launch_loss(z: Tensor, target: Tensor, options: RowLoss, *tensors: Optional[Tensor]) -> None:
    tau = None if options.tau is None else options.tau.detach().to(z.device, torch.float32)
    _launch(
        _loss_kernel, z, target.contiguous(), tau, *tensors, ignore_index=options.ignore_index,
        rate=options.alpha - 1, constant=options.constant(z.size(1)),
        ALPHA=_constant_alpha(options.alpha), SMOOTHING=float(options.label_smoothing),
    )  # fmt: skip


def _constant_alpha(alpha: float) -> float:
    """Return alpha if a kernel is compiled for it, else 0, so that no other value compiles one."""
    return float(alpha) if alpha in (1.5, 2.0) else 0.0


def _launch(kernel: Any, z: Tensor, *tensors: Optional[Tensor], **arguments: Any) -> None:
    """Run a program for each row of ``z``."""
    with torch.cuda.device_of(z):
        kernel[(z.size(0),)](
            z, *tensors, size=z.size(1), **arguments, **row_options(z.size(1)),
            enable_fp_fusion=False,  # every operation rounds, as in the interpreter
        )  # fmt: skip


def row_options(size: int) -> dict[str, int]:
    """Return how kernels take rows of this size: a short one as one block."""
    whole = size <= 4096
    block = max(16, triton.next_power_of_2(size)) if whole else 2048
    return {
        "BLOCK": block,
        "STAGES": 1 if whole else 4,
        "num_warps": min(8, max(1, block // 256)),
    }


@triton.jit
def _entmax_kernel(
    z, row_alpha, p, tau, size, rate,
    ALPHA: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    z += row * size
    p += row * size
    if row_alpha is not None:  # alpha itself would have too few digits near 1
        rate = (tl.load(row_alpha + row) - 1).to(tl.float32)
        rate = tl.where(rate > 0, rate, float("nan"))
    shift, threshold, scale, _, _ = solve(z, size, rate, ALPHA, False, BLOCK, STAGES)
    for start in tl.range(0, size, BLOCK, num_stages=STAGES):
        probability = _probability(z, start, size, shift, threshold, scale, rate, ALPHA, BLOCK)
        _store(p, probability, start, size, BLOCK)
    tl.store(tau + row, (threshold + rate * shift) * (0 * scale + 1))


@triton.jit
def _entmax_backward_kernel(
    p, grad, result, size, rate, ALPHA: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr
):
    place = tl.program_id(0).to(tl.int64) * size
    total = tl.zeros([BLOCK], tl.float32)
    product = tl.zeros([BLOCK], tl.float32)
    for start in tl.range(0, size, BLOCK, num_stages=STAGES):
        s, incoming = _slope_and_gradient(p + place, grad + place, start, size, rate, ALPHA, BLOCK)
        total += s
        product += s * incoming
    total_of_row = tl.sum(total, 0)
    mean = tl.div_rn(tl.sum(product, 0), tl.where(total_of_row == 0, 1.0, total_of_row))
    for start in tl.range(0, size, BLOCK, num_stages=STAGES):
        s, incoming = _slope_and_gradient(p + place, grad + place, start, size, rate, ALPHA, BLOCK)
        _store(result + place, s * (incoming - mean), start, size, BLOCK)


@triton.jit
def _slope_and_gradient(p, grad, start, size, rate, ALPHA: tl.constexpr, BLOCK: tl.constexpr):
    """Load ``s = p ** (2 - alpha)`` and the incoming gradient, both 0 off the support."""
    column = start + tl.arange(0, BLOCK)
    weight = tl.load(p + column, mask=column < size, other=0.0).to(tl.float32)
    incoming = tl.load(grad + column, mask=column < size, other=0.0).to(tl.float32)
    return power_of_p(weight, rate, ALPHA), tl.where(weight > 0, incoming, 0.0)


# The ignored index may change per batch; specialising on it would compile again.
@triton.jit(do_not_specialize=["ignore_index"])
def _loss_kernel(
    z, target, tau, losses, solution, grad, result, size, ignore_index, rate, constant,
    ALPHA: tl.constexpr, SMOOTHING: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Solve a row and write its loss, and its solution if there is no ``result``; with the ``grad``
    of the loss, read the solution. To ``result``, which may be ``z``, write ``grad (p - q)``."""
    row, rows = tl.program_id(0).to(tl.int64), tl.num_programs(0)
    z += row * size
    label = tl.load(target + row)
    counts = label != ignore_index
    if grad is not None:
        shift = tl.load(solution + row).to(tl.float32)
        threshold = tl.load(solution + rows + row).to(tl.float32)
        scale = tl.load(solution + 2 * rows + row).to(tl.float32)
        factor = tl.load(grad + row).to(tl.float32)
    else:
        if tau is None:
            shift, threshold, scale, conjugate, logits = solve(
                z, size, rate, ALPHA, SMOOTHING > 0, BLOCK, STAGES
            )
            zero = shift
        else:
            threshold = tl.load(tau)
            zero = tl.div_rn(threshold, rate)
            shift, scale = threshold * 0, threshold * 0 + 1
            conjugate, logits = _sums_of_alpha_relu(
                z, size, threshold, rate, ALPHA, SMOOTHING > 0, BLOCK, STAGES
            )
        factor = threshold * 0 + 1
        is_class = (label >= 0) & (label < size)
        gold = tl.load(z + label, mask=is_class, other=float("nan")).to(tl.float32)
        expected = gold - zero  # <q, z - zero>
        if SMOOTHING > 0:
            mean = (tl.div_rn(logits, rate * 0 + size) - zero) * SMOOTHING
            # 0 * expected would be NaN where that is -inf.
            expected = mean if SMOOTHING == 1 else expected * (1 - SMOOTHING) + mean
        loss = constant + conjugate - expected
        loss = tl.where((loss < 0) | (label == ignore_index), 0.0, loss)  # rounding; NaN stays
        tl.store(losses + row, loss)
        if result is None:
            tl.store(solution + row, shift)
            tl.store(solution + rows + row, threshold)
            tl.store(solution + 2 * rows + row, scale)
    if result is not None:
        tl.debug_barrier()  # every thread has read what may now be written over
        for start in tl.range(0, size, BLOCK, num_stages=STAGES):
            difference = _probability(z, start, size, shift, threshold, scale, rate, ALPHA, BLOCK)
            gold_here = start + tl.arange(0, BLOCK) == label
            difference -= tl.where(gold_here, 1.0 - SMOOTHING, 0.0)
            if SMOOTHING > 0:
                difference -= tl.div_rn(rate * 0 + SMOOTHING, rate * 0 + size)
            difference = tl.where(counts, difference * factor, 0.0)
            _store(result + row * size, difference, start, size, BLOCK)


@triton.jit
def _sums_of_alpha_relu(
    z, size, tau, rate,
    ALPHA: tl.constexpr, SUM: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Return ``sum p ** alpha / alpha`` of a row, and the sum of its logits if SUM."""
    power = tl.zeros([BLOCK], tl.float32)
    logits = tl.zeros([BLOCK], tl.float32)
    for start in tl.range(0, size, BLOCK, num_stages=STAGES):
        x = load_block(z, start, size, BLOCK)
        weight, above = factors(rate * x, tau, rate, ALPHA)
        power += weight * above * above
        if SUM:
            logits += tl.where(start + tl.arange(0, BLOCK) < size, x, 0.0)
    return tl.div_rn(tl.sum(power, 0), 1 + rate), tl.sum(logits, 0)


@triton.jit
def _probability(z, start, size, shift, tau, scale, rate, ALPHA: tl.constexpr, BLOCK: tl.constexpr):
    """Return a block of p of a solved row."""
    x = (load_block(z, start, size, BLOCK) - shift) * rate
    weight, above = factors(x, tau, rate, ALPHA)
    return weight * above * scale


@triton.jit
def _store(z, x, start, size, BLOCK: tl.constexpr):
    column = start + tl.arange(0, BLOCK)
    tl.store(z + column, x.to(z.dtype.element_ty), mask=column < size)

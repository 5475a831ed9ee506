"""alpha-entmax and alpha-ReLU of rows of logits on a GPU, their gradients and their losses.

One program has one row, or several short ones. As in the reference, a row is first solved (see
``thresholds.py``), and then filled in from its solution as

    p = scale * [(alpha - 1) (z - shift) - tau]_+ ** (1 / (alpha - 1)),

so that a loss keeps nothing for its gradient but the logits and three numbers a row. Everything is
computed in fp32. The functions have the arguments and results of the operators.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, Optional

import torch
import triton
import triton.language as tl
from torch import Tensor

from fairseq_sparse.ops.fenchel_young import RowLoss
from fairseq_sparse.ops.gpu import comparisons
from fairseq_sparse.ops.gpu.thresholds import as_number, factors, load_rows, power_of_p, solve
from fairseq_sparse.ops.gpu.verification import verified
from fairseq_sparse.ops.reference.linear_loss import in_chunks

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
# Entries of an elementwise kernel's program.
_BLOCK = 1024


def _fits(
    name: str, kernel: Callable, z: Tensor, alpha: float, size: int, dtype: torch.dtype, *form: Any
) -> bool:
    """Return whether a kernel takes logits like ``z``, and has been verified for such rows."""
    if z.dtype not in _DTYPES or z.numel() == 0 or not 1 < alpha <= 2:
        return False
    constant = _constant_alpha(alpha)
    compare = partial(
        getattr(comparisons, name), kernel, size, dtype, z.device, constant or 1.3, *form
    )
    form = (dtype, constant, *form, *row_options(size).values())
    return verified(name, z.device, form, compare)


def fits_entmax(z, row_alpha, alpha, algorithm, topk, log) -> bool:
    """Each row may have an alpha > 1 of its own, above 2, too; a single alpha is at most 2."""
    alpha = 1.3 if row_alpha is not None else alpha
    form = (row_alpha is not None, log)
    return algorithm == "newton" and _fits("entmax", entmax, z, alpha, z.size(1), z.dtype, *form)


def fits_entmax_backward(p, grad, alpha) -> bool:
    return grad.dtype == p.dtype and _fits(
        "entmax_backward", entmax_backward, p, alpha, p.size(1), p.dtype
    )


def fits_alpha_relu(z, tau, alpha, log) -> bool:
    return tau.numel() == 1 and _fits("alpha_relu", alpha_relu, z, alpha, 300, z.dtype, log)


def fits_row_loss(z, target, tau, alpha, label_smoothing, ignore_index, algorithm, topk) -> bool:
    form = (tau is not None, label_smoothing)
    return algorithm == "newton" and _fits(
        "row_loss", row_loss, z, alpha, z.size(1), z.dtype, *form
    )


def fits_row_loss_backward(grad, z, target, solution, alpha, label_smoothing, ignore_index) -> bool:
    return _fits(
        "row_loss_backward", row_loss_backward, z, alpha, z.size(1), z.dtype, label_smoothing
    )


def fits_linear_loss(
    x, weight, bias, target, tau, alpha, label_smoothing, ignore_index, algorithm, topk, *needed
) -> bool:
    """The loop over chunks is the reference's; only its logits, in fp32, go to a kernel."""
    form = (tau is not None, label_smoothing)
    return (
        algorithm == "newton"
        and weight.numel() > 0
        and _fits("residual", residual_, x, alpha, weight.size(0), torch.float32, *form)
    )


def entmax(
    z: Tensor, row_alpha: Optional[Tensor], alpha: float, algorithm: str, topk: int, log: bool
) -> tuple[Tensor, Tensor]:
    """Return alpha-entmax of ``z [rows, size]``, or its logarithm, and tau of ``(alpha - 1) z``."""
    z = z.contiguous()
    p = torch.empty_like(z, dtype=torch.float32 if log else z.dtype)
    tau = torch.empty(z.size(0), dtype=torch.float32, device=z.device)
    row_alpha = None if row_alpha is None else row_alpha.contiguous()
    _launch(
        _entmax_kernel, z, row_alpha, p, tau, rate=alpha - 1,
        ALPHA=_constant_alpha(alpha, row_alpha), LOG=log,
    )  # fmt: skip
    return p, tau


def entmax_backward(p: Tensor, grad: Tensor, alpha: float) -> Tensor:
    """Return ``grad`` times the Jacobian of alpha-entmax, ``diag(s) - s s^T / sum(s)`` with
    ``s = p ** (2 - alpha)`` (Peters et al. 2019, Prop. 1). Off the support, ``grad`` may hold
    anything."""
    p = p.contiguous()
    result = torch.empty_like(p)
    _launch(
        _entmax_backward_kernel, p, grad.contiguous(), result, rate=alpha - 1,
        ALPHA=_constant_alpha(alpha),
    )  # fmt: skip
    return result


def alpha_relu(z: Tensor, tau: Tensor, alpha: float, log: bool) -> Tensor:
    """Return ``[(alpha - 1) z - tau]_+ ** (1 / (alpha - 1))``, or its logarithm, for one tau."""
    z = z.contiguous()
    p = torch.empty_like(z, dtype=torch.float32 if log else z.dtype)
    with torch.cuda.device_of(z):
        _alpha_relu_kernel[(triton.cdiv(z.numel(), _BLOCK),)](
            z, _as_fp32(tau, z), p, z.numel(), alpha - 1,
            ALPHA=_constant_alpha(alpha), LOG=log, BLOCK=_BLOCK, enable_fp_fusion=False,
        )  # fmt: skip
    return p


def row_loss(
    z: Tensor,
    target: Tensor,
    tau: Optional[Tensor],
    alpha: float,
    label_smoothing: float,
    ignore_index: int,
    algorithm: str,
    topk: int,
) -> tuple[Tensor, Tensor]:
    """Return the losses of rows ``[rows, V]``, fp32, and their solutions ``[4, rows]``, fp64.

    The loss of a target that is neither a class nor ignored is NaN: an error would have to wait for
    the GPU.
    """
    z = z.contiguous()
    solution = torch.empty(4, z.size(0), dtype=torch.float64, device=z.device)
    options = RowLoss(alpha, tau, label_smoothing, ignore_index)
    return _losses(z, target, options, solution), solution


def residual_(z: Tensor, target: Tensor, options: RowLoss, algorithm: str, topk: int) -> Tensor:
    """Return the losses of contiguous logits ``[rows, V]``, over which ``p - q`` is written."""
    return _losses(z, target, options, None)


def linear_loss(*args: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the sum of the losses of rows, and its gradients: cuBLAS multiplies, in chunks."""
    return in_chunks(residual_, *args)


def _losses(z: Tensor, target: Tensor, options: RowLoss, solution: Optional[Tensor]) -> Tensor:
    """Return the losses, and either write the solutions or replace ``z`` by ``p - q``."""
    losses = torch.empty(z.size(0), dtype=torch.float32, device=z.device)
    tau = None if options.tau is None else _as_fp32(options.tau, z)
    _launch(
        _loss_kernel, z, target.contiguous(), tau, losses, solution,
        ignore_index=options.ignore_index, rate=options.alpha - 1,
        constant=options.constant(z.size(1)), ALPHA=_constant_alpha(options.alpha),
        SMOOTHING=float(options.label_smoothing),
    )  # fmt: skip
    return losses


def row_loss_backward(
    grad: Tensor,
    z: Tensor,
    target: Tensor,
    solution: Tensor,
    alpha: float,
    label_smoothing: float,
    ignore_index: int,
) -> Tensor:
    """Return ``grad [rows]`` times ``p - q``, in the dtype of ``z``; 0 in ignored rows.

    The product is rounded, not its factors: with a scaled loss, ``grad`` can be too large for fp16
    although the product is not.
    """
    z = z.contiguous()
    result = torch.empty_like(z)
    _launch(
        _loss_backward_kernel, z, target.contiguous(), solution.contiguous(), grad.contiguous(),
        result, ignore_index=ignore_index, rate=alpha - 1,
        ALPHA=_constant_alpha(alpha), SMOOTHING=float(label_smoothing),
    )  # fmt: skip
    return result


def _constant_alpha(alpha: float, row_alpha: Optional[Tensor] = None) -> float:
    """Return alpha if a kernel is compiled for it, else 0, so that no other value compiles one."""
    return float(alpha) if row_alpha is None and alpha in (1.5, 2.0) else 0.0


def _as_fp32(tau: Tensor, z: Tensor) -> Tensor:
    return tau.detach().to(z.device, torch.float32)


def _launch(kernel: Any, z: Tensor, *tensors: Optional[Tensor], **arguments: Any) -> None:
    """Run a kernel over the rows of ``z``."""
    rows, size = z.shape
    options = row_options(size)
    with torch.cuda.device_of(z):
        kernel[(triton.cdiv(rows, options["ROWS"]),)](
            z, *tensors, rows=rows, units=size // options["UNIT"], **arguments, **options,
            enable_fp_fusion=False,  # every operation rounds, as in the interpreter
        )  # fmt: skip


@lru_cache(maxsize=1024)
def row_options(size: int) -> dict[str, int]:
    """Return how kernels take rows of this size.

    They get the size in units of UNIT. A unit of 8, to which fairseq pads vocabularies, tells the
    compiler that 16 bytes can be loaded at a time; by itself it would see only multiples of 16.
    """
    whole = size <= 4096
    if whole:
        block = max(16, triton.next_power_of_2(size))
    else:
        block = 1024 if size <= 1 << 14 else 2048
    short = block <= 128  # these rows share a program of 4 warps
    return {
        "BLOCK": block,
        "ROWS": 512 // block if short else 1,
        "STAGES": 1 if whole else 4,
        "UNIT": 8 if size % 8 == 0 else 1,
        # Of a long row a thread has 8 lanes, of which it keeps the two largest entries.
        "num_warps": 4 if short else max(1, block // (512 if whole else 256)),
        "maxnreg": 128,  # 16 warps fit on a multiprocessor, each with blocks on their way
    }


# Arguments that change per batch; excluded from specialisation to avoid recompiling.
_CHANGING = ["rows", "ignore_index"]


@triton.jit
def _row_of_program(rows, ROWS: tl.constexpr):
    """Return the indices of this program's rows, ``[ROWS, 1]``, and which of them exist."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    return row, row < rows


@triton.jit(do_not_specialize=_CHANGING)
def _entmax_kernel(
    z, row_alpha, p, tau, rows, units, rate,
    ALPHA: tl.constexpr, LOG: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
    STAGES: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    size = units * UNIT
    rate = as_number(rate)
    row, there = _row_of_program(rows, ROWS)
    z += row * units * UNIT
    p += row * units * UNIT
    if row_alpha is not None:  # alpha itself would have too few digits near 1
        rate = (tl.load(row_alpha + row, mask=there, other=1.5) - 1).to(tl.float32)
    shift, threshold, total, _, _ = solve(z, there, size, rate, ALPHA, False, BLOCK, STAGES)
    scale = tl.div_rn(as_number(1.0), total)
    for start in tl.range(0, size, BLOCK, num_stages=STAGES):
        x = (load_rows(z, there, start, size, BLOCK) - shift) * rate
        weight, above = factors(x, threshold, rate, ALPHA)
        probability = weight * above * scale
        if LOG:
            probability = tl.log(probability)
        column = start + tl.arange(0, BLOCK)[None, :]
        tl.store(p + column, probability.to(p.dtype.element_ty), mask=there & (column < size))
    tl.store(tau + row, (threshold + rate * shift) * (0 * total + 1), mask=there)


@triton.jit(do_not_specialize=_CHANGING)
def _entmax_backward_kernel(
    p, grad, result, rows, units, rate,
    ALPHA: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
    STAGES: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    size = units * UNIT
    rate = as_number(rate)
    row, there = _row_of_program(rows, ROWS)
    place = row * units * UNIT
    total = tl.zeros([ROWS, BLOCK], tl.float32)
    product = tl.zeros([ROWS, BLOCK], tl.float32)
    for start in tl.range(0, size, BLOCK, num_stages=STAGES):
        s, incoming = _slope_and_gradient(p, grad, place, there, start, size, rate, ALPHA, BLOCK)
        total += s
        product += s * incoming
    total_of_row = tl.sum(total, 1, keep_dims=True)
    mean = tl.div_rn(
        tl.sum(product, 1, keep_dims=True), tl.where(total_of_row == 0, 1.0, total_of_row)
    )
    for start in tl.range(0, size, BLOCK, num_stages=STAGES):
        s, incoming = _slope_and_gradient(p, grad, place, there, start, size, rate, ALPHA, BLOCK)
        column = start + tl.arange(0, BLOCK)[None, :]
        outgoing = (s * (incoming - mean)).to(result.dtype.element_ty)
        tl.store(result + place + column, outgoing, mask=there & (column < size))


@triton.jit
def _slope_and_gradient(
    p, grad, place, there, start, size, rate, ALPHA: tl.constexpr, BLOCK: tl.constexpr
):
    """Load ``s = p ** (2 - alpha)`` and the incoming gradient, both 0 off the support."""
    column = start + tl.arange(0, BLOCK)[None, :]
    valid = there & (column < size)
    weight = tl.load(p + place + column, mask=valid, other=0.0).to(tl.float32)
    incoming = tl.load(grad + place + column, mask=valid, other=0.0).to(tl.float32)
    return power_of_p(weight, rate, ALPHA), tl.where(weight > 0, incoming, 0.0)


@triton.jit
def _alpha_relu_kernel(
    z, tau, p, count, rate, ALPHA: tl.constexpr, LOG: tl.constexpr, BLOCK: tl.constexpr
):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    rate = tl.zeros([1], tl.float32) + rate
    logits = tl.load(z + place, mask=place < count, other=0.0).to(tl.float32)
    weight, above = factors(rate * logits, tl.load(tau), rate, ALPHA)
    value = weight * above
    if LOG:
        value = tl.log(value)
    tl.store(p + place, value.to(p.dtype.element_ty), mask=place < count)


@triton.jit(do_not_specialize=_CHANGING)
def _loss_kernel(
    z, target, tau, losses, solution, rows, units, ignore_index, rate, constant,
    ALPHA: tl.constexpr, SMOOTHING: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
    STAGES: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    size = units * UNIT
    rate = as_number(rate)
    row, exists = _row_of_program(rows, ROWS)
    z += row * units * UNIT
    label = tl.load(target + row, mask=exists, other=0)
    there = exists & (label != ignore_index)  # of the other rows nothing is loaded
    is_class = (label >= 0) & (label < size)
    gold = tl.load(z + label, mask=there & is_class, other=0.0).to(tl.float32)
    if tau is None:
        shift, threshold, total, conjugate, logits = solve(
            z, there, size, rate, ALPHA, SMOOTHING > 0, BLOCK, STAGES
        )
        zero, scale = shift, tl.div_rn(as_number(1.0), total)
    else:
        threshold = tl.load(tau) + tl.zeros_like(gold)
        zero = tl.div_rn(threshold, rate)
        shift = tl.zeros_like(gold)
        scale = tl.zeros_like(gold) + 1
        conjugate, logits = _sums_of_alpha_relu(
            z, there, size, threshold, rate, ALPHA, SMOOTHING > 0, BLOCK, STAGES
        )
    expected = tl.where(is_class, gold - zero, float("nan"))  # <q, z - zero>
    if SMOOTHING > 0:
        mean = (tl.div_rn(logits, as_number(size)) - zero) * SMOOTHING
        # 0 * expected would be NaN where that is -inf.
        expected = mean if SMOOTHING == 1 else expected * (1 - SMOOTHING) + mean
    loss = constant + conjugate - expected
    loss = tl.where(loss < 0, 0.0, loss)  # rounding; NaN stays
    tl.store(losses + row, tl.where(there, loss, 0.0), mask=exists)
    if solution is not None:
        tl.store(solution + row, shift, mask=exists)
        tl.store(solution + rows + row, threshold, mask=exists)
        tl.store(solution + 2 * rows + row, scale, mask=exists)
        tl.store(
            solution + 3 * rows + row, tl.full(row.shape, float("-inf"), tl.float32), mask=exists
        )
    else:
        tl.debug_barrier()  # every thread has read what is now written over
        for start in tl.range(0, size, BLOCK, num_stages=STAGES):
            difference = _residual(
                z, there, start, size, label, shift, threshold, scale, rate, ALPHA, SMOOTHING, BLOCK
            )
            column = start + tl.arange(0, BLOCK)[None, :]
            difference = difference.to(z.dtype.element_ty)
            tl.store(z + column, difference, mask=exists & (column < size))


@triton.jit
def _sums_of_alpha_relu(
    z, there, size, tau, rate,
    ALPHA: tl.constexpr, SUM: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Return ``sum p ** alpha / alpha`` of each row, and the sum of its logits if SUM."""
    power = tl.zeros([there.shape[0], BLOCK], tl.float32)
    logits = tl.zeros([there.shape[0], BLOCK], tl.float32)
    for start in tl.range(0, size, BLOCK, num_stages=STAGES):
        x = load_rows(z, there, start, size, BLOCK)
        weight, above = factors(rate * x, tau, rate, ALPHA)
        power += weight * above * above
        if SUM:
            logits += tl.where(start + tl.arange(0, BLOCK)[None, :] < size, x, 0.0)
    power_of_row = tl.sum(power, 1, keep_dims=True)
    conjugate = tl.div_rn(power_of_row, 1 + rate)
    return conjugate, tl.sum(logits, 1, keep_dims=True)


@triton.jit(do_not_specialize=_CHANGING)
def _loss_backward_kernel(
    z, target, solution, grad, result, rows, units, ignore_index, rate,
    ALPHA: tl.constexpr, SMOOTHING: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
    STAGES: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    size = units * UNIT
    rate = as_number(rate)
    row, exists = _row_of_program(rows, ROWS)
    z += row * units * UNIT
    result += row * units * UNIT
    label = tl.load(target + row, mask=exists, other=0)
    there = exists & (label != ignore_index)
    shift = tl.load(solution + row, mask=there, other=0.0).to(tl.float32)
    threshold = tl.load(solution + rows + row, mask=there, other=0.0).to(tl.float32)
    scale = tl.load(solution + 2 * rows + row, mask=there, other=0.0).to(tl.float32)
    factor = tl.load(grad + row, mask=there, other=0.0).to(tl.float32)
    for start in tl.range(0, size, BLOCK, num_stages=STAGES):
        difference = _residual(
            z, there, start, size, label, shift, threshold, scale, rate, ALPHA, SMOOTHING, BLOCK
        )
        column = start + tl.arange(0, BLOCK)[None, :]
        difference = (difference * factor).to(result.dtype.element_ty)
        tl.store(result + column, difference, mask=exists & (column < size))


@triton.jit
def _residual(
    z, there, start, size, label, shift, tau, scale, rate,
    ALPHA: tl.constexpr, SMOOTHING: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Return a block of ``p - q``, 0 in the rows that are not there."""
    x = (load_rows(z, there, start, size, BLOCK) - shift) * rate
    weight, above = factors(x, tau, rate, ALPHA)
    column = start + tl.arange(0, BLOCK)[None, :]
    difference = weight * above * scale - tl.where(column == label, 1.0 - SMOOTHING, 0.0)
    if SMOOTHING > 0:
        difference -= tl.div_rn(as_number(SMOOTHING), as_number(size))
    return tl.where(there, difference, 0.0)

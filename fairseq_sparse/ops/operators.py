"""The search for the threshold of alpha-entmax as one PyTorch operator.

The number of steps of the search depends on the values, which ``torch.compile`` and ``export``
cannot follow. As an operator, ``fairseq_sparse::entmax_rows``, it is one node of their graphs, runs
on the same kernels as elsewhere, and gives shapes for fake tensors. Everything else in this folder
is plain PyTorch where it is captured (see ``capture.py``). The operator itself has no gradient; the
functions around it do.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from typing import Optional

import torch
from torch import Tensor

from fairseq_sparse.ops.precision import at_least_fp32
from fairseq_sparse.ops.reference.entmax import Alpha, EntmaxRows

NAME = "operators"
_OPERATOR = "fairseq_sparse::entmax_rows"
_library = torch.library.Library("fairseq_sparse", "FRAGMENT")


def define_entmax_rows(solve: Callable[[Tensor, Alpha, int], EntmaxRows]) -> None:
    """Define the operator, computed by ``solve`` from logits, alpha and topk."""

    def compute(z: Tensor, row_alpha: Optional[Tensor], alpha: float, topk: int):
        """Solve the rows; results must not share memory with arguments, nor with each other."""
        if z.numel() == 0:
            nothing = at_least_fp32(z).new_zeros(z.size(0))
            p = torch.zeros_like(z, memory_format=torch.contiguous_format)
            return p, *(nothing.clone() for _ in range(3))
        rows = solve(z, alpha if row_alpha is None else row_alpha, topk)
        # Contiguous, as _fake says; some searches keep the strides of z.
        return rows.p.contiguous(), *(x.clone() for x in rows[1:])

    _library.define(
        "entmax_rows(Tensor z, Tensor? row_alpha, float alpha, int topk) "
        "-> (Tensor, Tensor, Tensor, Tensor)"
    )
    _library.impl("entmax_rows", compute, "CompositeExplicitAutograd")
    torch.library.register_fake(_OPERATOR)(_fake)
    torch.library.register_vmap(_OPERATOR, _vmap)


def _fake(z: Tensor, row_alpha: Optional[Tensor], alpha: float, topk: int):
    p = torch.empty_like(z, memory_format=torch.contiguous_format)
    dtype = torch.float64 if z.dtype == torch.float64 else torch.float32
    return p, *(z.new_empty(z.size(0), dtype=dtype) for _ in range(3))


def _vmap(info, in_dims, z: Tensor, row_alpha: Optional[Tensor], alpha: float, topk: int):
    z = batch_first(z, in_dims[0], info.batch_size)
    batch, rows, size = z.shape
    if row_alpha is not None:
        row_alpha = batch_first(row_alpha, in_dims[1], batch).reshape(batch * rows, 1)
    found = torch.ops.fairseq_sparse.entmax_rows(
        z.reshape(batch * rows, size), row_alpha, alpha, topk
    )
    return tuple(x.view(batch, rows, *x.shape[1:]) for x in found), (0, 0, 0, 0)


def entmax_probabilities(z: Tensor, alpha: Alpha) -> Tensor:
    """Return the probabilities of :func:`entmax_rows`."""
    return entmax_rows(z, alpha).p


def entmax_rows(z: Tensor, alpha: Alpha, topk: int = 0) -> EntmaxRows:
    """Solve alpha-entmax by the operator; see :func:`fairseq_sparse.ops.mappings.entmax_rows`."""
    # If it was never imported, z cannot be a DTensor; importing it is slow.
    distributed = sys.modules.get("torch.distributed.tensor")
    if distributed is not None and isinstance(z, distributed.DTensor):
        _share_rows()
    each = (alpha, 0.0) if torch.is_tensor(alpha) else (None, float(alpha))
    return EntmaxRows(*torch.ops.fairseq_sparse.entmax_rows(z, *each, topk))


@cache
def _share_rows() -> None:
    """Tell PyTorch that rows can be solved on their own shards, if no row is split."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.experimental import register_sharding

    @register_sharding(torch.ops.fairseq_sparse.entmax_rows.default)
    def _placements(z, row_alpha, alpha, topk):
        return [
            ([placement] * 4, [placement, None if row_alpha is None else placement, None, None])
            for placement in (Replicate(), Shard(0))
        ]


def batch_first(x: Tensor, dim: Optional[int], batch: int) -> Tensor:
    """Return ``x`` with the dimension of ``vmap`` in front, expanded if it has none."""
    return x.expand(batch, *x.shape) if dim is None else x.movedim(dim, 0)

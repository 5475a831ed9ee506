"""Logits that can be in the support, found with products in bfloat16, see screen.c."""

from __future__ import annotations

import math
import os
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple, Optional

import torch
from torch import Tensor

from fairseq_sparse.ops.cpu.boundary import call, empty

# A row's list has room for 1 / _ROOM of its logits; a row with more candidates is searched again.
_ROOM = 8


def starts_of(counts: Tensor) -> Tensor:
    """Return the starts of rows with these numbers of entries, and the last end: ``[rows + 1]``."""
    start = counts.new_zeros(counts.numel() + 1, dtype=torch.int64)
    torch.cumsum(counts, 0, out=start[1:])
    return start


@cache
def multiplies_bfloat16() -> bool:
    """Return whether this processor multiplies bfloat16 faster than fp32.

    oneDNN computes these products; ``ONEDNN_MAX_CPU_ISA`` can limit it to fewer instructions than
    the processor has.
    """
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA", "ALL").upper()
    if not re.search("ALL|DEFAULT|BF16|FP16|AMX|AVX10", limit):
        return False
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return False
    flags = next((line.split() for line in lines if line.startswith("flags")), [])
    return torch.backends.mkldnn.is_available() and not {"avx512_bf16", "amx_bf16"}.isdisjoint(
        flags
    )


class RoundedRows(NamedTuple):
    """A matrix ``[rows, width]`` in bfloat16, with what is needed to bound its error."""

    full: Tensor  # [rows, width], fp32
    half: Tensor  # [rows, width], bfloat16
    norm: Tensor  # [rows], bounds of the norms of (full + half) / 2
    error: Tensor  # [rows], bounds of the norms of full - half

    def rows(self, rows: slice) -> RoundedRows:
        """Return some of the rows."""
        return RoundedRows(*(part[rows] for part in self))


def round_rows(full: Tensor) -> RoundedRows:
    """Round ``full``, fp32 and contiguous."""
    half = torch.empty_like(full, dtype=torch.bfloat16)
    norm, error = full.new_empty(2, full.size(0))
    call("round_rows", full.numel(), full, *full.shape, half, norm, error)
    return RoundedRows(full, half, norm, error)


class PackedRows(NamedTuple):
    """A few of the logits of each row."""

    z: Tensor  # [entries], fp32, row after row
    start: Tensor  # [rows + 1], int64: where those of each row begin
    columns: Tensor  # [entries], int32, the columns of these logits
    size: int  # how many logits a whole row has


def find_candidates(
    features: RoundedRows,
    weight: RoundedRows,
    target: Tensor,
    alpha: float,
    tau: Optional[float],
    max_share: float,
) -> Optional[tuple[PackedRows, Tensor]]:
    """Find the logits that can be in the support, and those of the targets.

    Args:
        features: ``[rows, d]``.
        weight: ``[V, d]``.
        target: ``[rows]``, int64, all in range.
        tau: the threshold of alpha-ReLU, None for alpha-entmax.
        max_share: the largest share of all logits that may be candidates.

    Returns:
        The candidates and the targets' logits ``[rows]``, or None if there are too many candidates.
    """
    approximate = features.half @ weight.half.t()  # [rows, V]
    rows, size = approximate.shape
    cut, gold = approximate.new_empty(2, rows, dtype=torch.float32)
    count = empty(rows, dtype=torch.int64)
    screen = (approximate, rows, size, features.norm, features.error, weight.norm, weight.error)
    threshold = math.nan if tau is None else tau
    room = max(1, size // _ROOM)
    found = empty(rows, room, dtype=torch.int32)
    arguments = (*screen, alpha, threshold, room, cut, count, found)
    call("find_candidates", approximate.numel(), *arguments)
    start = starts_of(count)
    total = int(start[-1])
    if total > max_share * approximate.numel():
        return None
    columns, z = empty(total, dtype=torch.int32), empty(total)
    matrices = (features.full, weight.full, weight.full.size(1))
    arguments = (*screen, cut, room, found, *matrices, target, start, columns, z, gold)
    call("fill_candidates", approximate.numel(), *arguments)
    return PackedRows(z, start, columns, size), gold

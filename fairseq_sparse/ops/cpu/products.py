"""Products of a sparse matrix with dense ones, by the compiled kernels."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fairseq_sparse.ops.cpu.boundary import call, empty


def starts_of(counts: Tensor) -> Tensor:
    """Return the starts of rows with these numbers of entries, and the last end: ``[rows + 1]``."""
    start = counts.new_zeros(counts.numel() + 1, dtype=torch.int64)
    torch.cumsum(counts, 0, out=start[1:])
    return start


class SparseRows(NamedTuple):
    """A sparse matrix ``[rows, size]``, stored row by row; an entry given twice is added up."""

    start: Tensor  # [rows + 1], int64: where the entries of each row begin
    columns: Tensor  # [entries], int32
    values: Tensor  # [entries], fp32
    size: int

    @classmethod
    def concatenated(cls, parts: list[SparseRows]) -> SparseRows:
        """Return the rows of all parts, one after another."""
        if len(parts) == 1:
            return parts[0]
        ends, offset = [parts[0].start[:1]], 0
        for part in parts:
            ends.append(part.start[1:] + offset)
            offset += part.values.numel()
        columns = torch.cat([part.columns for part in parts])
        values = torch.cat([part.values for part in parts])
        return cls(torch.cat(ends), columns, values, parts[0].size)

    def times(self, dense: Tensor, base: Tensor) -> Tensor:
        """Return ``base + self @ dense``, ``[rows, width]``.

        Args:
            dense: ``[size, width]``, fp32 and contiguous.
            base: ``[width]``, fp32, added to every row.
        """
        rows, width = self.start.numel() - 1, dense.size(1)
        out = empty(rows, width)
        work = (self.values.numel() + rows) * width
        arguments = (self.start, self.columns, self.values, rows, dense, self.size, width)
        call("product", work, *arguments, base.contiguous(), out)
        return out

    def transposed(self, row_scale: Tensor) -> SparseRows:
        """Return ``(diag(row_scale) self)^T``, ``[size, rows]``; ``row_scale [rows]``, fp32."""
        rows = self.start.numel() - 1
        start = empty(self.size + 1, dtype=torch.int64)
        columns, values = torch.empty_like(self.columns), torch.empty_like(self.values)
        arguments = (self.start, self.columns, self.values, rows, self.size, row_scale)
        call("transpose", 0, *arguments, start, columns, values)
        return SparseRows(start, columns, values, rows)

    def dense(self, row_scale: Tensor, base: float) -> Tensor:
        """Return ``diag(row_scale) (self + base)``, ``[rows, size]``, fp32."""
        rows = self.start.numel() - 1
        out = empty(rows, self.size)
        arguments = (rows, self.size, row_scale, base, out)
        call("to_dense", out.numel(), self.start, self.columns, self.values, *arguments)
        return out

"""scripts/benchmark/check_kernels.py: a right op passes, a wrong one is found."""

from __future__ import annotations

import pytest
import torch

from benchmark import check_kernels, measure
from fairseq_sparse import ops

SMALL = ["--rows", "3x40"]


def run() -> int:
    options = check_kernels.parse_arguments(SMALL)
    return measure.main("check_kernels", options, check_kernels.run, check_kernels.table)


def test_ops_pass(capsys: pytest.CaptureFixture) -> None:
    assert run() == 0
    total = capsys.readouterr().out.split()
    assert total[0] == total[2] and int(total[0]) > 100


@pytest.mark.parametrize("part", ["value", "gradient", "edge", "crash"])
def test_wrong_kernel_is_found(
    part: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """An entmax15 that is wrong in fp32, where a kernel would be."""
    right = ops.entmax15

    def wrong(z: torch.Tensor) -> torch.Tensor:
        p = right(z)
        if z.dtype == torch.float64:
            return p
        if part == "crash":
            raise RuntimeError("no such kernel")
        if part == "edge":
            return p.nan_to_num() if z.isnan().any() else p
        return 1.001 * p if part == "value" else p + 1e-3 * (z - z.detach())

    monkeypatch.setattr(ops, "entmax15", wrong)
    assert run() == 1
    failed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| float32")]
    assert failed and all("entmax" in line for line in failed)
    found = {
        "value": "| value |",
        "gradient": "| z  ",
        "edge": "a NaN is NaN",
        "crash": "no such kernel",
    }
    assert any(found[part] in line for line in failed)

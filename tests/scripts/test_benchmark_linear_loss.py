"""scripts/benchmark/linear_loss.py: what it compares and reports; not how fast anything is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmark import linear_loss, measure
from fairseq_sparse.ops import entmax15

SMALL = ["--sizes", "70x8x400", "--rounds", "2", "--least-seconds", "0"]
OURS = [
    "linear_alpha_relu_loss",
    "alpha_relu_loss",
    "linear_entmax_loss, 1.5",
    "entmax_loss, 1.5",
    "linear_entmax_loss, 2",
]


def test_table_and_json(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    options = linear_loss.parse_arguments([*SMALL, "--json", str(tmp_path / "out.json")])
    assert measure.main("linear_loss", options, linear_loss.run, linear_loss.table) == 0
    results = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))["results"]
    for state in linear_loss.STATES:
        rows = {row["name"]: row for row in results if row["state"] == state}
        assert list(rows)[:6] == [linear_loss.BASELINE, *OURS]
        baseline = rows[linear_loss.BASELINE]
        assert baseline["density"] == baseline["time"] == baseline["memory"] == 1
        for row in rows.values():
            assert row["memory"] == row["peak_bytes"] / baseline["peak_bytes"]
    density = {row["state"]: row["density"] for row in results if row["name"] == OURS[2]}
    assert density["trained"] == pytest.approx(0.005, abs=0.001)
    assert density["untrained"] > 2 * density["trained"]
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert len(lines) == 2 + len(results)


def test_fused_and_unfused_compute_the_same() -> None:
    """Else one time says nothing about the other."""
    features, weight = torch.randn(20, 6), torch.randn(50, 6)
    target = torch.randint(50, (20,))
    found = {}
    for name, (_, loss) in linear_loss.functions(0.4, torch.float32, "cpu").items():
        x, w = (tensor.clone().requires_grad_() for tensor in (features, weight))
        value = loss(x, w, target)
        value.backward()
        found[name] = torch.cat([value.detach().reshape(1), x.grad.flatten(), w.grad.flatten()])
    for name in ("alpha_relu_loss", "entmax_loss, 1.5"):
        torch.testing.assert_close(found[f"linear_{name}"], found[name])
    if "F.linear_cross_entropy" in found:
        torch.testing.assert_close(found["F.linear_cross_entropy"], found[linear_loss.BASELINE])


@pytest.mark.parametrize("wanted", [0.02, 0.2])
def test_density_that_was_asked_for(wanted: float) -> None:
    logits = torch.randn(64, 1000)
    scale = linear_loss.scale_to_density(logits, wanted)
    assert linear_loss.density(entmax15(scale * logits)) == pytest.approx(wanted, rel=0.02)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--trained-density 1", "--trained-density 1.0: must be in (0, 1)"),
        ("--states new", "no new; choose from untrained, trained"),
        ("--sizes 2x3", "sizes have 3 numbers"),
    ],
)
def test_bad_flags_are_named(flags: str, message: str, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit):
        linear_loss.parse_arguments(flags.split())
    assert message in capsys.readouterr().err

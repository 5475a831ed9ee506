"""scripts/benchmark/losses.py: what it compares and reports; not how fast anything is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmark import losses, measure

SMALL = ["--sizes", "8x40,4x60", "--rounds", "2", "--least-seconds", "0"]


def run(*flags: str) -> int:
    options = losses.parse_arguments([*SMALL, *flags])
    return measure.main("losses", options, losses.run, losses.table)


def test_table_and_json(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    pytest.importorskip("entmax")
    assert run("--json", str(tmp_path / "out.json")) == 0
    results = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))["results"]
    found = {(row["part"], row["rows"], row["vocabulary"], row["name"]) for row in results}
    ours = ["alpha_relu_loss", *(f"entmax_loss, {alpha}" for alpha in ("1.25", "1.5", "1.75", "2"))]
    for size in ((8, 40), (4, 60)):
        assert {("loss", *size, name) for name in ("cross_entropy", *ours, losses.SORT)} <= found
        assert {("mapping", *size, name) for name in ("torch.softmax", "entmax15")} <= found
    for row in results:
        assert len(row["seconds"]) == 2 and row["dtype"] == "float32"
        if row["name"] in ("cross_entropy", "torch.softmax"):
            assert row["time"] == 1
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert len(lines) == 2 + len(results)


def test_peers_compute_the_same() -> None:
    """Else their times say nothing about ours."""
    pytest.importorskip("entmax")
    z, target = torch.randn(6, 300), torch.randint(300, (6,))

    def value_and_gradient(loss) -> torch.Tensor:
        logits = z.clone().requires_grad_()
        value = loss(logits, target)
        value.backward()
        return torch.cat([value.detach().reshape(1), logits.grad.flatten()])

    found = {name: value_and_gradient(loss) for name, loss in losses.losses(z, target).items()}
    peers = [name for name in found if name.startswith("entmax package")]
    assert len(peers) == 3
    for name in peers:
        torch.testing.assert_close(found[name], found["entmax_loss, 1.5"], rtol=1e-4, atol=1e-5)
    mapped = {name: function(z) for name, function in losses.mappings(z).items()}
    for kind in ("entmax15", "sparsemax"):
        torch.testing.assert_close(mapped[f"entmax package, {kind}"], mapped[kind])


def test_bisection_has_the_accuracy_of_ours_and_no_step_more() -> None:
    entmax = pytest.importorskip("entmax")
    from fairseq_sparse.ops import entmax15

    z = torch.randn(8, 200)
    exact = entmax15(z.double())

    def error(p: torch.Tensor) -> float:
        return float((p.double() - exact).abs().max())

    steps = losses.equal_accuracy_steps(z)
    errors = [error(entmax.entmax_bisect(z, n_iter=n)) for n in range(1, losses.MOST_STEPS + 1)]
    enough = max(error(entmax15(z)), 2 * min(errors))
    assert errors[steps - 1] <= enough < errors[steps - 2]


def test_a_loss_that_writes_over_its_logits_changes_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[float] = []

    def destroy(z: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        loss = z.sum()
        z.data.zero_()
        return loss

    def look(z: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        seen.append(float(z.detach().abs().sum()))
        return z.sum()

    monkeypatch.setattr(losses, "losses", lambda *_: {"destroy": destroy, "look": look})
    jobs = losses.jobs_of("loss", 4, 30, torch.float32, "cpu")
    for name in ("look", "destroy", "look"):
        jobs[name]()
    assert seen[0] == seen[1] > 0


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--parts loss,losses", "no losses; choose from loss, mapping"),
        ("--sizes 10", "sizes have 2 numbers"),
        ("--dtypes float64", "no float64"),
        ("--json no/such/folder/x.json", "there is no such folder"),
    ],
)
def test_bad_flags_are_named(flags: str, message: str, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit):
        losses.parse_arguments(flags.split())
    assert message in capsys.readouterr().err

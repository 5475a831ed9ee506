"""scripts/stress, on a small scale."""

import json

import pytest
import torch

from stress import kills, precision


def run_precision(tmp_path, *arguments):
    """The status of the script, and the results of its runs."""
    path = tmp_path / "results.json"
    status = precision.main([*arguments, "--json", str(path)])
    return status, json.loads(path.read_text())["runs"]


@pytest.mark.parametrize(
    "arch, attention, precisions",
    [
        ("transformer_sparse", "rela_g", precision.PRECISIONS),
        ("lstm_sparse", "sparsemax", ("fp16", "amp_fp16")),
    ],
)
def test_training_in_half_precision(arch, attention, precisions, tmp_path, capsys):
    """From a cold loss scale, and past it."""
    possible = [name for name in precisions if precision.is_available(name)]
    if not possible:
        pytest.skip("this PyTorch has no fp16 on a CPU")
    arguments = ("--arch", arch, "--outputs", "alpha_relu", "--attention", attention)
    arguments += ("--precisions", ",".join(precisions), "--init-scale", "128", "--updates", "20")
    status, runs = run_precision(tmp_path, *arguments)
    assert status == 0, runs
    assert [run["precision"] for run in runs] == possible
    for run in runs:
        assert run["updates"] == 20 and run["last_loss"] < run["first_loss"]
    assert "alpha_relu" in capsys.readouterr().out


@pytest.mark.skipif(not precision.is_available("amp_fp16"), reason="this PyTorch has no scaler")
def test_a_loss_scale_that_is_too_large_comes_down(tmp_path):
    arguments = ("--outputs", "softmax", "--attention", "softmax", "--precisions", "amp_fp16")
    status, (run,) = run_precision(
        tmp_path, *arguments, "--init-scale", f"{2**40}", "--updates", "20"
    )
    assert status == 0
    assert run["updates"] == 20 and run["skipped"]
    assert run["last_scale"] == 2.0 ** (40 - len(run["skipped"]))


@pytest.mark.parametrize(
    "attention, status, excepted", [("softmax", 1, False), ("relu", 0, True)], ids=str
)
def test_a_training_that_diverges_is_found(attention, status, excepted, tmp_path, capsys):
    arguments = ("--outputs", "entmax15", "--attention", attention, "--precisions", "bf16")
    found, (run,) = run_precision(tmp_path, *arguments, "--updates", "20", "--flags", "--lr 1e30")
    assert run["failure"] and run["excepted"] == excepted
    assert found == status
    assert run["failure"] in capsys.readouterr().err


def test_what_there_is_not_is_refused(capsys):
    assert precision.main(["--attention", "rela_x"]) == 1
    assert "--attention rela_x: choose from softmax" in capsys.readouterr().err


@pytest.mark.parametrize("value", [torch.tensor([0.0, -0.0]), torch.tensor([1.0, 1 + 2**-23])])
def test_kills_are_compared_to_the_last_bit(value):
    assert kills._digest(value) != kills._digest(value.flip(0))
    assert kills._digest(value) == kills._digest(value.clone())


def test_a_moment_comes_after_so_many_signs():
    signs = iter([{1}, {1}, {1, 2}, {1, 2}, {2}, {2, 3}])
    has_come = kills._after_new(lambda: next(signs), 2)
    assert [has_come() for _ in range(5)] == [False, False, False, False, True]


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags", ["", "--update-freq 2 --lr-scheduler reduce_lr_on_valid_loss"], ids=str
)
def test_killed_runs_end_as_undisturbed_ones(flags, tmp_path):
    path = tmp_path / "results.json"
    status = kills.main(["--kills", "9", "--flags", flags, "--json", str(path)])
    results = json.loads(path.read_text())
    assert results["failures"] == [] and status == 0
    assert results["all_kills"] == 9

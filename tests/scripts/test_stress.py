"""scripts/stress, on a small scale."""

import json
import platform
import shutil

import pytest
import torch

from stress import kill_moments, kills, precision, sanitizers


def run_precision(tmp_path, *arguments):
    """Return the status of the script, and the results of its runs."""
    path = tmp_path / "results.json"
    status = precision.main([*arguments, "--json", str(path)])
    return status, json.loads(path.read_text())["runs"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "arch, attention, precisions",
    [
        ("transformer_sparse", "rela_g", precision.PRECISIONS),
        ("lstm_sparse", "sparsemax", ("fp16", "amp_fp16")),
    ],
)
def test_training_in_half_precision(arch, attention, precisions, tmp_path, capsys):
    """From fairseq's default loss scale, no training fails, and the loss decreases."""
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


@pytest.mark.parametrize("value", [torch.tensor([0.0, -0.0]), torch.tensor([1.0, 1 + 2**-23])])
def test_kills_are_compared_to_the_last_bit(value):
    assert kills._digest(value) != kills._digest(value.flip(0))
    assert kills._digest(value) == kills._digest(value.clone())


def test_a_moment_comes_after_so_many_signs():
    signs = iter([{1}, {1}, {1, 2}, {1, 2}, {2}, {2, 3}])
    has_come = kill_moments._after_new(lambda: next(signs), 2)
    assert [has_come() for _ in range(5)] == [False, False, False, False, True]


def test_a_recipe_that_fails_before_any_kill_is_not_tried_for_ever(monkeypatch, tmp_path):
    tries = []

    def disturb(*_):
        assert not tries
        tries.append(True)
        raise kills.StressError("it went wrong")

    monkeypatch.setattr(kills.Recipe, "finish", lambda *_: 1.0)
    monkeypatch.setattr(kills, "result_of", lambda _: {"updates": 1})
    monkeypatch.setattr(kills.Stress, "disturb", disturb)
    record = kills.Stress(kills.parse_arguments([]), tmp_path, lambda _: None).run_all()
    assert record.failures == ["run1: it went wrong"]


SANITIZERS_LOG = """\
/tmp/native/power.h:57:24: runtime error: left shift of negative value -1
/tmp/native/power.h:57:24: runtime error: left shift of negative value -7
==7==ERROR: AddressSanitizer: heap-buffer-overflow on address 0x1 at pc 0x2 bp 0x3 sp 0x4
WRITE of size 4 at 0x1 thread T0
    #0 0x3 in __interceptor_memset ../sanitizer/common.inc:799
    #1 0x2 in to_dense._omp_fn.0 /tmp/native/products.c:70
    #2 0x2 in to_dense /tmp/native/products.c:65
==7==ERROR: AddressSanitizer: SEGV on unknown address 0x5
    #0 0x6 in something (/lib/libc.so.6+0x11725)
"""


def test_findings_of_sanitizers_are_told_once_each_with_their_place():
    assert sanitizers.findings_in(SANITIZERS_LOG) == [
        "/tmp/native/power.h:57: left shift of negative value -1",
        "/tmp/native/products.c:70, to_dense: heap-buffer-overflow",
        "SEGV, outside of the kernels",
    ]
    assert sanitizers.findings_in("a warning\n") == []


needs_sanitizers = pytest.mark.skipif(
    shutil.which("gcc") is None or platform.system() != "Linux", reason="needs GCC's sanitizers"
)


@pytest.mark.slow
@needs_sanitizers
def test_sanitizers_find_errors_that_are_put_in_and_no_others(capsys, monkeypatch):
    monkeypatch.setenv("CC", "gcc")
    arguments = ("--targets", "native", "--groups", "dropouts", "sizes_of_rows")
    assert sanitizers.main([*arguments]) == 0
    assert "errors put into a copy were found" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings", [[], ["lr-scheduler=reduce_lr_on_valid_loss", "clip-norm=0.1"]], ids=str
)
def test_killed_runs_end_as_undisturbed_ones(settings, tmp_path):
    path = tmp_path / "results.json"
    chosen = ["--set", *settings] if settings else []
    status = kills.main(["--kills", "9", *chosen, "--json", str(path)])
    results = json.loads(path.read_text())
    assert results["failures"] == [] and status == 0
    assert results["all_kills"] == 9

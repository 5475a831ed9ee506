"""The benchmark scripts: each runs on toy sizes, and what it compares can be compared."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fairseq.data import Dictionary

import toy
from benchmark import (
    check_kernels,
    decoding,
    harness,
    linear_loss,
    losses,
    targets,
    timing,
    training_step,
)
from fairseq_sparse import ops
from fairseq_sparse.modules.attention_kinds import ATTENTION_KINDS
from fairseq_sparse.modules.output_transforms import OUTPUT_TRANSFORMS
from fork_python import PYTHON

FOLDER = toy.ROOT / "scripts" / "benchmark"
QUICK = ["--rounds", "2", "--least-seconds", "0"]
STATES = ",".join(linear_loss.STATES)
SIZES = {"layers": 1, "embed-dim": 8, "ffn-embed-dim": 8, "attention-heads": 2}
TINY = [
    f"--set={side}-{name}={size}" for side in ("encoder", "decoder") for name, size in SIZES.items()
]
# Scripts and their flags; DATA is binarised text. run_all.sh runs decoding.py on trained models.
SCRIPTS = {
    "losses": ["--sizes", "8x40,4x60", "--parts", ",".join(losses.PARTS)],
    "linear_loss": ["--sizes", "70x8x400", "--states", STATES, "--bounds", "--errors", "8"],
    "attention": "--kinds rela_g --lengths 4 --decode-lengths 6 --tokens 60 --max-len 3 --beam 2 "
    "--model-dim 8 --heads 2 --layers 1 --vocabulary 30 --threads 1".split(),
    "training_step": ["DATA", "--variants", "stock,entmax15", *TINY]
    + ["--max-tokens", "200", "--batches", "2"],
}


def bash(*arguments: object) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHON": PYTHON, "OMP_NUM_THREADS": "1"}
    command = ["bash", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, encoding="utf-8", env=environment)


@pytest.mark.slow_except("losses", "linear_loss")
@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_records_ratios_to_the_first_job(script: str, data: Path, tmp_path: Path) -> None:
    flags = [str(data) if flag == "DATA" else flag for flag in SCRIPTS[script]]
    flags += QUICK[:2] if script == "training_step" else QUICK
    command = [PYTHON, FOLDER / f"{script}.py", *flags, "--json", tmp_path / "out.json"]
    environment = {**os.environ, **harness.KEEP_MEMORY}  # else it would start again to set them
    done = subprocess.run(command, capture_output=True, encoding="utf-8", env=environment)
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "out.json").read_text("utf-8"))["results"]
    timed = [row for row in results if "failed" not in row]
    assert timed and all(min(row["seconds"]) > 0 for row in timed)
    assert 1 in (timed[0].get("time"), timed[0].get("speed"))


@pytest.mark.slow
@pytest.mark.parametrize("script", ["run_all.sh", "run_gpu.sh"])
def test_all_parts_run(script: str, tmp_path: Path) -> None:
    out = [tmp_path] if script == "run_all.sh" else ["--out", tmp_path]
    result = bash(FOLDER / script, "--dry-run", *out)
    assert result.returncode == 0, result.stderr
    assert {path.read_text().splitlines()[0] for path in tmp_path.glob("*.status")} == {"done"}
    assert (tmp_path / "benchmarks.md").read_text("utf-8") in result.stdout


def test_a_part_that_fails_or_takes_too_long_stops_nothing(tmp_path: Path) -> None:
    script = f"""OUT="{tmp_path}"; BENCHMARKS="{FOLDER}"; DEADLINE=0; source "{FOLDER}/parts.sh"
    part bad 0 bash -c 'echo what went wrong >&2; exit 3'
    part slow 1 sleep 60
    part good 0 echo fine
    """
    assert bash("-c", script).returncode == 0
    statuses = {path.stem: path.read_text().split()[0] for path in tmp_path.glob("*.status")}
    assert statuses == {"bad": "failed:", "slow": "stopped", "good": "done"}


def test_jobs_take_turns() -> None:
    order: list[str] = []
    jobs = {name: lambda name=name: order.append(name) for name in ("stock", "a", "b")}
    timing.measure(jobs, rounds=3, least_seconds=0)
    assert order == ["stock", "a", "b"] * (len(order) // 3)


def options(**more: object) -> argparse.Namespace:
    return argparse.Namespace(rounds=2, device="cpu", threads=None, json=None, **more)


def test_ratios_are_those_of_the_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not those of the median times: the job takes half the baseline's time in most rounds."""
    seconds = {"base": [1.0, 10.0, 4.0, 2.0, 1.0], "job": [0.5, 5.0, 2.0, 4.0, 3.0]}
    monkeypatch.setattr(timing, "measure", lambda *_: seconds)
    _, job = harness.compare(dict.fromkeys(seconds, lambda: None), options())
    assert job["time"] == 0.5 and job["time_quartiles"] == [0.5, 2.0]
    assert job["speed"] == 2 and job["speed_quartiles"] == [0.5, 2.0]


@pytest.mark.parametrize("broken", ["stock", "peer"])
def test_a_failure_is_recorded_and_stops_nothing(broken: str) -> None:
    def fail() -> None:
        raise RuntimeError("no kernel for this device")

    jobs = {name: fail if name == broken else lambda: None for name in ("stock", "peer", "ours")}
    results = {result["name"]: result for result in harness.compare(jobs, options())}
    assert "no kernel" in results[broken]["failed"] and "seconds" not in results[broken]
    assert ("time" in results["ours"]) == (broken != "stock")


@pytest.mark.parametrize("result", [{"seconds": [1.0]}, {"failed": "out of memory"}])
def test_a_model_that_was_not_measured_is_a_failure(
    result: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the part of run_all.sh would be done, and never be tried again."""
    monkeypatch.setattr(training_step, "results_of", lambda *_: [{"model": "softmax", **result}])
    chosen = options(data="prepared", precisions=["fp32"])
    status = training_step.run(chosen, harness.Record("training_step", chosen))
    assert status == ("failed" in result)


@pytest.mark.parametrize("checkpoints", [["no.pt"], ["a.pt", "b.pt"]])
def test_a_model_that_cannot_be_converted_is_a_result(checkpoints: list) -> None:
    """Other models are measured all the same."""
    task = SimpleNamespace(source_dictionary=Dictionary(), target_dictionary=Dictionary())
    translator = SimpleNamespace(task=task, checkpoints=checkpoints)
    chosen = options(data="prepared", lenpen=1)
    generator = decoding.CTranslate2Generator(translator, chosen, 5, "int8")
    batch = {"net_input": {"src_tokens": torch.tensor([[4, 2]])}}
    assert harness.attempt(lambda: generator.generate(None, batch))


def test_memory_is_a_ratio_to_the_first() -> None:
    jobs = {"base": lambda: torch.ones(1 << 20), "job": lambda: torch.ones(1 << 18)}
    results = harness.compare(jobs, options())
    harness.add_memory(results, jobs, "cpu")
    assert [result["memory"] for result in results] == [1, 0.25]


def test_targets_are_judged_by_ratios() -> None:
    what = {"part": "loss", "dtype": "float32", "rows": 512, "vocabulary": 10000}
    times = {"cross_entropy": 1.0, "alpha_relu_loss": 0.5, "entmax_loss, 1.5": 1.1}
    results = [
        {**what, "name": name, "seconds": [time]}
        | harness.summary("time", [time])
        | harness.summary("speed", [1 / time])
        for name, time in times.items()
    ]
    record = {"benchmark": "losses", "options": {"device": "cpu"}, "results": results}
    found = {target.point.split(":")[0]: target for target in targets.targets([record])}
    reached = {name: found[name].reached for name in list(times)[1:]}
    assert reached == {"alpha_relu_loss": True, "entmax_loss, 1.5": False}
    assert found["entmax_loss, 2"].reached is False  # not measured


@pytest.mark.slow_except("None", "gradient")
@pytest.mark.parametrize("part", [None, "value", "gradient"])
def test_a_wrong_kernel_is_found(
    part: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """An entmax15 that is wrong below fp64, like a faulty kernel, is found; right ops pass."""
    right = ops.entmax15

    def wrong(z: torch.Tensor) -> torch.Tensor:
        p = right(z)
        if z.dtype == torch.float64:
            return p
        return 1.001 * p if part == "value" else p + 1e-3 * (z - z.detach())

    if part:
        monkeypatch.setattr(ops, "entmax15", wrong)
    chosen = check_kernels.parse_arguments(["--rows", "3x40"])
    status = harness.main("check_kernels", chosen, check_kernels.run, check_kernels.table)
    failed = [line for line in capsys.readouterr().out.splitlines() if "| float32" in line]
    assert (status, bool(failed)) == ((1, True) if part else (0, False))
    assert all("entmax" in line for line in failed)


def value_and_gradients(loss, target: torch.Tensor, *tensors: torch.Tensor) -> torch.Tensor:
    tensors = [tensor.clone().requires_grad_() for tensor in tensors]
    value = loss(*tensors, target)
    value.backward()
    return torch.cat([value.detach().reshape(1), *(tensor.grad.flatten() for tensor in tensors)])


def test_peers_compute_the_same() -> None:
    """Otherwise their times could not be compared with ours."""
    pytest.importorskip("entmax")
    z, target = torch.randn(6, 300), torch.randint(300, (6,))
    functions = losses.losses(z, target)
    found = {name: value_and_gradients(functions[name], target, z) for name in functions}
    peers = [name for name in found if name.startswith("entmax package")]
    assert peers
    for name in peers:
        torch.testing.assert_close(found[name], found["entmax_loss, 1.5"], rtol=1e-4, atol=1e-5)
    mapped = {name: function(z) for name, function in losses.mappings(z).items()}
    for kind in ("entmax15", "sparsemax"):
        torch.testing.assert_close(mapped[f"entmax package, {kind}"], mapped[kind])


def test_the_algorithms_compute_the_same() -> None:
    z, target = torch.randn(6, 300), torch.randint(300, (6,))
    layers = losses.algorithms(300, 0.4, z.device)
    used = {layer.transform.search["algorithm"] for _, layer in layers.values()}
    assert used == {*ops.checks.ALGORITHMS}
    for name, (_, layer) in layers.items():
        found = value_and_gradients(layer.transform.loss, target, z)
        if "entmax" in name:
            torch.testing.assert_close(found, value_and_gradients(ops.entmax_loss, target, z))


def test_fused_and_unfused_compute_the_same() -> None:
    features, weight, target = torch.randn(20, 6), torch.randn(50, 6), torch.randint(50, (20,))
    found = {
        name: value_and_gradients(loss, target, features, weight)
        for name, (_, loss) in linear_loss.functions(0.4, torch.float32, "cpu").items()
    }
    for name in ("alpha_relu_loss", "entmax_loss, 1.5"):
        torch.testing.assert_close(found[f"linear_{name}"], found[name])


def test_every_output_and_kind_of_attention_is_measured() -> None:
    variants = training_step.DEFAULT_VARIANTS.split(",")
    models = [training_step.recipe_of(name, "multi30k_de_en").model for name in variants]
    assert {model.attention for model in models} == {*ATTENTION_KINDS}
    assert {model.output for model in models} == {*OUTPUT_TRANSFORMS}

"""The jobs of the benchmarks: compared jobs differ only in what is measured."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pytest
import torch
from fairseq.models.transformer import TransformerModel

import commands
import toy
from benchmark import (
    attention,
    check_kernels,
    linear_loss,
    losses,
    measure,
    peers,
    training_step,
)
from fairseq_sparse import ops
from fairseq_sparse.models.transformer_sparse import TransformerSparseModel
from fairseq_sparse.modules.attention_kinds import ATTENTION_KINDS

ATTENTION = (
    "--kinds rela_g,entmax_learned --max-len 3 --beam 2 --model-dim 8 --heads 2 --layers 1 "
    "--vocabulary 30 --rounds 2 --threads 1"
).split()
TINY = " ".join(
    f"--{side}-layers 1 --{side}-embed-dim 8 --{side}-ffn-embed-dim 8 --{side}-attention-heads 2"
    for side in ("encoder", "decoder")
)


def attention_options(*flags: str):
    return attention.parse_arguments([*ATTENTION, *flags])


def training_options(*arguments: object):
    small = ["--flags", TINY, "--max-tokens", "200", "--batches", "2"]
    return training_step.parse_arguments([*map(str, arguments), *small])


@pytest.mark.parametrize("causal", [False, True])
def test_attend_differs_in_the_kind_alone(causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With softmax weights in place of its own, a kind gives what stock gives."""
    monkeypatch.setitem(ATTENTION_KINDS, "sparsemax", ATTENTION_KINDS["softmax"])
    flags = ["--kinds", "sparsemax,rela_g,rela_i", *(["--causal"] if causal else [])]
    jobs = attention.attend_jobs(attention_options(*flags), 7, 3, torch.float64)
    # rela_i differs from rela_g only in the norm, which this part leaves out.
    assert list(jobs) == ["stock", "sparsemax", "rela_g"]
    outputs: list[torch.Tensor] = []
    backward = torch.Tensor.backward

    def keep(self, gradient):
        outputs.append(self.detach())
        backward(self, gradient)

    monkeypatch.setattr(torch.Tensor, "backward", keep)
    for run in jobs.values():
        run()
    torch.testing.assert_close(outputs[1], outputs[0], check_dtype=False)
    assert not outputs[2].allclose(outputs[0])


def test_all_kinds_translate_to_the_same_length() -> None:
    jobs = attention.decode_jobs(attention_options(), length=5, batch=4, dtype=torch.float32)
    assert list(jobs) == ["stock", "rela_g", "entmax_learned"]
    for run in jobs.values():
        hypotheses = run()
        assert len(hypotheses) == 4
        # The three tokens of --max-len and the end of the sentence.
        assert {len(hypothesis["tokens"]) for best in hypotheses for hypothesis in best} == {4}


def test_kinds_differ_in_attention_only() -> None:
    options, task = attention_options(), toy.task(30)

    def build(kind: str) -> torch.nn.Module:
        return attention.build_transformer(options, kind, task)

    kinds = [*options.kinds, "relu:cross"]
    models = attention.same_weights(options, kinds, build, torch.float32)

    def parameters(kind: str) -> dict[str, torch.Tensor]:
        named = models[kind].named_parameters()
        # fairseq 0.12.2 keeps copies of an encoder layer's parameters, set on loading only.
        return {name: value for name, value in named if not name.endswith(("_weight", "_bias"))}

    stock = parameters("stock")
    for kind, added in (("rela_g", {"weight", "gate"}), ("entmax_learned", {"alpha_logit"})):
        found = parameters(kind)
        assert all(torch.equal(found.pop(name), stock[name]) for name in stock)
        assert {name.rpartition(".")[2] for name in found} == added
    layer = models["relu:cross"].decoder.layers[0]
    assert layer.encoder_attn.attention_kind == "relu"
    assert not hasattr(layer.self_attn, "attention_kind")


@pytest.mark.slow_except("None", "gradient")
@pytest.mark.parametrize("part", [None, "value", "gradient", "edge", "crash"])
def test_wrong_kernel_is_found(
    part: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """An entmax15 that is wrong below fp64, like a faulty kernel, is found; right ops pass."""
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

    if part:
        monkeypatch.setattr(ops, "entmax15", wrong)
    options = check_kernels.parse_arguments(["--rows", "3x40"])
    status = measure.main("check_kernels", options, check_kernels.run, check_kernels.table)
    out = capsys.readouterr().out
    if part is None:
        passed, _, total, *_ = out.split()
        assert status == 0 and passed == total and int(total) > 100
        return
    failed = [line for line in out.splitlines() if line.startswith("| float32")]
    assert status == 1 and failed and all("entmax" in line for line in failed)
    found = {"value": "| value |", "gradient": "| z  ", "edge": "a NaN is NaN"}
    assert any(found.get(part, "no such kernel") in line for line in failed)


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
    assert len(peers) == 3
    for name in peers:
        torch.testing.assert_close(found[name], found["entmax_loss, 1.5"], rtol=1e-4, atol=1e-5)
    mapped = {name: function(z) for name, function in losses.mappings(z).items()}
    for kind in ("entmax15", "sparsemax"):
        torch.testing.assert_close(mapped[f"entmax package, {kind}"], mapped[kind])


def test_a_peer_that_is_missing_or_broken_says_so_and_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "liger_kernel"
    broken.mkdir()
    (broken / "__init__.py").write_text("import a_module_that_nobody_has")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "quack", None)  # as if it was not installed
    layers = peers.cross_entropy_layers(torch.bfloat16, "cuda")
    jobs = {"ours": lambda: None}
    for name in ("QuACK", "Liger, triton"):
        jobs[name] = lambda layer=layers[name]: layer(None, None, None)
    options = argparse.Namespace(rounds=2, least_seconds=0, device="cpu")
    results = {result["name"]: result for result in measure.compare(jobs, options)}
    assert results["QuACK"]["failed"] == "not installed: pip install quack-kernels"
    assert "a_module_that_nobody_has" in results["Liger, triton"]["failed"]
    assert results["ours"]["time"] == 1
    assert measure.ratio_cells(results["QuACK"], "time") == ["not installed", "-"]
    assert measure.ratio_cells(results["Liger, triton"], "time") == ["failed", "-"]
    told = measure.failures([*results.values()] * 2)
    assert "- QuACK: not installed: pip install quack-kernels (2 times)" in told


def test_fused_and_unfused_compute_the_same() -> None:
    features, weight, target = torch.randn(20, 6), torch.randn(50, 6), torch.randint(50, (20,))
    functions = linear_loss.functions(0.4, torch.float32, "cpu")
    found = {
        name: value_and_gradients(loss, target, features, weight)
        for name, (_, loss) in functions.items()
    }
    pairs = {f"linear_{name}": name for name in ("alpha_relu_loss", "entmax_loss, 1.5")}
    if "F.linear_cross_entropy, chunked" in found:
        pairs["F.linear_cross_entropy, chunked"] = linear_loss.BASELINE
    for fused, unfused in pairs.items():
        torch.testing.assert_close(found[fused], found[unfused])


def test_a_loss_that_writes_over_its_logits_changes_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[float] = []

    def destroy(z: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        seen.append(float(z.detach().abs().sum()))
        loss = z.sum()
        z.data.zero_()
        return loss

    monkeypatch.setattr(losses, "losses", lambda *_: {"one": destroy, "other": destroy})
    for run in losses.jobs_of("loss", 4, 30, torch.float32, "cpu").values():
        run()
    assert seen[0] == seen[1] > 0


def test_a_layer_like_the_trained_model() -> None:
    """It has the support and the rate of missed targets of the model."""
    options = linear_loss.parse_arguments([])
    layer = linear_loss.layer_of(linear_loss.SAMPLE, 32, 3000, "like_model", options)
    p = ops.entmax15(layer[3])
    assert float((p > 0).sum(1).double().mean()) == pytest.approx(72.8, rel=0.2)
    misses = float((p.gather(1, layer[2].unsqueeze(1)) == 0).double().mean())
    assert misses == pytest.approx(0.084, abs=0.05)


def test_a_wrong_gradient_is_an_error() -> None:
    x, w, y = torch.randn(6, 4), torch.randn(20, 4), torch.randint(20, (6,))

    def exact(x, w, y):
        return linear_loss.exact_loss("entmax15", x @ w.T, y, None)

    def wrong(x, w, y):
        return ops.linear_entmax_loss(x, w, y) + 0.01 * (w - w.detach()).sum()

    assert linear_loss.error_of(ops.linear_entmax_loss, exact, x, w, y) < 1e-5
    assert linear_loss.error_of(wrong, exact, x, w, y) > 1e-3


def test_models_are_those_of_fairseq_train(data: Path) -> None:
    options = training_options(data)
    with training_step.quiet():
        stock = training_step.build("stock", "fp32", options)
        batches = stock.batches
        fused = training_step.build("alpha_relu+rela_g", "fp32", options, batches)
        name = f"entmax15{training_step.UNFUSED}"
        unfused = training_step.build(name, "fp32", options, batches)
    assert type(stock.trainer.model) is TransformerModel
    assert type(fused.trainer.model) is type(unfused.trainer.model) is TransformerSparseModel
    assert type(stock.trainer.criterion).__name__ == "CrossEntropyCriterion"
    assert fused.trainer.criterion.fused_loss and not unfused.trainer.criterion.fused_loss
    decoder = fused.trainer.model.decoder
    assert decoder.output_projection.transform.name == "alpha_relu"
    assert decoder.layers[0].encoder_attn.attention_kind == "rela_g"
    assert fused.batches is batches and len(batches) == 2
    # The recipe's flags apply unless overridden.
    assert stock.trainer.cfg.optimization.clip_norm == 1 and decoder.layers[0].normalize_before
    before = {name: value.clone() for name, value in fused.trainer.model.state_dict().items()}
    with training_step.quiet():
        for _ in range(2):  # the learning rate of the first update is tiny
            fused.run()
    after = fused.trainer.model.state_dict()
    assert any(not torch.equal(after[name], before[name]) for name in before)


@pytest.mark.slow
def test_larger_vocabulary_and_trained_weights(data: Path, tmp_path: Path) -> None:
    flags = ["--output-transform", "entmax15", "--criterion", "entmax_loss"]
    commands.train(data, tmp_path, "--max-update", 2, *TINY.split(), *flags)
    checkpoint = tmp_path / "checkpoint_last.pt"
    trained, larger = ["--trained", f"entmax15={checkpoint}"], ["--vocabulary", 90]

    def build(kind: str, *flags: object) -> torch.nn.Module:
        with training_step.quiet():
            return training_step.build(kind, "fp32", training_options(data, *flags)).trainer.model

    with pytest.raises(ValueError, match="--trained entmax15="):
        build("entmax15", *larger, *trained)
    with pytest.raises(ValueError, match="--vocabulary 20: DATA has"):
        build("stock", "--vocabulary", 20)
    assert build("entmax15", *larger).decoder.output_projection.weight.size(0) == 90
    found = build("entmax15", *trained).state_dict()
    state = torch.load(checkpoint, weights_only=False)["model"]
    state = {name: value for name, value in state.items() if name.endswith(".weight")}
    assert state and all(torch.equal(found[name], value) for name, value in state.items())

"""scripts/benchmark/training_step.py: what it compares and reports; not how fast anything is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from fairseq.models.transformer import TransformerModel

import commands
from benchmark import measure, random_data, training_step
from fairseq_sparse.models.transformer_sparse import TransformerSparseModel

TINY = " ".join(
    f"--{side}-layers 1 --{side}-embed-dim 8 --{side}-ffn-embed-dim 8 --{side}-attention-heads 2"
    for side in ("encoder", "decoder")
)
SMALL = ["--flags", TINY, "--max-tokens", "200", "--batches", "2", "--rounds", "2"]
VARIANTS = ["stock", "rela_g", "entmax15", "alpha_relu+rela_g"]


def options_for(*arguments: object):
    return training_step.parse_arguments([*map(str, arguments), *SMALL])


def test_table_and_json(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    out = tmp_path / "out.json"
    options = options_for(data, "--variants", ",".join(VARIANTS), "--json", out)
    assert measure.main("training_step", options, training_step.run, training_step.table) == 0
    results = json.loads(out.read_text(encoding="utf-8"))["results"]
    sparse = [f"{name}{training_step.UNFUSED}" for name in VARIANTS[2:]]
    names = [*VARIANTS[:2], VARIANTS[2], sparse[0], VARIANTS[3], sparse[1]]
    assert [row["model"] for row in results] == names
    for row in results:
        assert len(row["seconds"]) == 2 and row["peak_bytes"] > 0
        ratios = measure.ratios(results[0]["seconds"], row["seconds"])
        assert row["speed"] == pytest.approx(sum(ratios) / 2)  # the median of two
    # All have the same tokens, so that the rates differ as the times do.
    tokens = {round(row["rate"] * sum(row["seconds"]) / 2) for row in results}
    assert len(tokens) == 1
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert [line.split("|")[3].strip() for line in lines[2:]] == names


def test_models_are_those_of_fairseq_train(data: Path) -> None:
    options = options_for(data)
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
    assert decoder.output_projection.transform == "alpha_relu"
    assert decoder.layers[0].encoder_attn.attention_kind == "rela_g"
    assert fused.batches is batches and len(batches) == 2
    # The recipe's flags, but for what was overridden.
    assert stock.trainer.cfg.optimization.clip_norm == 1 and decoder.layers[0].normalize_before
    before = {name: value.clone() for name, value in fused.trainer.model.state_dict().items()}
    with training_step.quiet():
        for _ in range(2):  # the learning rate of the first update is tiny
            fused.run()
    after = fused.trainer.model.state_dict()
    assert any(not torch.equal(after[name], before[name]) for name in before)


def test_larger_vocabulary_and_trained_weights(data: Path, tmp_path: Path) -> None:
    flags = ["--output-transform", "entmax15", "--criterion", "entmax_loss"]
    commands.train(data, tmp_path, "--max-update", 2, *TINY.split(), *flags)
    checkpoint = tmp_path / "checkpoint_last.pt"
    trained = options_for(data, "--trained", f"entmax15={checkpoint}")
    larger = options_for(data, "--vocabulary", 90)
    with training_step.quiet():
        model = training_step.build("entmax15", "fp32", trained).trainer.model
        large = training_step.build("entmax15", "fp32", larger).trainer.model
        both = options_for(data, "--vocabulary", 90, "--trained", f"entmax15={checkpoint}")
        with pytest.raises(ValueError, match="--trained entmax15="):
            training_step.build("entmax15", "fp32", both)
        with pytest.raises(ValueError, match="--vocabulary 20: DATA has"):
            training_step.build("stock", "fp32", options_for(data, "--vocabulary", 20))
    state = torch.load(checkpoint, weights_only=False)["model"]
    state = {name: value for name, value in state.items() if name.endswith(".weight")}
    assert all(torch.equal(model.state_dict()[name], value) for name, value in state.items())
    assert large.decoder.output_projection.weight.size(0) == 90


def test_random_text(tmp_path: Path) -> None:
    random_data.write(tmp_path, vocabulary=50, sentences=300)
    options = options_for("--vocabulary", 50)
    options.data = str(tmp_path)
    with training_step.quiet():
        training = training_step.build("stock", "fp32", options)
    words = training.trainer.task.target_dictionary
    assert len(words) == 50
    lengths = training.trainer.task.dataset("train").tgt_sizes
    assert 5 < lengths.min() < lengths.max() <= 54
    tokens = torch.cat([sample["target"].flatten() for sample in training.batches])
    counts = torch.bincount(tokens[tokens >= words.nspecial], minlength=50)
    assert counts[words.nspecial] > 3 * counts[40:].max()  # frequent words are frequent


def test_flags_come_from_the_recipe() -> None:
    flags, recipe = training_step.recipe_flags("datasets", "multi30k_de_en")
    assert recipe == {"batch": "--max-tokens 2048", "languages": "de-en"}
    assert flags[flags.index("--encoder-embed-dim") + 1] == "256"
    assert "--fp16" not in flags
    assert training_step.variant_flags("entmax15_k100+rela_i")[-2:] == ["--attention", "rela_i"]
    assert training_step.is_sparse("alpha_relu") and not training_step.is_sparse("rela_g")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--variants", "no_such"], "no no_such among examples/variants"),
        (["--recipe", "no_such"], "no no_such among examples/datasets"),
        (["--trained", "stock=/no/such.pt"], "/no/such.pt"),
    ],
)
def test_bad_values_are_one_line(flags, message, data, capsys) -> None:
    options = options_for(data, *flags)
    assert measure.main("training_step", options, training_step.run, training_step.table) == 1
    assert message in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "without DATA --vocabulary is needed"),
        (["--vocabulary", "3"], "at least 8 entries"),
        (["data", "--trained", "x.pt"], "give VARIANT=CKPT"),
        (["data", "--precisions", "fp8"], "no fp8"),
    ],
)
def test_bad_usage(flags, message, capsys) -> None:
    with pytest.raises(SystemExit):
        training_step.parse_arguments(flags)
    assert message in capsys.readouterr().err

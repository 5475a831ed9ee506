"""The flags of the output transform: invalid values are refused, with the flag's name."""

from __future__ import annotations

from unittest.mock import Mock

import pytest
import torch

import toy
from fairseq_sparse.modules.output_projection import OutputLoss
from fairseq_sparse.ops import entmax_threshold
from fairseq_sparse.ops.reference import thresholds

ARCHITECTURES = ("transformer_sparse_tiny", "lstm_sparse")
REFUSED = [
    *(("entmax", "--output-alpha", alpha) for alpha in (1, 0.5, "-0", 1.0001, 1e38)),
    *(("alpha_relu", "--output-alpha", alpha) for alpha in ("nan", "inf", 1e7)),
    ("sparsemax", "--output-alpha", 1.3),
    *((name, "--output-algorithm", "sort") for name in ("softmax", "alpha_relu", "entmax")),
    ("entmax15", "--output-topk", 0, "--output-algorithm", "partial"),
    ("entmax15", "--output-tau", 0.5),
    ("softmax", "--output-tau", "formula"),
    *(("alpha_relu", "--output-tau", tau) for tau in ("nan", "Data", "")),
]


@pytest.mark.parametrize(
    ("arch", "flags"),
    [(ARCHITECTURES[0], flags) for flags in REFUSED] + [(ARCHITECTURES[1], REFUSED[0])],
)
def test_what_a_model_cannot_have_is_refused(arch: str, flags: tuple) -> None:
    criterion = "alpha_relu_loss" if flags[0] == "alpha_relu" else "entmax_loss"
    more = ("--output-alpha", 1.3) if flags[:2] == ("entmax", "--output-algorithm") else ()
    with pytest.raises(ValueError, match=flags[1]):
        toy.model("--output-transform", *flags, *more, arch=arch, criterion=criterion)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_an_unknown_transform_is_refused_by_its_name(arch: str) -> None:
    """Such a name can come from --model-overrides."""
    with pytest.raises(ValueError, match="--output-transform entmax2"):
        toy.model(arch=arch, criterion="entmax_loss", output_transform="entmax2")


@pytest.mark.parametrize("transform", ["softmax", "entmax15"])
def test_tau_without_effect_is_named_where_nothing_is_trained(transform: str, caplog) -> None:
    toy.model("--output-transform", transform, "--output-tau", 0.5)
    assert f"--output-tau 0.5 has no effect on --output-transform {transform}" in caplog.text
    caplog.clear()
    toy.model("--output-transform", transform)
    toy.model("--output-transform", transform, "--output-tau", "data")  # formerly the default
    assert "--output-tau" not in caplog.text


@pytest.mark.parametrize("transform", ["softmax", "entmax15"])
def test_a_number_of_logits_without_effect_is_named(transform: str, caplog) -> None:
    toy.model("--output-transform", transform, "--output-topk", 7)
    assert "--output-topk 7 has no effect" in caplog.text


@pytest.mark.parametrize(
    "flag", ["--output-alpha", "--output-algorithm", "--output-topk", "--output-transform"]
)
@pytest.mark.parametrize("value", ["", "1,5"])
def test_what_is_no_value_is_refused_by_the_parser(flag: str, value: str, capsys) -> None:
    with pytest.raises(SystemExit):
        toy.model(flag, value)
    assert f"argument {flag}: invalid" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("algorithm", "topk"), [("sort", 0), ("bisect", -1), ("partial", 1), ("partial", 10**18)]
)
def test_an_algorithm_finds_what_the_search_finds(algorithm: str, topk: int, monkeypatch) -> None:
    function = "partial_sort" if algorithm == "partial" else algorithm
    spy = Mock(wraps=getattr(thresholds, function))
    monkeypatch.setattr(thresholds, function, spy)
    features, target = torch.randn(2, 3, 64), torch.randint(4, 9, (2, 3))
    results = []
    for flags in ((), ("--output-algorithm", algorithm, "--output-topk", topk)):
        layer = toy.model("--output-transform", "sparsemax", *flags).decoder.output_projection
        logits = layer(features)
        results.append([layer.transform.probs(logits), layer.transform.log_probs(logits)])
        for mode in (True, False):
            loss, statistics = layer.train(mode).loss(features, OutputLoss(target, padding=1))
            results[-1] += [loss, *statistics.values()]
        assert not spy.called or flags
    torch.testing.assert_close(*results)
    assert spy.call_count >= 6  # p, log p, and in training and evaluation loss and statistics


@pytest.mark.parametrize(
    "shared, path",
    [
        ("--share-all-embeddings", "--encoder-embed-path"),
        ("--share-decoder-input-output-embed", "--decoder-embed-path"),
    ],
)
def test_pretrained_output_weights_are_not_redrawn(shared: str, path: str, tmp_path) -> None:
    (tmp_path / "vectors").write_text("1 64\nw0 " + " ".join(["0.5"] * 64) + "\n")
    flags = (path, tmp_path / "vectors", shared)
    with pytest.raises(ValueError, match=f"would redraw the vectors of {path}"):
        toy.model(*flags, "--output-init", "xavier_uniform", criterion="entmax_loss")
    assert toy.model(*flags).decoder.output_projection.weight[4].eq(0.5).all()
    toy.model(*flags, "--output-init", "xavier_uniform", criterion=None)  # of a checkpoint


@pytest.mark.parametrize(
    "flags",
    [
        ("--arch", "transformer_sparse_tiny"),
        ("--arch", "transformer_sparse_tiny", "--decoder-normalize-before")
        + ("--no-decoder-final-norm", "--decoder-layers", "8"),
        ("--arch", "lstm_sparse"),
        ("--arch", "lstm_sparse_mt"),
    ],
    ids=["transformer", "no final norm", "lstm", "lstm_sparse_mt"],
)
def test_the_default_tau_is_near_the_thresholds_of_any_untrained_model(flags: tuple) -> None:
    """For an LSTM, whose features are small, that of normalised ones is ten times too large."""
    arch, task = flags[1], toy.task(3000)
    options = {"arch": arch, "for_task": task, "criterion": "alpha_relu_loss"}
    model = toy.model("--output-transform", "alpha_relu", *flags[2:], **options)
    sample = toy.batch(task.target_dictionary, [(9, 8), (7, 9), (6, 5), (4, 3)])
    features, _ = model.eval().extract_features(**sample["net_input"])
    projection, pad = model.decoder.output_projection, task.target_dictionary.pad()
    features, target = features.flatten(0, 1), sample["target"].flatten()
    projection.transform.prepare(projection, features, target, pad)
    expected = entmax_threshold(projection(features[target != pad])).mean()
    assert projection.transform.tau.item() == pytest.approx(expected.item(), rel=0.3)


@pytest.mark.parametrize("shared", [(), ("--share-all-embeddings",)], ids=["separate", "shared"])
def test_output_weights_are_drawn_xavier_uniform(shared: tuple) -> None:
    stock = toy.model(*shared).state_dict()
    drawn = toy.model(*shared, "--output-init", "xavier_uniform")
    projection, padding = drawn.decoder.output_projection, drawn.decoder.padding_idx
    size, width = projection.weight.shape
    bound = (6 / (size + width)) ** 0.5
    rows = [row for row in range(size) if not shared or row != padding]
    weight = projection.weight[rows].detach()
    assert 0.9 * bound < weight.abs().max() <= bound
    assert weight.var() == pytest.approx(bound**2 / 3, rel=0.2)
    if shared:
        assert projection.weight is drawn.encoder.embed_tokens.weight
        assert not projection.weight[padding].any()
    # No other matrix has changed.
    other = {
        name for name, value in drawn.state_dict().items() if not torch.equal(value, stock[name])
    }
    assert "decoder.output_projection.weight" in other
    # fairseq 0.12.2 keeps a tensor that is never initialised.
    other = {name for name in other if not name.endswith("_float_tensor")}
    assert all("embed_tokens" in name or "output_projection" in name for name in other)

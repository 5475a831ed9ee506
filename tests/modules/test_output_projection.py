import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fairseq_sparse import ops
from fairseq_sparse.modules.output_projection import OutputLoss, OutputProjection
from fairseq_sparse.modules.output_transforms import OUTPUT_TRANSFORMS

PAD = 1


def projection(transform, vocab_size=50, width=16, tau=0.4, **options):
    torch.manual_seed(0)
    linear = nn.Linear(width, vocab_size, bias=False)
    nn.init.normal_(linear.weight, std=width**-0.5)
    return OutputProjection(linear, transform, tau=tau, **options)


def prepare(layer, features, target):
    layer.transform.prepare(layer, features, target, PAD)


def features_and_target(layer, rows=13, seed=2):
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(rows, layer.weight.size(1), generator=generator)
    target = torch.randint(2, layer.weight.size(0), (rows,), generator=generator)
    target[::4] = PAD
    return 2 * features, target


def logits_and_target(layer, **options):
    features, target = features_and_target(layer, **options)
    return layer(features).detach(), target


@pytest.mark.parametrize("transform", OUTPUT_TRANSFORMS)
def test_logits_are_those_of_the_layer_that_it_wraps(transform):
    linear = nn.Linear(6, 9)
    layer = OutputProjection(linear, transform)
    x = torch.randn(2, 5, 6)
    assert torch.equal(layer(x), linear(x))
    assert layer.weight is linear.weight and layer.bias is linear.bias
    extra = {"tau"} if transform == "alpha_relu" else set()
    assert set(layer.state_dict()) == set(linear.state_dict()) | extra


@pytest.mark.parametrize(
    "transform, options, mapping",
    [
        ("softmax", {}, lambda z: torch.softmax(z, -1)),
        ("sparsemax", {}, ops.sparsemax),
        ("entmax15", {}, ops.entmax15),
        ("entmax15", {"algorithm": "partial", "topk": 3}, ops.entmax15),
        ("entmax", {"alpha": 1.3}, lambda z: ops.entmax(z, 1.3)),
        ("alpha_relu", {}, lambda z: ops.alpha_relu(z, 0.4)),
        ("alpha_relu", {"alpha": 1.8}, lambda z: ops.alpha_relu(z, 0.4, 1.8)),
    ],
)
def test_probs_and_log_probs_are_those_of_the_transform(transform, options, mapping):
    layer = projection(transform, **options)
    logits, _ = logits_and_target(layer)
    expected = mapping(logits)
    torch.testing.assert_close(layer.transform.probs(logits), expected)
    log_probs = layer.transform.log_probs(logits)
    # A probability near the threshold has few digits, and its logarithm shows all of them.
    torch.testing.assert_close(log_probs.exp(), expected)
    assert layer.is_sparse == (transform != "softmax")
    assert bool(torch.isneginf(log_probs).any()) == layer.is_sparse


@pytest.mark.parametrize("transform", OUTPUT_TRANSFORMS)
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_gradient_of_the_loss_is_p_minus_q(transform, label_smoothing):
    layer = projection(transform)
    logits, target = logits_and_target(layer)
    logits.requires_grad_()
    options = {"label_smoothing": label_smoothing, "ignore_index": PAD, "reduction": "sum"}
    layer.transform.loss(logits, target, **options).backward()
    q = F.one_hot(target, logits.size(-1)) * (1 - label_smoothing)
    q = q + label_smoothing / logits.size(-1)
    expected = (layer.transform.probs(logits.detach()) - q).masked_fill(
        (target == PAD).unsqueeze(-1), 0.0
    )
    torch.testing.assert_close(logits.grad, expected)


@pytest.mark.parametrize("transform", OUTPUT_TRANSFORMS)
def test_statistics_agree_with_counting_by_hand(transform):
    layer = projection(transform)
    logits, target = logits_and_target(layer)
    statistics = layer.transform.statistics(logits, target, PAD)
    rows = [row for row in range(len(target)) if target[row] != PAD]
    p = layer.transform.probs(logits)
    assert statistics["tokens"] == len(rows)
    assert statistics["correct"] == sum(logits[row].argmax() == target[row] for row in rows)
    assert statistics["nonzeros"] == sum(int((p[row] > 0).sum()) for row in rows)
    assert statistics["gold_zero"] == sum(p[row, target[row]] == 0 for row in rows)
    assert statistics["prob_sum"] == pytest.approx(sum(p[row].sum().item() for row in rows))
    assert statistics["logit_norm"] == pytest.approx(sum(logits[r].norm().item() for r in rows))
    if transform == "softmax":
        assert "tau" not in statistics
    elif transform == "alpha_relu":
        assert statistics["tau"] == pytest.approx(0.4 * len(rows))
    else:
        thresholds = ops.entmax_threshold(logits[rows], layer.transform.alpha)
        assert statistics["tau"] == pytest.approx(thresholds.sum().item())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("transform", OUTPUT_TRANSFORMS)
def test_statistics_of_any_dtype_are_those_of_the_same_numbers_in_fp32(transform, dtype):
    layer = projection(transform)
    logits, target = logits_and_target(layer)
    logits = logits.bfloat16().half()  # values that all dtypes can represent
    expected = layer.transform.statistics(logits.float(), target, PAD)
    actual = layer.transform.statistics(logits.to(dtype), target, PAD)
    for name, value in expected.items():
        torch.testing.assert_close(actual[name], value, rtol=1e-5, atol=1e-5)


def test_statistics_of_no_token_are_zero():
    layer = projection("entmax15")
    logits, target = logits_and_target(layer)
    statistics = layer.transform.statistics(logits, torch.full_like(target, PAD), PAD)
    assert all(value == 0 for value in statistics.values())


def test_tau_from_data_is_the_mean_threshold_of_the_target_tokens(caplog):
    layer = projection("alpha_relu", tau="data")
    features, target = features_and_target(layer)
    assert math.isnan(layer.transform.tau)
    with caplog.at_level("INFO"):
        prepare(layer, features, target)
        prepare(layer, features * 2, target)
    expected = ops.entmax_threshold(layer(features[target != PAD]), 1.5).mean()
    torch.testing.assert_close(layer.transform.tau, expected)
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 1
    assert f"{expected.item():.6f}" in messages[0] and "--output-tau data" in messages[0]


def test_an_estimate_of_tau_that_failed_is_repeated():
    """fairseq skips a batch that does not fit into memory, and goes on with the next."""
    layer = projection("alpha_relu", tau="data")
    features, target = features_and_target(layer)
    hook = layer.linear.register_forward_hook(lambda *_: pytest.fail("out of memory"))
    with pytest.raises(pytest.fail.Exception, match="out of memory"):
        prepare(layer, features, target)
    hook.remove()
    prepare(layer, features, target)
    assert layer.transform.known_tau().isfinite()


@pytest.mark.parametrize("place", ["projection", "linear"])
def test_the_loss_is_of_the_logits_that_a_hook_gives(place):
    layer = projection("entmax15").train()
    features, target = features_and_target(layer)
    options = OutputLoss(target[:, None], padding=PAD)
    before, _ = layer.loss(features[:, None], options)
    hooked = layer if place == "projection" else layer.linear
    hooked.register_forward_hook(lambda layer, given, logits: logits / 2)
    after, _ = layer.loss(features[:, None], options)
    expected = ops.entmax_loss(layer(features), target, 1.5, ignore_index=PAD, reduction="sum")
    torch.testing.assert_close(after, expected)
    assert after != before


@pytest.mark.parametrize("scale", [1.0, 0.1, 3.0])
def test_tau_from_weights_follows_the_size_of_the_features(scale):
    """A decoder without a final layer norm has features of any size."""
    layer = projection("alpha_relu", tau="weights", alpha=1.8, vocab_size=500, width=64)
    features, target = features_and_target(layer, rows=400)
    features = F.layer_norm(features, (64,)) * scale
    prepare(layer, features, target)
    tau = layer.transform.tau.item()
    assert tau == pytest.approx(ops.tau_from_weights(layer.weight, 1.8, scale**2), rel=1e-4)
    assert tau == pytest.approx(ops.entmax_threshold(layer(features), 1.8).mean().item(), rel=0.05)


def test_only_tau_from_data_needs_the_logits():
    for tau in ("weights", "formula", "1.5"):
        layer = projection("alpha_relu", tau=tau)
        features, target = features_and_target(layer)
        layer.linear.register_forward_hook(lambda *_: pytest.fail("the logits were computed"))
        prepare(layer, features, target)
        assert math.isfinite(layer.transform.tau)


@pytest.mark.parametrize("init", ["xavier_uniform", "stock"])
def test_tau_from_formula_warns_of_weights_that_it_does_not_hold_for(init, caplog):
    layer = projection("alpha_relu", tau="formula", vocab_size=1000, width=64)
    if init == "xavier_uniform":
        nn.init.xavier_uniform_(layer.linear.weight)
    features, target = features_and_target(layer)
    with caplog.at_level("WARNING"):
        prepare(layer, F.layer_norm(features, (64,)), target)
    assert layer.transform.tau.item() == pytest.approx(ops.tau_from_formula(64, 1000))
    assert ("use --output-tau weights" in caplog.text) == (init == "stock")


def test_a_loaded_tau_is_kept_whatever_the_flag_says(caplog):
    saved = projection("alpha_relu", tau=0.73).state_dict()
    for flag in ("data", "formula", "weights", "1.1"):
        layer = projection("alpha_relu", tau=flag)
        layer.load_state_dict(saved)
        caplog.clear()
        with caplog.at_level("INFO"):
            prepare(layer, *features_and_target(layer))
        assert layer.transform.tau.item() == pytest.approx(0.73)
        assert "from the checkpoint" in caplog.text


def test_a_loaded_model_is_captured_whole():
    layer = projection("alpha_relu", tau="data")
    layer.load_state_dict(projection("alpha_relu", tau=0.73).state_dict())
    logits = torch.randn(2, 30)
    captured = torch.compile(layer.transform.probs, fullgraph=True, backend="eager")
    torch.testing.assert_close(captured(logits), layer.transform.probs(logits))


@pytest.mark.parametrize("transform", ["softmax", "alpha_relu"])
def test_a_checkpoint_that_has_no_tau_leaves_the_one_that_was_given(transform):
    """The checkpoint is of another transform, or of a model that has seen no batch yet."""
    saved = projection(transform, tau="data").state_dict()
    layer = projection("alpha_relu", tau=1.1)
    layer.load_state_dict(saved)
    prepare(layer, *features_and_target(layer))
    assert layer.transform.tau.item() == pytest.approx(1.1)


def test_tau_stays_in_fp32_in_a_half_precision_model():
    layer = projection("alpha_relu", tau=1.2345678)
    before = layer.transform.tau.clone()
    for convert in (nn.Module.half, nn.Module.bfloat16, nn.Module.double, nn.Module.float):
        convert(layer)
        assert layer.transform.tau.dtype == torch.float32 and torch.equal(
            layer.transform.tau, before
        )
    assert projection("alpha_relu").half().weight.dtype == torch.float16


def test_tau_is_in_fp32_whatever_dtype_and_device_it_comes_by():
    layer = OutputProjection(nn.Linear(4, 6), "alpha_relu", tau=0.7)
    halved = {name: x.half() for name, x in layer.state_dict().items()}
    layer.load_state_dict(halved, assign=True)
    assert layer.transform.tau.dtype == torch.float32
    with torch.device("meta"):
        layer = OutputProjection(nn.Linear(4, 6), "alpha_relu", tau=0.7)
    layer.to_empty(device="cpu")
    assert layer.transform.known_tau().item() == pytest.approx(0.7)


def test_tau_must_be_known_before_it_is_used():
    layer = projection("alpha_relu", tau="data")
    logits, target = logits_and_target(layer)
    transform = layer.transform
    for use in (transform.probs, transform.log_probs, lambda z: transform.loss(z, target)):
        with pytest.raises(RuntimeError, match="tau of alpha_relu is not set"):
            use(logits)
    features, _ = features_and_target(layer)
    with pytest.raises(ValueError, match="no target token"):
        prepare(layer, features, torch.full_like(target, PAD))


@pytest.mark.parametrize(
    "options, message",
    [
        ({"transform": "hardmax"}, "--output-transform hardmax is unknown; choose from softmax"),
        ({"transform": "alpha_relu", "algorithm": "sort"}, "--output-algorithm sort is for spars"),
        ({"transform": "entmax15", "algorithm": "quick"}, "--output-algorithm quick"),
        ({"transform": "alpha_relu", "tau": "guess"}, "--output-tau must be data"),
        ({"transform": "alpha_relu", "tau": "inf"}, "--output-tau must be data"),
        ({"transform": "alpha_relu", "tau": "formula", "alpha": 1.7}, "use --output-tau weights"),
    ],
)
def test_bad_options_are_refused_by_the_flag_that_set_them(options, message):
    with pytest.raises(ValueError, match=message):
        OutputProjection(nn.Linear(4, 6), **options)

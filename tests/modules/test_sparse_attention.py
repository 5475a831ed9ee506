"""Multi-head attention of every kind against a loop over heads and queries, in fp64."""

from copy import deepcopy

import pytest
import torch
from fairseq.modules import MultiheadAttention
from torch.autograd import gradcheck
from torch.func import functional_call

import references
from attention_cases import (
    CASES,
    DISTRIBUTIONS,
    FP64,
    HEADS,
    INF,
    MASKS,
    NORMALISED,
    NULLABLE,
    WIDTH,
    alpha_of,
    assert_finite_gradients,
    causal,
    masks,
    module,
    naive,
    padding,
    self_attention,
    sequence,
)
from fairseq_sparse.modules.sparse_attention import SparseMultiheadAttention
from fairseq_sparse.ops import backends
from fairseq_sparse.ops.reference import attention as reference
from op_cases import attend_by_kernels_at_any_size, attends_by_kernels

FP32 = torch.float32
each_case = pytest.mark.parametrize("case", CASES)
each_mask = pytest.mark.parametrize("mask", MASKS)
in_both_modes = pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])


@pytest.fixture(params=["whole", "parts"])
def parts(request, monkeypatch):
    """Run a test with the attention computed whole, and in parts."""
    if request.param == "parts":
        monkeypatch.setitem(reference._CHUNK_SCORES, "cpu", 20)
        monkeypatch.setattr(reference, "_CHUNK_QUERIES", 1)


def close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.each_value
@each_mask
@each_case
def test_self_attention_agrees_with_the_naive_version(case, mask):
    layer, x = self_attention(case), sequence()
    options, bias = masks()[mask]
    output, by_head = layer(x, x, x, **options, need_head_weights=True)
    expected, weights = naive(layer, x, x, x, bias)
    close(output, expected)
    close(by_head, weights.transpose(0, 1))
    assert torch.equal(by_head == 0, weights.transpose(0, 1) == 0)


@pytest.mark.each_value
@pytest.mark.parametrize("mask", ["padding", "all keys padded", "added by head"])
@each_case
def test_cross_attention_agrees_with_the_naive_version(case, mask):
    """Queries and keys differ in number and in width."""
    layer = module(case, kdim=6, vdim=6, encoder_decoder_attention=True)
    query, key = sequence(4), sequence(7, width=6)
    options, bias = masks(4, 7)[mask]
    output, mean = layer(query, key, key, static_kv=True, **options)
    expected, weights = naive(layer, query, key, key, bias)
    close(output, expected)
    close(mean, weights.mean(1))


@each_case
def test_queries_keys_and_values_can_be_three_things(case):
    layer = module(case, kdim=6, vdim=4, bias=True)
    query, key, value = sequence(4), sequence(7, width=6), sequence(7, width=4)
    output, _ = layer(query, key, value)
    close(output, naive(layer, query, key, value, masks(4, 7)["none"][1])[0])


def test_projections_may_have_no_bias():
    layer = self_attention("rela_g", bias=False)
    x = sequence()
    named = dict(layer.named_parameters())
    zeros = {f"{name}_proj.bias": torch.zeros(WIDTH, dtype=FP64) for name in ("q", "k", "v", "out")}
    expected, _ = references.multihead_attention(
        {**named, **zeros}, x, x, x, "rela_g", HEADS, masks()["none"][1]
    )
    close(layer(x, x, x)[0], expected)


@pytest.mark.parametrize("mask", ["none", "padding", "causal", "causal with padding", "added"])
@in_both_modes
def test_softmax_is_the_stock_module(mask, training):
    layer = self_attention("softmax").train(training)
    stock = MultiheadAttention(WIDTH, HEADS, self_attention=True).double().train(training)
    stock.load_state_dict(layer.state_dict())
    x = sequence().requires_grad_()
    options, _ = masks()[mask]
    if "attn_mask" in options:
        options["attn_mask"] = options["attn_mask"].double()  # stock needs one dtype throughout
    grad = sequence()
    results = []
    for attention in (layer, stock):
        output, weights = attention(x, x, x, **options)
        gradients = torch.autograd.grad(output, [x, *attention.parameters()], grad)
        results.append((output, weights, *gradients))
    for ours, theirs in zip(*results, strict=True):
        close(ours, theirs)


def test_softmax_across_is_the_stock_module():
    """Static keys take another path in the stock module, where weights are rounded to fp32."""
    layer = module("softmax", kdim=6, vdim=6, encoder_decoder_attention=True)
    stock = MultiheadAttention(WIDTH, HEADS, 6, 6, encoder_decoder_attention=True).double().eval()
    stock.load_state_dict(layer.state_dict())
    query, key = sequence(4), sequence(7, width=6)
    for ours, theirs in zip(
        *(
            attention(query, key, key, padding(0, 2, 6, length=7), {}, static_kv=True)
            for attention in (layer, stock)
        ),
        strict=True,
    ):
        torch.testing.assert_close(ours.float(), theirs.float())


@pytest.mark.each_value
@pytest.mark.parametrize("mask", ["all keys padded", "causal with padding on the left", "row"])
@each_case
def test_a_query_that_sees_no_key_gets_zeros(case, mask, parts):
    """It gets zeros before the norm and the output projection, and no gradient is NaN."""
    if mask == "row":
        masked = torch.zeros(5, 5, dtype=torch.bool)
        masked[2] = True
        options, blind = {"attn_mask": masked}, masked[:, :1].expand(5, 3)
    else:
        options, bias = masks()[mask]
        blind = (bias[:, 0] == -INF).all(-1).T  # [length, batch]
    assert blind.any() and not blind.all()
    layer, x = self_attention(case).train(), sequence().requires_grad_()
    output, _ = layer(x, x, x, **options, need_weights=False)
    parameters = dict(layer.named_parameters())
    nothing = torch.zeros(WIDTH, dtype=FP64)
    expected = layer.out_proj(references.attention_norm(nothing, layer.attention_kind, parameters))
    if case != "rela_g_layernorm":
        close(expected, layer.out_proj.bias)
    close(output[blind], expected.expand(int(blind.sum()), -1))
    output.square().sum().backward()
    assert_finite_gradients(x, *layer.parameters())


def with_negative_scores(layer):
    """Make all scores of a layer equal, and negative: each is -head_dim * scaling."""
    with torch.no_grad():
        for projection, bias in ((layer.q_proj, 1.0), (layer.k_proj, -1.0)):
            projection.weight.zero_()
            projection.bias.fill_(bias)
    return layer


@pytest.mark.each_value
@pytest.mark.parametrize("case", NULLABLE)
def test_null_attention_is_exactly_zero_with_finite_gradients(case, parts):
    layer, x = with_negative_scores(self_attention(case)).train(), sequence().requires_grad_()
    _, weights = layer(x, x, x, need_head_weights=True)
    assert torch.equal(weights, torch.zeros(HEADS, 3, 5, 5, dtype=FP64))
    output, _ = layer(x, x, x, need_weights=False)
    if case != "rela_g_layernorm":
        assert torch.equal(output, layer.out_proj.bias.expand_as(output))
    output.square().sum().backward()
    assert_finite_gradients(x, *layer.parameters())
    assert (layer.q_proj.weight.grad == 0).all() and (layer.v_proj.weight.grad == 0).all()


@pytest.mark.each_value
@pytest.mark.parametrize("incremental", [False, True])
@in_both_modes
@each_case
def test_weights_that_are_returned(case, training, incremental):
    layer, x = self_attention(case, dropout=0.5).train(training), sequence()
    pad = padding(0, 2, 1)

    def weights(**asked):
        state = {} if incremental else None
        return layer(x, x, x, pad, incremental_state=state, **asked)[1]

    assert weights(need_weights=False) is None
    mean, by_head = weights(), weights(need_head_weights=True)
    assert mean.shape == (3, 5, 5) and by_head.shape == (HEADS, 3, 5, 5)
    assert torch.equal(weights(need_weights=False, need_head_weights=True), by_head)
    close(mean, by_head.mean(0))
    assert (by_head.masked_select(pad[None, :, None]) == 0).all()
    if case in DISTRIBUTIONS:
        close(by_head.sum(-1), torch.ones(HEADS, 3, 5, dtype=FP64))
    if case in NULLABLE or case == "sparsemax":
        seen = by_head.masked_select(~pad[None, :, None])
        assert (seen == 0).any() and (seen > 0).any()


@each_case
def test_dropout_acts_in_training_only(case):
    layer, x = self_attention(case, dropout=0.3), sequence()
    without, _ = layer(x, x, x)
    assert torch.equal(layer(x, x, x)[0], without)
    assert not torch.allclose(layer.train()(x, x, x)[0], without)
    layer.eval().dropout_module.apply_during_inference = True  # --retain-dropout
    assert not torch.allclose(layer(x, x, x)[0], without)


@pytest.mark.parametrize("case", ["relu_rmsnorm", "rela_i"])
def test_dropout_falls_on_the_weights_before_the_norm(case):
    """With a single weight, RMSNorm cancels its size, and so the scaling by dropout; where the
    weight was dropped, it keeps the row of zeros."""
    layer = self_attention(case, heads=1, dropout=0.5)
    with torch.no_grad():
        layer.k_proj.weight.copy_(layer.q_proj.weight)  # so that the score is positive
        layer.k_proj.bias.copy_(layer.q_proj.bias)
    x = sequence(1, 1).expand(-1, 200, -1)
    without, _ = layer(x, x, x)
    drawn, _ = layer.train()(x, x, x)
    dropped = (drawn == layer.out_proj.bias).all(-1)
    assert 60 < dropped.sum() < 140
    torch.testing.assert_close(drawn[~dropped], without[~dropped], rtol=1e-5, atol=1e-6)


def test_alpha_is_learned_for_each_head_between_1_and_2():
    layer = self_attention("entmax_learned", heads=4)
    assert layer.alpha_logit.shape == (4,)
    with torch.no_grad():
        layer.alpha_logit.copy_(torch.tensor([-1000.0, -3.0, 3.0, 1000.0]))
    alpha = layer.alpha()
    assert (alpha > 1).all() and (alpha <= 2).all() and (alpha.diff() > 0).all()
    assert alpha[3] == 2
    x = sequence()
    _, weights = layer(x, x, x, need_head_weights=True)
    zeros = (weights == 0).sum((1, 2, 3))
    assert (zeros.diff() >= 0).all() and zeros[3] > zeros[0]
    for head, a in enumerate(alpha.tolist()):
        same = self_attention("entmax", heads=4)
        same.load_state_dict(layer.state_dict(), strict=False)
        same.fixed_alpha = a
        close(same(x, x, x, need_head_weights=True)[1][head], weights[head])


@pytest.mark.parametrize("start", [1.05, 1.5, 1.95])
def test_a_learned_alpha_starts_where_the_flag_says(start):
    layer = SparseMultiheadAttention(
        WIDTH, HEADS, attention="entmax", alpha=start, alpha_learnable=True
    )
    torch.testing.assert_close(layer.alpha(), torch.full((HEADS,), start))
    for dtype in (torch.float16, torch.bfloat16):
        assert layer.to(dtype).alpha().dtype == torch.float32
    assert alpha_of(SparseMultiheadAttention(WIDTH, HEADS, attention="entmax", alpha=start)) == (
        start
    )


@pytest.mark.each_value
@each_case
def test_derivative_through_the_module(case, parts):
    """With respect to the input and to the parameters that a kind adds, such as norm and alpha."""
    layer = self_attention(case, width=4)
    x = sequence(3, 1, 4).requires_grad_()
    added = {
        name: parameter.detach().clone().requires_grad_()
        for name, parameter in layer.named_parameters()
        if not name.partition(".")[0].endswith("_proj")
    }
    assert bool(added) == (case in (*NORMALISED, "entmax_learned", "entmax15_scaled"))

    def output(x, *values):
        parameters = dict(zip(added, values, strict=True))
        options = {"attn_mask": causal(3), "need_weights": False}
        return functional_call(layer, parameters, (x, x, x), options)[0]

    assert gradcheck(output, (x, *added.values()))


@pytest.mark.parametrize("kind", ["relu_rmsnorm", "rela_g", "softmax_gated"])
def test_gradients_of_parameters_that_are_not_the_layers_own(kind):
    """Backward runs when functional_call has given the layer its own parameters back."""
    x = sequence()
    layer = self_attention(kind)
    others = {name: (2 * p + 0.1).detach() for name, p in layer.named_parameters()}
    arguments = [p.requires_grad_() for p in others.values()]
    output = functional_call(layer, others, (x, x, x))[0]
    actual = torch.autograd.grad(output.square().sum(), arguments)
    layer.load_state_dict(others)
    expected = torch.autograd.grad(layer(x, x, x)[0].square().sum(), [*layer.parameters()])
    for one, other in zip(actual, expected, strict=True):
        close(one, other)


def test_entmax_of_known_alpha_is_the_kind_of_that_name():
    x = sequence()
    for alpha, kind in ((1.5, "entmax15"), (2.0, "sparsemax")):
        named = self_attention(kind)
        layer = SparseMultiheadAttention(
            WIDTH, HEADS, self_attention=True, attention="entmax", alpha=alpha
        ).double()
        layer.load_state_dict(named.state_dict())
        close(layer(x, x, x)[0], named(x, x, x)[0])


@pytest.mark.parametrize(
    "options, named",
    [
        ({"num_heads": 3}, "3 attention heads"),
        ({"attention": "entmax", "alpha": 1.0}, "--attention-alpha"),
        ({"attention": "rela_g", "alpha_learnable": True}, "rela_g"),
        ({"attention": "rela_g", "add_bias_kv": True}, "rela_g"),
        ({"attention": "relu", "add_zero_attn": True}, "relu"),
    ],
)
def test_what_does_not_fit_is_refused(options, named):
    with pytest.raises(ValueError, match=named):
        SparseMultiheadAttention(WIDTH, **{"num_heads": HEADS, **options})


def test_scores_before_the_mapping_are_refused():
    x = sequence()
    with pytest.raises(NotImplementedError, match="before_softmax.*--attention rela_g"):
        self_attention("rela_g")(x, x, x, before_softmax=True)


@pytest.mark.parametrize("kind", ["rela_g", "entmax15"])
def test_the_kernels_compute_what_the_reference_does(kind, monkeypatch):
    """Under the conditions of training: fp32, heads of width 16, padding, a causal mask."""
    attend_by_kernels_at_any_size(monkeypatch)
    attention = SparseMultiheadAttention(32, 2, self_attention=True, attention=kind).float().train()
    x = torch.randn(24, 3, 32)
    masks = {
        "key_padding_mask": torch.arange(24) >= torch.tensor([[24], [20], [5]]),
        "attn_mask": torch.full((24, 24), -INF).triu(1),
    }
    results = []
    for choice, dtype in (("auto", FP32), ("reference", FP32), ("reference", FP64)):
        with backends.use(choice):
            layer, z = deepcopy(attention).to(dtype), x.to(dtype).requires_grad_()
            output, _ = layer(z, z, z, need_weights=False, **masks)
            gradients = torch.autograd.grad(output.square().sum(), [z, *layer.parameters()])
            results.append([output.detach(), *gradients])
        if choice == "auto" and attends_by_kernels():
            assert backends.last_used()["attention"] == "cpu"
    for each in zip(*results, strict=True):
        references.assert_as_accurate(*each)

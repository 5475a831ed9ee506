"""Sparsity, null rate and diversity against counting by hand, on small models."""

import statistics as python_statistics
from functools import partial

import pytest
import torch

import attention_by_hand
import references
import toy
from fairseq_sparse.measure.attention.attention_statistics import (
    PLACES,
    AttentionStatistics,
    attention_kind,
    attention_modules,
    count_zeros,
    watch_attention,
)
from fairseq_sparse.measure.attention.head_diversity import EXPONENTS
from fairseq_sparse.modules.attention_kinds import ATTENTION_KINDS

STOCK = "fairseq's own"
# Sizes of sentence pairs, the longest source first, as fairseq's LSTM wants them.
SIZES = ((6, 5), (4, 3), (2, 7))
LSTM_FLAGS = ["--encoder-layers", 2, "--decoder-layers", 2, "--encoder-bidirectional"]
LSTM_FLAGS += ["--encoder-embed-dim", 8, "--encoder-hidden-size", 6]
LSTM_FLAGS += ["--decoder-embed-dim", 8, "--decoder-hidden-size", 10, "--decoder-out-embed-dim", 10]


def rounding(kind):
    """Return the error that a measure of a model in fp64 may have."""
    # fairseq computes its softmax in fp32. Sums of weights of both signs lose some digits.
    return 64 * torch.finfo(torch.float32).eps if kind in ("softmax", STOCK) else 1e-9


def statistics_of(model, *batches, **options):
    statistics = AttentionStatistics(model, toy.dictionary().pad(), **options)
    for batch in batches:
        statistics.add_batch(batch["net_input"])
    return statistics.rates()


def sparse_model(kind="rela_g", *flags):
    """A model in fp64 whose scores are large enough for some rows to be sparse and some not."""
    if kind == STOCK:
        model = toy.model(arch="transformer_tiny")
    else:
        model = toy.model("--attention", kind, *flags)
    with torch.no_grad():
        for modules in attention_modules(model).values():
            for module in modules:
                module.q_proj.weight.mul_(4)
    return model.double()


def lstm(kind="entmax15"):
    """An LSTM in fp64 whose scores are large enough for some rows to be sparse and some not."""
    flags = {STOCK: [], "entmax": ["--attention", "entmax", "--attention-alpha", 1.3]}
    arch = "lstm" if kind == STOCK else "lstm_sparse"
    model = toy.model(*LSTM_FLAGS, *flags.get(kind, ["--attention", kind]), arch=arch, criterion="")
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.6)
    torch.nn.init.normal_(model.decoder.attention.input_proj.weight, std=3)
    return model.double()


def lstm_weights_by_hand(model, net_input):
    """Compute the weights of each query of one unpadded sentence by the definition, as lists."""
    kind, rows = ATTENTION_KINDS[attention_kind(model.decoder.attention)], []
    weights_of = partial(kind.weights, alpha=1.3) if kind.takes_alpha else kind.weights

    def hook(module, arguments):
        query, states, _ = arguments
        rows.append(weights_of(states[:, 0] @ module.input_proj(query)[0]).tolist())

    handle = model.decoder.attention.register_forward_pre_hook(hook)
    with torch.no_grad():
        model.eval()(**net_input)
    handle.remove()
    return rows


def sentences_of(batch):
    return attention_by_hand.sentences(batch["net_input"], toy.dictionary().pad())


def numbers_in(part, name=""):
    """Return all numbers in nested results, by their path."""
    if isinstance(part, (dict, list)):
        items = part.items() if isinstance(part, dict) else enumerate(part)
        return {k: v for key, inner in items for k, v in numbers_in(inner, f"{name}/{key}").items()}
    return {} if isinstance(part, str) else {name: part}


@pytest.mark.parametrize("kind", [*ATTENTION_KINDS, STOCK])
def test_measures_are_those_that_are_counted_by_hand(kind):
    model = sparse_model(kind)
    batch = toy.batch(toy.dictionary())
    rates = statistics_of(model, batch)
    by_hand = [attention_by_hand.weights(model, sentence) for sentence in sentences_of(batch)]
    allowed = rounding(kind)
    kind = "softmax" if kind == STOCK else kind
    for (place, layer), heads in by_hand[0].items():
        counted = rates[place]["layers"][layer]
        assert counted["attention"] == kind
        for head in range(len(heads)):
            rows = [row for sentence in by_hand for row in sentence[place, layer][head]]
            zeros = sum(row.count(0.0) for row in rows)
            nulls = sum(row.count(0.0) == len(row) for row in rows)
            assert counted["heads"][head]["sparsity"] == zeros / sum(map(len, rows))
            assert counted["heads"][head]["null"] == nulls / len(rows)
            nonzeros = sum(len(row) - row.count(0.0) for row in rows)
            assert counted["heads"][head]["nonzeros"] == nonzeros / len(rows)
            total = sum(abs(weight) for row in rows for weight in row) / len(rows)
            assert counted["heads"][head]["sum"] == pytest.approx(total, rel=allowed)
            for name, key in (("first", 0), ("eos", 0 if place == "decoder" else -1)):
                share = mean_share(rows, key)
                assert counted["heads"][head][name] == pytest.approx(share, rel=allowed)
        for name in ("sparsity", "null"):
            of_heads = [head[name] for head in counted["heads"]]
            assert counted[f"{name}_variance"] == pytest.approx(
                python_statistics.variance(of_heads)
            )
        queries = [
            rows for sentence in by_hand for rows in zip(*sentence[place, layer], strict=True)
        ]
        nulls = [not any(map(any, heads)) for heads in queries]
        assert counted["layer_null"] == sum(nulls) / len(nulls)
        if ATTENTION_KINDS[kind].sums_to_one:
            assert "diversity_by_exponent" not in counted
            assert counted["diversity"] == pytest.approx(mean_divergence(queries), abs=allowed)
        else:
            assert counted["diversity"] == counted["diversity_by_exponent"]["1.0"]
            # Negative weights can be raised to the power of 1 only.
            signed = kind in ("rela_g_gelu", "rela_g_leaky_relu")
            exponents = (1.0,) if signed else EXPONENTS
            assert counted["diversity_by_exponent"] == {
                str(exponent): pytest.approx(mean_divergence(queries, exponent), abs=allowed)
                for exponent in exponents
            }


@pytest.mark.parametrize("kind", ["softmax", "sparsemax", "entmax15", "entmax", STOCK])
def test_measures_of_an_lstm_are_those_that_are_counted_by_hand(kind):
    model, batch = lstm(kind), toy.batch(toy.dictionary(), SIZES)
    rates = statistics_of(model, batch)
    rows = [row for pair in sentences_of(batch) for row in lstm_weights_by_hand(model, pair)]
    zeros, weights = sum(row.count(0.0) for row in rows), sum(map(len, rows))
    assert (zeros == 0) == (kind in ("softmax", STOCK)) and zeros < weights - len(rows)
    assert list(rates) == ["cross"]  # and no diversity, as there is one head
    measures = {"sparsity": zeros / weights, "null": 0, "nonzeros": (weights - zeros) / len(rows)}
    sinks = {name: mean_share(rows, key) for name, key in (("first", 0), ("eos", -1))}
    measures |= {name: pytest.approx(share, abs=rounding(kind)) for name, share in sinks.items()}
    measures["sum"] = pytest.approx(1, abs=rounding(kind))
    layer_null = {"layer_null": 0}
    name = {"attention": "softmax" if kind == STOCK else kind}
    layer = {**name, **measures, **layer_null, "heads": [measures]}
    assert rates["cross"] == {**measures, **layer_null, "layers": [layer]}


def mean_share(rows, key):
    """The mean share of a key in the absolute weights of the rows that are not null."""
    sizes = [[abs(weight) for weight in row] for row in rows if any(row)]
    return sum(row[key] / sum(row) for row in sizes) / max(len(sizes), 1)


def mean_divergence(queries, exponent=None):
    """The mean over queries of the divergence of their heads' rows."""
    if exponent:
        queries = [
            [references.distribution_with_dummy(row, exponent) for row in heads]
            for heads in queries
        ]
    return sum(map(references.jensen_shannon, queries)) / len(queries)


def test_rectified_attention_of_the_tests_is_sparse_and_has_null_rows():
    rates = statistics_of(sparse_model("rela_g"), toy.batch(toy.dictionary()))
    for place in PLACES:
        assert 0.2 < rates[place]["sparsity"] < 0.8
        assert 0 < rates[place]["null"] < rates[place]["sparsity"]


def test_means_are_over_heads_and_over_layers():
    rates = statistics_of(sparse_model("relu", "--encoder-layers", 3), toy.batch(toy.dictionary()))
    assert [len(rates[place]["layers"]) for place in PLACES] == [3, 2, 2]
    for part in rates.values():
        layers = [numbers_in({**layer, "heads": {}}) for layer in part["layers"]]
        means = numbers_in({**part, "layers": {}})
        assert len(means) == 10 + len(EXPONENTS) and means.keys() == layers[0].keys()
        for name, mean in means.items():
            assert mean == pytest.approx(sum(layer[name] for layer in layers) / len(layers))
        for name in ("sparsity", "null", "nonzeros", "sum", "first", "eos"):
            for layer in part["layers"]:
                heads = [head[name] for head in layer["heads"]]
                assert layer[name] == pytest.approx(sum(heads) / len(heads))


def test_diversity_is_left_out_on_demand():
    batch = toy.batch(toy.dictionary())
    everything, rates = (
        statistics_of(sparse_model(), batch),
        statistics_of(sparse_model(), batch, diversity=False),
    )
    assert "diversity" in str(everything) and "diversity" not in str(rates)
    numbers = numbers_in(everything)
    assert {name: numbers[name] for name in numbers_in(rates)} == numbers_in(rates)


def test_zeros_of_stock_attention_are_seen_head_by_head():
    """Softmax has exact zeros where scores differ by more than the range of fp32."""
    model = toy.model(arch="transformer_tiny")
    model.encoder.layers[0].self_attn.q_proj.weight.data[32:].mul_(1e6)  # the second head
    layer = statistics_of(model, toy.batch(toy.dictionary()))["encoder"]["layers"][0]
    assert layer["heads"][0]["sparsity"] == 0 < layer["heads"][1]["sparsity"]
    assert layer["heads"][1]["null"] == 0


def test_the_only_head_has_nothing_to_differ_from():
    model = toy.model("--attention", "rela_g", "--encoder-attention-heads", 1)
    rates = statistics_of(model, toy.batch(toy.dictionary()))
    assert "diversity" not in str(rates["encoder"]) and "diversity" in rates["cross"]


@pytest.mark.parametrize("place", PLACES)
def test_looks_at_the_places_that_are_asked_for(place):
    batch = toy.batch(toy.dictionary())
    rates = statistics_of(sparse_model(), batch, places=[place])
    assert rates == {place: statistics_of(sparse_model(), batch)[place]}


@pytest.mark.parametrize("kind", ["rela_g", "rela_g_gelu", "entmax15", STOCK, "lstm"])
def test_one_batch_is_as_good_as_many(kind):
    model = lstm() if kind == "lstm" else sparse_model(kind)
    batch = toy.batch(toy.dictionary(), [(9, 1), (5, 5), (4, 3), (2, 7)])
    singles = [{"net_input": sentence} for sentence in sentences_of(batch)]
    together = numbers_in(statistics_of(model, batch))
    assert together == pytest.approx(numbers_in(statistics_of(model, *singles)), abs=rounding(kind))


def test_padding_and_hidden_keys_do_not_count():
    nan = float("nan")
    weights = torch.tensor(
        [
            [[0.5, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]],
            [[0.0, 0.0, 0.7, 0.0], [0.1, -0.2, 0.0, 0.0], [nan, nan, nan, nan]],
        ]
    )[:, None]  # two heads, one sentence, three queries of which one is padding, four keys
    masked = torch.tensor([[[False, False, False, True]]])
    padding = torch.tensor([[False, False, True]])
    counts = count_zeros(weights, masked, padding)
    # zeros, weights, rows of zeros, rows, NaNs
    assert counts.tolist() == [[5, 6, 1, 2, 0], [3, 6, 0, 2, 0]]
    nothing_visible = torch.ones(1, 3, 4, dtype=torch.bool)
    assert count_zeros(weights, nothing_visible, padding).tolist() == [[0] * 5] * 2


@pytest.mark.parametrize("arch", ["transformer_tiny", "transformer_sparse_tiny"])
def test_watching_changes_nothing(arch):
    flags = ["--attention", "entmax15"] if "sparse" in arch else []
    model = toy.model(*flags, arch=arch).double().eval()
    net_input = toy.batch(toy.dictionary())["net_input"]
    expected = model(**net_input)[0]
    seen = []
    with watch_attention(model, lambda *call: seen.append(call[:2])):
        watched = model(**net_input)[0]
    assert torch.allclose(watched, expected, atol=1e-5)
    assert len(seen) == len(set(seen)) == 6
    assert torch.equal(model(**net_input)[0], expected) and len(seen) == 6


@pytest.mark.parametrize("kind", ["entmax15", STOCK])
def test_watching_an_lstm_changes_nothing(kind):
    model, net_input = lstm(kind).eval(), toy.batch(toy.dictionary(), SIZES)["net_input"]
    (expected, attention), seen = model(**net_input), []
    with watch_attention(model, lambda *call: seen.append(call)):
        logits, weights = model(**net_input)
    assert torch.equal(logits, expected) and torch.equal(weights, attention)
    ((place, layer, watched, masked),) = seen
    assert (place, layer) == ("cross", 0)
    assert torch.equal(watched[0], attention)  # [batch, queries, keys]
    assert masked.shape == (3, 1, 7) and not watched.masked_select(masked).any()
    with watch_attention(model, lambda *call: seen.append(call), ["encoder", "decoder"]):
        model(**net_input)
    model(**net_input)
    assert len(seen) == 1


def test_the_model_is_put_into_eval_mode():
    """Otherwise the dropout of the layers below would change the weights."""
    model = sparse_model("rela_g", "--dropout", 0.5).train()
    batch = toy.batch(toy.dictionary())
    assert statistics_of(model, batch) == statistics_of(model, batch)


def test_what_cannot_be_counted_is_refused():
    with pytest.raises(ValueError, match="no Transformer or LSTM of fairseq"):
        AttentionStatistics(torch.nn.Linear(2, 2), 1)
    without = toy.model("--decoder-attention", "0", arch="lstm", criterion="")
    for model, places in [(without, PLACES), (lstm(), ("encoder", "decoder"))]:
        with pytest.raises(ValueError, match=rf"has no attention \({', '.join(places)}\)"):
            AttentionStatistics(model, 1, places=places)
    with pytest.raises(ValueError, match="no sentence was counted"):
        statistics_of(toy.model())
    broken = toy.model("--attention", "rela_g")
    broken.encoder.layers[0].self_attn.q_proj.weight.data.fill_(float("nan"))
    with pytest.raises(ValueError, match="NaN"):
        statistics_of(broken, toy.batch(toy.dictionary()))

"""``--temperature`` brings a sparse model near greedy search, or widens its support."""

from argparse import Namespace

import pytest
import torch
from fairseq.data import Dictionary

import toy
from fairseq_sparse.modules.output_projection import OutputProjection
from fairseq_sparse.ops import entmax
from fairseq_sparse.tasks import LanguageModelingSparseConfig, LanguageModelingSparseTask

SIZES = [(6, 1), (4, 1), (4, 1), (1, 1)]
TEMPERATURES = (0.05, 0.5, 1.0, 2.0, 10.0)
ALPHAS = [1.25, 1.5, 2.0, 2.5]
LSTM = ("--encoder-embed-dim", 16, "--decoder-embed-dim", 16)
PAD, EOS = Dictionary().pad(), Dictionary().eos()
SEARCHES = {
    "beam": {"beam": 3},
    "exact": {"beam": 2, "exact_search": True},
    "sampling": {"beam": 3, "sampling": True},
    "top-k": {"beam": 2, "sampling": True, "sampling_topk": 3},
    "top-p": {"beam": 2, "sampling": True, "sampling_topp": 0.9},
    "min-p": {"beam": 2, "sampling": True, "sampling_minp": 0.1},
    "groups": {"beam": 4, "diverse_beam_groups": 2, "diverse_beam_strength": 0.0},
    "siblings": {"beam": 3, "diversity_rate": 0.0},
}


def alpha_relu(alpha, tau=0.3):
    return OutputProjection(torch.nn.Linear(2, 40), "alpha_relu", alpha, tau=tau).transform


def draw_logits(dtype=torch.float64):
    """Return rows with small and large sums; the last one has no weight above 0."""
    logits = torch.randn(12, 40, dtype=dtype) * torch.linspace(1, 20, 12, dtype=dtype)[:, None]
    logits[-1] = -logits[-1].abs()
    return logits


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("alpha", ALPHAS)
def test_weights_are_those_of_one_threshold_and_keep_their_sum(alpha, temperature):
    transform, logits = alpha_relu(alpha), draw_logits()
    p = transform.probs(transform.at_temperature(logits, temperature))
    total = transform.probs(logits).sum(-1)
    torch.testing.assert_close(p.sum(-1), total)
    assert (total[:-1] > 0).all() and total[-1] == 0
    heights = (alpha - 1) * logits / temperature
    thresholds = (heights - p ** (alpha - 1)).masked_fill(p == 0, torch.nan)
    for row, threshold, weights in zip(heights[:-1], thresholds[:-1], p[:-1], strict=True):
        tau = threshold.nanmean()
        torch.testing.assert_close(threshold[weights > 0], tau.expand(int((weights > 0).sum())))
        assert (row[weights == 0] <= tau + 1e-9 * tau.abs()).all()


@pytest.mark.parametrize("alpha", ALPHAS)
def test_support_grows_with_the_temperature_from_the_largest_logit_alone(alpha):
    transform, logits = alpha_relu(alpha), draw_logits()
    supports = [transform.probs(transform.at_temperature(logits, T)) > 0 for T in TEMPERATURES]
    for smaller, larger in zip(supports, supports[1:], strict=False):
        assert (larger | ~smaller).all()
    assert torch.equal(supports[TEMPERATURES.index(1.0)], transform.probs(logits) > 0)
    assert (supports[-1].sum(-1) > supports[0].sum(-1))[:-1].all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("temperature", [1e-20, 1e-30])
@pytest.mark.parametrize("alpha", ALPHAS)
def test_a_temperature_near_zero_leaves_the_largest_logit_alone(alpha, temperature, dtype):
    transform = alpha_relu(alpha)
    logits = torch.cat([draw_logits(torch.float32), 1e4 * torch.randn(2, 40)]).to(dtype)
    largest = logits == logits.amax(-1, keepdim=True)
    total = transform.probs(logits).sum(-1, keepdim=True)
    p = transform.probs(transform.at_temperature(logits, temperature))
    expected = largest * total / largest.sum(-1, keepdim=True)
    torch.testing.assert_close(p, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_masked_logits_stay_so_and_nan_stays_nan(temperature):
    transform, logits = alpha_relu(1.5), torch.full((3, 5), -torch.inf)
    logits[1, 2], logits[2, 0] = 2.0, torch.nan
    p = transform.probs(transform.at_temperature(logits, temperature))
    torch.testing.assert_close(p[:2], transform.probs(logits)[:2])
    assert p[2].isnan().any()


def make_models(names):
    models = [make_model(name, seed) for seed, name in enumerate(names.split("+"))]
    with torch.no_grad():
        for model in models:
            model.decoder.output_projection.weight.mul_(3)
    return [model.eval() for model in models]


def make_model(name, seed):
    if name == "lm":
        return toy.language_model(output_transform="alpha_relu", output_tau="0.3", seed=seed)
    if name == "entmax15":
        return toy.model("--output-transform", name, seed=seed)
    flags = ("--output-transform", "alpha_relu", "--output-tau", 0.3)
    if name == "lstm":
        return toy.model(*flags, *LSTM, arch="lstm_sparse", seed=seed, criterion="")
    return toy.model(*flags, seed=seed)


def decode(models, score_normalization="none", exact_search=False, **options):
    """Return the hypotheses of each sentence."""
    sample = toy.batch(toy.dictionary(), SIZES)
    if hasattr(models[0], "encoder"):
        task = toy.task(score_normalization=score_normalization, exact_search=exact_search)
        prompts = None
    else:
        task = LanguageModelingSparseTask(LanguageModelingSparseConfig(), toy.dictionary())
        prompts = sample["net_input"]["src_tokens"][:, :0]
    options = {"min_len": 0, "max_len_b": 8, **options}
    generator = task.build_generator(models, Namespace(**options))
    return generator.generate(models, sample, prefix_tokens=prompts)


def translations(models, *args, **options):
    lists = decode(models, *args, **options)
    return [{tuple(hypo["tokens"].tolist()) for hypo in hypotheses} for hypotheses in lists]


@pytest.mark.each_value
@pytest.mark.parametrize("score_normalization", ["none", "sum"])
@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("name", ["alpha_relu", "lstm", "lm"])
def test_every_search_becomes_greedy_at_a_temperature_near_zero(name, search, score_normalization):
    if name == "lm" and search == "exact":
        search = "beam"  # --exact-search translates
    models = make_models(name)
    found = translations(models, score_normalization, temperature=1e-20, **SEARCHES[search])
    assert found == translations(models, score_normalization, beam=1)


def distribution(model, source, tokens, temperature, divides):
    """Return the (normalised) weights of each step by the definition, ``[length, V]``, fp64."""
    previous = torch.tensor([[EOS, *tokens[:-1]]])
    is_lm = not hasattr(model, "encoder")
    inputs = (previous,) if is_lm else (source[None], torch.tensor([len(source)]), previous)
    with torch.no_grad():
        z = model(*inputs)[0][0].double()
    transform = model.decoder.output_projection.transform
    total = transform.probs(z).sum(-1, keepdim=True)
    p = total * entmax(z / (temperature * total.sqrt()), 1.5)
    return p / total if divides or is_lm else p


@pytest.mark.each_value
@pytest.mark.parametrize("score_normalization", ["none", "sum"])
@pytest.mark.parametrize("temperature", [0.5, 2.0])
@pytest.mark.parametrize("name", ["alpha_relu", "lstm", "lm", "alpha_relu+entmax15"])
def test_scores_are_those_of_the_models_at_the_temperature(name, temperature, score_normalization):
    models = make_models(name)
    sources = toy.batch(toy.dictionary(), SIZES)["net_input"]["src_tokens"]
    lists = decode(models, score_normalization, temperature=temperature, beam=3)
    for source, hypotheses in zip(sources, lists, strict=True):
        source = source[source != PAD]
        for hypo in hypotheses:
            tokens, incomplete = hypo["tokens"], hypo.get("incomplete", False)
            options = (source, tokens.tolist(), temperature, score_normalization == "sum")
            p = sum(distribution(model, *options) for model in models) / len(models)
            expected = p.gather(1, tokens[:, None]).squeeze(1).log()
            length = len(tokens) - incomplete
            found = hypo["positional_scores"].double()
            torch.testing.assert_close(found[:length], expected[:length], rtol=1e-3, atol=1e-3)

"""``--score-normalization sum`` affects one generator, but not the model that it searches."""

import copy
import math

import pytest
import torch
from fairseq.dataclass.configs import GenerationConfig

import toy
from fairseq_sparse.generation import NormalizedScores, scores_are_log_probs

SIZES = [(5, 1), (3, 1)]


def make_model(transform="alpha_relu", seed=1):
    flags = ("--output-tau", 0.1) if transform == "alpha_relu" else ()
    model = toy.model("--output-transform", transform, *flags, seed=seed).eval()
    with torch.no_grad():
        model.decoder.output_projection.weight.mul_(3)
    return model


def build(models, normalization, **options):
    task = toy.task(score_normalization=normalization, exact_search=options.pop("exact", False))
    options = GenerationConfig(**{"beam": 3, "nbest": 3, "max_len_b": 6, **options})
    return task.build_generator(models, options)


def decode(generator, models):
    found = generator.generate(models, toy.batch(toy.dictionary(), SIZES))
    return [[(h["tokens"].tolist(), h["positional_scores"].tolist()) for h in row] for row in found]


@pytest.mark.slow_except("beam", "sampling")
@pytest.mark.parametrize(
    "options",
    [{}, {"min_len": 2}, {"exact": True}, {"sampling": True}],
    ids=["beam", "min_len", "exact", "sampling"],
)
def test_two_generators_over_a_model_know_nothing_of_each_other(options):
    """Built one after the other, in both orders, and used in turns."""
    alone = {}
    for kind in ("none", "sum"):
        models = [make_model()]
        torch.manual_seed(1)
        alone[kind] = decode(build(models, kind, **options), models)
    assert alone["none"] != alone["sum"]
    for order in (("none", "sum"), ("sum", "none")):
        models = [make_model()]
        generators = {kind: build(models, kind, **options) for kind in order}
        for kind in (*order, *order):
            torch.manual_seed(1)
            assert decode(generators[kind], models) == alone[kind]


@pytest.mark.parametrize("normalization", ["none", "sum"])
def test_exact_search_warns_of_weights_that_bound_nothing(normalization, caplog):
    caplog.set_level("WARNING")
    build([make_model()], normalization, exact=True)
    assert ("use --score-normalization sum" in caplog.text) == (normalization == "none")


def test_a_normalised_search_leaves_the_model_as_it_was():
    model = make_model()
    sample = toy.batch(toy.dictionary(), SIZES)
    output = model(**sample["net_input"])
    before = model.get_normalized_probs(output, log_probs=True)
    decode(build([model], "sum"), [model])
    assert torch.equal(model.get_normalized_probs(output, log_probs=True), before)
    assert not scores_are_log_probs(model)


def test_each_member_of_an_ensemble_is_normalised_before_the_mean():
    models = [make_model(seed=1), make_model("entmax15", seed=2)]
    for hypotheses in decode(build(models, "sum", beam=1), models):
        tokens, scores = hypotheses[0]
        assert len(scores) == len(tokens) and all(score <= 1e-6 for score in scores)
    generator = build(models, "sum")
    assert [type(model) for model in generator.model.models] == [NormalizedScores, type(models[1])]
    # All weights of the first model can be 0, so they are not known to sum to 1.
    assert generator.settings().sums_to_one_from == math.inf
    assert build(models[1:], "none").settings().sums_to_one_from < math.inf


def test_the_weights_of_alpha_relu_are_divided_by_their_sum():
    model = make_model()
    logits = torch.randn(5, 20) * 3
    logits[4] = -9.0  # nothing is possible
    raw = model.get_normalized_probs((logits, None), log_probs=False)
    scaled = NormalizedScores(model).get_normalized_probs((logits, None), log_probs=False)
    assert torch.equal(scaled > 0, raw > 0) and not scaled[4].any()
    torch.testing.assert_close(scaled[:4], raw[:4] / raw[:4].sum(-1, keepdim=True))


def test_it_has_all_that_its_model_has():
    model = make_model()
    scaled = copy.deepcopy(NormalizedScores(model))
    sample = toy.batch(toy.dictionary(), SIZES)
    assert torch.equal(scaled(**sample["net_input"])[0], model(**sample["net_input"])[0])
    assert scaled.max_decoder_positions() == model.max_decoder_positions()
    assert scores_are_log_probs(scaled)
    with pytest.raises(AttributeError):
        _ = scaled.nothing_of_the_kind

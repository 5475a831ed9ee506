"""Means over seeds against statistics of the standard library, number by number."""

from statistics import fmean, stdev

import pytest

import toy
from fairseq_sparse.errors import AnalysisError
from fairseq_sparse.measure.attention.attention_seeds import average_seeds
from fairseq_sparse.measure.attention.attention_statistics import AttentionStatistics


def result_of(seed, *flags):
    statistics = AttentionStatistics(toy.model(*flags, seed=seed), toy.dictionary().pad())
    statistics.add_batch(toy.batch(toy.dictionary())["net_input"])
    rates = statistics.rates()
    return {"checkpoint": f"{seed}.pt", "subset": "test", "attention": rates, "shuffled": rates}


def numbers_in(part, name=""):
    items = part.items() if isinstance(part, dict) else enumerate(part)
    for key, value in items:
        if isinstance(value, (dict, list)):
            yield from numbers_in(value, f"{name}/{key}")
        elif isinstance(value, float):
            yield f"{name}/{key}", value


def test_every_number_has_its_mean_and_its_deviation():
    seeds = [result_of(seed, "--attention", "rela_g") for seed in (1, 2, 3)]
    merged = average_seeds(seeds, ["rela_g"] * 3)["rela_g"]
    assert merged["seeds"] == seeds and merged["subset"] == "test" and "checkpoint" not in merged
    found = dict(numbers_in(merged["attention"]))
    several = [dict(numbers_in(seed["attention"])) for seed in seeds]
    means = {name: value for name, value in found.items() if "deviation" not in name}
    assert means.keys() == {name for name in several[0] if "heads" not in name}
    assert len(means) > 50 and len(found) == 2 * len(means)
    for name, mean in means.items():
        values = [numbers[name] for numbers in several]
        folder, _, measure = name.rpartition("/")
        assert mean == pytest.approx(fmean(values))
        assert found[f"{folder}/deviation/{measure}"] == pytest.approx(stdev(values))
    assert merged["shuffled"] == merged["attention"]


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ([["--attention", "rela_i"]], "their attention is rela_g, rela_i"),
        ([["--attention", "rela_g", "--encoder-layers", 3]], "same number of layers"),
        ([["--attention", "rela_g", "--decoder-attention-heads", 4]], "same number of heads"),
        ([["--attention", "softmax"]], "same attention"),
        ([["--attention", "rela_g", "--no-cross-attention"]], "same attention"),
    ],
)
def test_models_that_are_no_seeds_of_one(others, message):
    results = [result_of(1, *flags) for flags in (["--attention", "rela_g"], *others)]
    with pytest.raises(AnalysisError, match=message):
        average_seeds(results, ["one", "one"])

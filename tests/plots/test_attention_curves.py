"""Curves over the layers show the measured numbers, and every line is visible."""

import math
from statistics import fmean, stdev

import pytest
from matplotlib.collections import LineCollection

import toy
from fairseq_sparse.measure.attention.attention_seeds import average_seeds
from fairseq_sparse.measure.attention.attention_statistics import PLACES, AttentionStatistics
from fairseq_sparse.plots.attention_curves import (
    draw_alignment_error,
    draw_diversity,
    draw_null_rates,
    draw_sparsity,
)

FLAGS = {
    "softmax": ["--attention", "softmax"],
    "rela_g": ["--attention", "rela_g", "--encoder-layers", 3],
    "rela_i": ["--attention", "rela_i", "--decoder-layers", 1],
}
MEASURES = [
    (draw_sparsity, "sparsity", 100),
    (draw_null_rates, "null", 100),
    (draw_diversity, "diversity", 1),
]


def rates_of(flags, seed=0):
    statistics = AttentionStatistics(toy.model(*flags), toy.dictionary().pad())
    statistics.add_batch(toy.batch(toy.dictionary(), seed=seed)["net_input"])
    return statistics.rates()


@pytest.fixture(scope="module")
def results():
    return {
        name: {"attention": rates_of(flags), "shuffled": rates_of(flags, seed=1)}
        for name, flags in FLAGS.items()
    }


def alignment(*rates, layers=None):
    """Return what analyze alignment writes for one kind of attention, from its layers' rates."""
    numbers = layers or range(1, len(rates) + 1)
    return {
        "layers": [
            {"layer": number, "average": average, "heads": heads, "best": min(heads, default=None)}
            for number, (average, heads) in zip(numbers, rates, strict=True)
        ]
    }


ALIGNED = {
    "a": {
        "normal": alignment((0.5, [0.4, 0.7]), (0.4, [0.6, 0.3])),
        "shifted": alignment((0.3, [0.2, 0.3]), (0.2, [0.2, 0.1])),
    },
    "b": {"normal": alignment((0.9, []), (None, [0.8]), layers=[2, 5])},
}


def is_dashed(line):
    return line.get_linestyle() != "-"


def lines_in(axes, dashed=False):
    """Return label -> points of the solid or dashed lines; lines of one colour share a label."""
    label = {line.get_color(): line.get_label() for line in axes.lines if not is_dashed(line)}
    return {
        label[line.get_color()]: line.get_xydata().tolist()
        for line in axes.lines
        if is_dashed(line) == dashed and len(line.get_xdata())
    }


def curve(layers, name, factor=100):
    return [[number, factor * layer[name]] for number, layer in enumerate(layers, start=1)]


def legend_of(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


@pytest.mark.parametrize(("draw", "measure", "factor"), MEASURES)
def test_lines_are_the_measures_by_layer(results, draw, measure, factor):
    figure = draw(results)
    titles = ["encoder self-attention", "decoder self-attention", "cross-attention"]
    assert [axes.get_title() for axes in figure.axes] == titles
    for place, axes in zip(PLACES, figure.axes, strict=True):
        drawn = lines_in(axes)
        assert len(drawn) == 3
        for name, result in results.items():
            (line,) = (line for label, line in drawn.items() if label.startswith(name))
            expected = curve(result["attention"][place]["layers"], measure, factor)
            assert line == [pytest.approx(point) for point in expected]


def test_dashed_null_rates_are_those_of_shuffled_references(results):
    figure = draw_null_rates(results)
    for place, axes in zip(PLACES, figure.axes, strict=True):
        dashed = lines_in(axes, dashed=True)
        assert set(dashed) == (set(results) if place != "encoder" else set())
        for name, line in dashed.items():
            expected = curve(results[name]["shuffled"][place]["layers"], "null")
            assert line == [pytest.approx(point) for point in expected]
    explained = ["with the reference", "with another sentence's reference"]
    assert legend_of(figure) == [*results, *explained]
    without = {name: {"attention": result["attention"]} for name, result in results.items()}
    assert legend_of(draw_null_rates(without)) == list(results)
    assert not any(lines_in(axes, dashed=True) for axes in draw_null_rates(without).axes)


def test_bands_are_a_standard_deviation_to_either_side(results):
    one = {"rela_g": results["rela_g"]}
    for place, axes in zip(PLACES, draw_null_rates(one).axes, strict=True):
        (band,) = axes.collections
        corners = band.get_paths()[0].vertices.tolist()
        for number, layer in enumerate(one["rela_g"]["attention"][place]["layers"], start=1):
            spread = math.sqrt(layer["null_variance"])
            for end in (layer["null"] - spread, layer["null"] + spread):
                expected = pytest.approx([number, 100 * min(max(end, 0), 1)])
                assert any(corner == expected for corner in corners)


def test_models_with_the_same_numbers_have_a_line_together(results):
    twice = {"one": results["softmax"], "rela_g": results["rela_g"], "two": results["softmax"]}
    figure = draw_sparsity(twice)
    assert [set(lines_in(axes)) for axes in figure.axes] == [{"one, two", "rela_g"}] * 3
    assert legend_of(figure) == ["one, two", "rela_g"]


def test_places_that_no_model_has_get_no_panel():
    model = {"attention": rates_of(["--attention", "relu", "--no-cross-attention"])}
    for draw, *_ in MEASURES:
        titles = [axes.get_title() for axes in draw({"a": model}).axes]
        assert titles == ["encoder self-attention", "decoder self-attention"]


def test_alignment_errors_of_the_best_head_and_of_the_mean():
    figure = draw_alignment_error(ALIGNED)
    normal, shifted = figure.axes
    assert lines_in(shifted) == {"a": [[1, 20], [2, 10]]}
    assert lines_in(shifted, dashed=True) == {"a": [[1, 30], [2, 20]]}
    solid, dashed = lines_in(normal), lines_in(normal, dashed=True)
    assert solid["a"] == [[1, 40], [2, 30]] and dashed["a"] == [[1, 50], [2, 40]]
    assert str(solid["b"]) == "[[2.0, nan], [5.0, 80.0]]"
    assert str(dashed["b"]) == "[[2.0, 90.0], [5.0, nan]]"
    assert legend_of(figure) == ["a", "b", "best head of the layer", "mean of the heads"]
    assert len(draw_alignment_error({"b": ALIGNED["b"]}).axes) == 1


def test_means_over_seeds_have_bars(results):
    seeds = [results["rela_g"], {"attention": rates_of(FLAGS["rela_g"], seed=2)}]
    parts = [{"attention": seed["attention"]} for seed in seeds]
    merged = average_seeds(parts, ["a", "a"])["a"]
    for draw, measure, factor in MEASURES:
        for place, axes in zip(PLACES, draw({"ReLA-g": merged}).axes, strict=True):
            (bars,) = (
                collection.get_segments()
                for collection in axes.collections
                if isinstance(collection, LineCollection)
            )
            layers = [seed["attention"][place]["layers"] for seed in seeds]
            for number, (bar, *pair) in enumerate(zip(bars, *layers, strict=True), start=1):
                values = [factor * layer[measure] for layer in pair]
                mean, deviation = fmean(values), stdev(values)
                expected = [[number, mean - deviation], [number, mean + deviation]]
                assert bar.tolist() == [pytest.approx(point) for point in expected]

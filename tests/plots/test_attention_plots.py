"""Pictures of attention show the weights exactly, and nothing is cut off."""

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.patches import Rectangle

from fairseq_sparse.plots.attention_plots import draw_attention


def draw(*panels, masked=None, **options):
    queries, keys = (list(map(str, range(size))) for size in panels[0].shape)
    titles = [f"head {number}" for number in range(len(panels))]
    return draw_attention(panels, queries, keys, titles, masked=masked, **options)


def panels_in(figure):
    return [axes for axes in figure.axes if axes.get_title()]


def corner(vertices):
    """Row and column of a cell."""
    column, row = np.min(vertices, axis=0)
    return int(row), int(column)


def cells_in(axes):
    """The outlined cells with their weights, the masked cells, and the hatched rows."""
    masked, shaded = axes.collections
    places = [corner(path.vertices) for path in shaded.get_paths()]
    values = dict(zip(places, shaded.get_array().tolist(), strict=True))
    assert shaded.get_linewidth()[0] > 0
    rows = {patch.get_y() for patch in axes.patches if isinstance(patch, Rectangle)}
    assert all(patch.get_hatch() for patch in axes.patches)
    return values, {corner(path.vertices) for path in masked.get_paths()}, rows


def image(figure):
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())


def random_weights(rng, shape, masked):
    weights = np.where(rng.random(shape) < 0.4, rng.random(shape), 0.0).astype(np.float32)
    weights[rng.integers(shape[0])] = 0.0
    return np.where(masked, 0.0, weights)


@pytest.mark.parametrize("shape", [(1, 1), (4, 7), (9, 3)])
@pytest.mark.parametrize("causal", [False, True])
def test_cells_are_the_weights(shape, causal):
    rng = np.random.default_rng(1)
    masked = np.triu(np.ones(shape, dtype=bool), 1) if causal else np.zeros(shape, dtype=bool)
    panels = [random_weights(rng, shape, masked) for _ in range(3)]
    drawn = panels_in(draw(*panels, masked=masked))
    assert len(drawn) == 3
    for axes, weights in zip(drawn, panels, strict=True):
        values, hidden_cells, hatched = cells_in(axes)
        nonzero = {tuple(place) for place in np.argwhere(weights).tolist()}
        assert values == pytest.approx({place: float(weights[place]) for place in nonzero})
        assert hidden_cells == {tuple(place) for place in np.argwhere(masked).tolist()}
        assert hatched == set(np.flatnonzero((weights == 0).all(1)))


def test_the_smallest_weight_does_not_look_like_zero():
    zero = np.array([[1.0, 0.0]])
    tiny = np.array([[1.0, 1e-30]])
    assert (image(draw(zero)) != image(draw(tiny))).any()
    # A panel with -1e-30 has another colour scale, so only its cells are checked.
    assert len(cells_in(panels_in(draw(-tiny))[0])[0]) == 2


def test_scales():
    panels = [np.array([[0.5, 0.0]]), np.array([[20.0, 3.0]]), np.array([[-4.0, 3.0]]), [[0, 0]]]
    panels[3] = np.array(panels[3])

    def limits(**options):
        return [axes.collections[1].get_clim() for axes in panels_in(draw(*panels, **options))]

    assert limits() == [(0, 0.5), (0, 20), (-4, 4), (0, 1)]
    assert limits(sums_to_one=True)[:2] == [(0, 1), (0, 1)]


def test_labels():
    figure = draw_attention(
        [np.eye(2, 3)] * 2,
        ["$a$ _", "</s>"],
        ["Vo@@", "gel", "</s>"],
        ["head 1", "head 2"],
        query_label="target",
        key_label="source",
        title="title",
    )
    first, second = panels_in(figure)
    assert [text.get_text() for text in first.get_xticklabels()] == ["Vo@@", "gel", "</s>"]
    assert [text.get_text() for text in first.get_yticklabels()] == ["$a$ _", "</s>"]
    assert not any(text.get_parse_math() for text in first.get_yticklabels())
    assert (first.get_xlabel(), first.get_ylabel()) == ("source", "target")
    assert [axes.get_title() for axes in (first, second)] == ["head 1", "head 2"]
    assert first.yaxis_inverted() and second.yaxis_inverted()


@pytest.mark.parametrize(
    ("panels", "titles", "message"),
    [
        ([], [], "0 panels"),
        ([np.eye(2)], [], "with 0 titles"),
        ([np.ones((2, 3))], ["a"], r"size \(2, 3\)"),
        ([np.full((2, 2), np.nan)], ["a"], "not finite"),
    ],
)
def test_bad_input(panels, titles, message):
    with pytest.raises(ValueError, match=message):
        draw_attention(panels, ["a", "b"], ["c", "d"], titles)

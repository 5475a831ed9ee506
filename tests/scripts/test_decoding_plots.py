"""Plots of decoding time by beam size and of speed by source length."""

from __future__ import annotations

from benchmark.decoding_plots import decoding_figures, draw_beams, draw_source_lengths


def beam(model: str, size: int, seconds: list[float], batch: int = 32) -> dict:
    row = {"part": "beam", "value": str(size), "beam": size, "batch": batch, "model": model}
    return {**row, "seconds": seconds, "speed": 1.0}


def length(model: str, group: int, value: str, speed: float) -> dict:
    row = {
        "part": "source length",
        "group": group,
        "value": value,
        "beam": 4,
        "batch": 1,
        "model": model,
    }
    return {**row, "seconds": [1.0], "speed": speed}


def curves(figure) -> dict[str, tuple[list, list]]:
    (axes,) = figure.axes
    return {
        line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in axes.lines
    }


def test_times_are_divided_by_the_smallest_of_their_batch_size() -> None:
    rows = [
        beam("softmax", 1, [2.0, 1.0, 9.0]),
        beam("entmax15", 1, [4.0]),
        beam("softmax", 4, [3.0]),
        {**beam("entmax15", 4, []), "failed": "no"},
        beam("softmax", 1, [10.0], batch=1),
        beam("softmax", 4, [30.0], batch=1),
    ]
    del rows[3]["seconds"]
    figure = draw_beams(rows)
    assert curves(figure) == {
        "softmax, batch 32": ([1, 4], [1, 1.5]),
        "entmax15, batch 32": ([1], [2]),
        "softmax, batch 1": ([1, 4], [1, 3]),
    }
    assert figure.axes[0].get_ylim()[0] == 0


def test_speeds_by_length_are_ratios_to_the_first_model() -> None:
    rows = [length("softmax", 0, "9-9", 1.0), length("_rela", 0, "9-9", 0.9)]
    rows += [length("softmax", 1, "9-9", 1.0), length("_rela", 1, "9-9", 1.2)]
    rows += [length("softmax", 2, "9-30", 1.0), length("_rela", 2, "9-30", 1.3)]
    figure = draw_source_lengths(rows)
    assert curves(figure) == {
        "softmax": ([0, 1, 2], [1, 1, 1]),
        "rela": ([0, 1, 2], [0.9, 1.2, 1.3]),
    }
    (axes,) = figure.axes
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["9-9", "9-9", "9-30"]
    assert axes.get_ylabel() == "speed / speed of softmax"


def test_only_what_has_several_points_is_drawn() -> None:
    one = [beam("softmax", 4, [1.0]), length("softmax", 0, "3-9", 1.0)]
    assert decoding_figures(one) == {}
    two = [*one, beam("softmax", 5, [1.0])]
    assert list(decoding_figures(two)) == ["beams"]

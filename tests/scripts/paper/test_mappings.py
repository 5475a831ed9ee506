"""Plots of the mappings, against their formulas."""

import numpy as np
import pytest

from paper import mappings


def lines_of(figure):
    return [np.array(line.get_xydata()).T for line in figure.axes[0].lines]


def test_alpha_relu_has_a_line_for_each_alpha() -> None:
    alphas = [1.25, 1.5, 2.0]
    figure = mappings.draw("alpha-relu", alphas)
    for alpha, (x, y) in zip(alphas, lines_of(figure), strict=True):
        expected = np.maximum((alpha - 1) * x, 0) ** (1 / (alpha - 1))
        assert y == pytest.approx(expected, abs=1e-12) and y.max() > 0 == y.min()
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["1.25-ReLU", "1.5-ReLU", "2-ReLU = ReLU"]


def test_entmax_of_two_scores_saturates_where_the_paper_says() -> None:
    alphas = [1.0, 1.25, 1.5, 2.0, 4.0]
    figure = mappings.draw("entmax", alphas)
    for alpha, (t, p) in zip(alphas, lines_of(figure), strict=True):
        assert p + p[::-1] == pytest.approx(np.ones_like(p))  # of [t, 0] and of [0, t]
        assert (np.diff(p) >= -1e-12).all()
        if alpha == 1:
            assert p == pytest.approx(1 / (1 + np.exp(-t)))
            continue
        end = 1 / (alpha - 1)
        assert (p[t > end + 1e-9] == 1).all() and (p[t < -end - 1e-9] == 0).all()
        inside = abs(t) < end - 1e-2
        assert ((p[inside] > 0) & (p[inside] < 1)).all()
        # Tsallis' condition: both entries have the same threshold.
        scaled = p[inside] ** (alpha - 1), (1 - p[inside]) ** (alpha - 1)
        assert scaled[0] - scaled[1] == pytest.approx((alpha - 1) * t[inside], abs=1e-6)


def test_the_script_refuses_what_has_no_formula(tmp_path, capsys) -> None:
    for arguments, message in (
        (["alpha-relu", "--alphas", "1,2"], "needs an alpha above 1"),
        (["entmax", "--alphas", "0.5"], "a number of at least 1"),
        (["softmax"], "invalid choice"),
    ):
        with pytest.raises(SystemExit):
            mappings.main([*arguments, "--output", str(tmp_path / "a.png")])
        assert message in capsys.readouterr().err
    arguments = ["entmax", "--alphas", "1,2", "--output"]
    assert mappings.main([*arguments, str(tmp_path / "a.png"), str(tmp_path / "a.svg")]) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"a.png", "a.svg"}
    capsys.readouterr()
    assert mappings.main([*arguments, str(tmp_path / "a.xyz")]) == 1
    assert capsys.readouterr().err.count("\n") == 1

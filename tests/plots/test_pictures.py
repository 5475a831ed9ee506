"""All pictures are written as files and leave no traces; fonts have the characters."""

import math
import warnings
import xml.etree.ElementTree

import matplotlib
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib import font_manager
from matplotlib.ft2font import FT2Font

from fairseq_sparse.plots import attention_plots
from fairseq_sparse.plots.pictures import (
    add_legend,
    colours_of,
    font_families,
    is_flat,
    new_figure,
    save_figure,
    unescaped,
)

LONG = "$x_ a model with quite a long name, 1.5-ReLU and ReLA-g"


def attention(name):
    """Seven heads, with labels of different lengths."""
    queries, keys = ([(name, f"{number}")[number % 2] for number in range(n)] for n in (3, 5))
    titles = [f"head {number}" for number in range(7)]
    return attention_plots.draw_attention(
        [np.eye(3, 5)] * 7, queries, keys, titles, query_label="target", key_label="source"
    )


def curve(name):
    figure = new_figure(4, 3)
    figure.axes[0].plot([1, 2], label=f"{name} 0")
    add_legend(figure)
    return figure


@pytest.mark.parametrize("draw", [attention, curve])
def test_pictures_are_written_and_global_state_is_left_alone(draw, tmp_path):
    before = dict(matplotlib.rcParams)
    figure = draw(LONG)
    for name in ("a.png", "a.svg", "A.PDF"):
        save_figure(figure, tmp_path / name)
    assert dict(matplotlib.rcParams) == before
    assert (matplotlib.image.imread(tmp_path / "a.png")[..., :3] < 1).any()
    assert xml.etree.ElementTree.parse(tmp_path / "a.svg").getroot().tag.endswith("svg")
    assert (tmp_path / "A.PDF").read_bytes().startswith(b"%PDF")
    with pytest.raises(ValueError, match="xyz"):
        save_figure(figure, tmp_path / "a.xyz")
    with pytest.raises(OSError):
        save_figure(figure, tmp_path / "none" / "a.png")
    assert {path.name for path in tmp_path.iterdir()} == {"a.png", "a.svg", "A.PDF"}


@given(st.lists(st.sampled_from(["softmax", "entmax15", "alpha_relu", "sparsemax", "relu"])))
def test_a_kind_has_one_colour_in_every_picture(names):
    alone = {name: colours_of([name])[name] for name in names}
    assert colours_of(names) == alone
    assert len(set(alone.values())) == len(alone)


@pytest.mark.parametrize(
    ("kind", "other"),
    [
        ("entmax15", "1.5-entmax"),
        ("alpha_relu", "1.5-ReLU"),
        ("rela_g", "ReLA-g"),
        ("rela_g", "softmax+rela_g"),
        ("rela_g", "rela_g_cross"),
        ("softmax", "runs/softmax-2"),
    ],
)
def test_a_kind_is_known_by_its_other_names(kind, other):
    assert colours_of([other])[other] == colours_of([kind])[kind]
    assert colours_of([other, kind])[kind] == colours_of([kind])[kind]


@given(st.lists(st.text(st.sampled_from("softmax+_1")) | st.text(), unique=True, max_size=20))
def test_models_of_a_picture_have_different_colours(names):
    found = colours_of(names)
    assert list(found) == names and len(set(found.values())) == len(names)


@pytest.mark.parametrize(
    ("lines", "flat"),
    [
        ([[1, 1, 1.0001]], True),
        ([[1, 1], [math.nan, 7, 7]], True),
        ([[0, 0], [0, 0.1]], False),
        ([[0], [0]], True),
        ([[0], [3]], False),
        ([], True),
    ],
)
def test_flat_is_what_never_changes(lines, flat):
    (axes,) = new_figure(3, 2).axes
    for values in lines:
        axes.plot(values)
    assert is_flat(axes) == flat
    axes.bar([1], [2])
    assert not is_flat(axes)


def test_escapes_of_the_moses_tokeniser_are_shown_as_characters() -> None:
    written = {"source": ["&apos;s", "&quot;", "&amp;lt;", "&#124;", "&eacute;"], "p": 0.5}
    shown = ["'s", '"', "&lt;", "|", "&eacute;"]
    assert unescaped([written]) == [{"source": shown, "p": 0.5}]


def test_fonts_have_the_characters():
    own = FT2Font(font_manager.findfont("DejaVu Sans")).get_charmap().keys()
    other = FT2Font(font_manager.findfont("STIXGeneral")).get_charmap().keys()
    character = chr(max(other - own))
    assert font_families("Zwei Männer @@ Два Ελλ </s>") == ["DejaVu Sans"]
    families = font_families(f"a{character}b")
    assert families[0] == "DejaVu Sans" and len(families) == 2
    assert ord(character) in FT2Font(font_manager.findfont(families[1])).get_charmap()
    assert font_families("\U0010fffd") == ["DejaVu Sans"]
    (legend,) = curve(character).legends
    label, text = attention(character).axes[0].get_yticklabels()[0], legend.get_texts()[0]
    assert label.get_fontfamily() == text.get_fontfamily() == families
    assert text.get_text() == f"{character} 0"


@pytest.mark.filterwarnings("always")
def test_characters_that_no_font_has_are_named_in_one_warning(tmp_path):
    figure = new_figure(3, 2)
    (axes,) = figure.axes
    axes.set_title("\ue123 \ue124 \ue123")  # of the private use area
    axes.set_xlabel("\ue123")
    with pytest.warns(UserWarning) as caught:
        save_figure(figure, tmp_path / "a.png")
        warnings.warn("another", stacklevel=1)
    first, second = (str(warning.message) for warning in caught)
    assert first.startswith("no installed font has ") and second == "another"
    assert sorted(first.split(":")[0].removeprefix("no installed font has ")) == [
        "\ue123",
        "\ue124",
    ]

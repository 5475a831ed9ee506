"""All pictures are written as files and leave no traces; fonts have the characters."""

import math
import warnings
import xml.etree.ElementTree

import matplotlib
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from matplotlib import font_manager
from matplotlib.ft2font import FT2Font

import toy
from fairseq_sparse.measure.attention.attention_statistics import AttentionStatistics
from fairseq_sparse.measure.output.output_statistics import OutputStatistics
from fairseq_sparse.measure.translator import ForcedSteps
from fairseq_sparse.plots import attention_curves, attention_plots, output_plots
from fairseq_sparse.plots.pictures import (
    COLOURS,
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


def curves(draw):
    def figure(name):
        results = {}
        for number, layers in enumerate((1, 3)):
            model = toy.model("--attention", "rela_g", "--encoder-layers", layers)
            statistics = AttentionStatistics(model, toy.dictionary().pad())
            statistics.add_batch(toy.batch(toy.dictionary())["net_input"])
            rates = statistics.rates()
            results[f"{name} {number}"] = {"attention": rates, "shuffled": rates}
        return draw(results)

    return figure


def alignment_error(name):
    layers = [{"layer": n, "average": 0.4, "heads": [0.2, 0.6], "best": 0.2} for n in (1, 2)]
    aligned = {"normal": {"layers": layers}, "shifted": {"layers": layers}}
    return attention_curves.draw_alignment_error({f"{name} {n}": aligned for n in range(2)})


def output(draw):
    def figure(name):
        rows = []
        for subset in ("test", "train"):
            p = torch.tensor([[0.1] * count + [0.0] * (100 - count) for count in (0, 1, 3, 64)])
            given, statistics = torch.zeros(len(p), dtype=torch.long), OutputStatistics(100)
            statistics.add(ForcedSteps(p.log(), given, given, given))
            rows.append({"name": name, "output": "x", "subset": subset, **statistics.result()})
        return draw(rows, {name: COLOURS[0]})

    return figure


def training(name):
    run = {"name": name, "updates": [10, 20], "tau": [1.5, 1.6], "logit_norm": [30.0, 40.0]}
    return output_plots.draw_training([run], {name: COLOURS[0]})


FIGURES = {
    "attention": attention,
    "sparsity": curves(attention_curves.draw_sparsity),
    "null rates": curves(attention_curves.draw_null_rates),
    "diversity": curves(attention_curves.draw_diversity),
    "alignment error": alignment_error,
    "nonzeros": output(output_plots.draw_nonzeros),
    "zeros": output(output_plots.draw_zeros),
    "sums": output(output_plots.draw_sums),
    "training": training,
}


@pytest.mark.slow_except("attention", "nonzeros", "training")
@pytest.mark.parametrize("kind", FIGURES)
def test_pictures_are_written_and_global_state_is_left_alone(kind, tmp_path):
    before = dict(matplotlib.rcParams)
    figure = FIGURES[kind](LONG)
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
    (legend,) = FIGURES["sparsity"](character).legends
    label, text = (
        FIGURES["attention"](character).axes[0].get_yticklabels()[0],
        legend.get_texts()[0],
    )
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

"""The parts of the report: packed weights, escaping, figures in a page, published figures."""

import base64
import html.parser
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fairseq_sparse.analysis.report.page import fill_page, script_json
from fairseq_sparse.analysis.report.published import published_score, read_published
from fairseq_sparse.analysis.report.runs import short_names
from fairseq_sparse.analysis.report.sections import html_table
from fairseq_sparse.analysis.report.sentences import encode

FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


def decode(text: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), "<f2").astype(np.float64)


@given(st.lists(FLOATS, min_size=1, max_size=20))
def test_packed_weights_keep_zeros_signs_and_three_digits(weights: list[float]) -> None:
    exact = np.array(weights, dtype=np.float32).astype(np.float64)
    packed = decode(encode(torch.tensor(weights, dtype=torch.float32)))
    assert ((packed == 0) == (exact == 0)).all()
    assert (np.sign(packed) == np.sign(exact)).all()
    normal = (abs(exact) >= 2**-14) & (abs(exact) <= 65504)
    assert (abs(packed - exact)[normal] <= 2**-11 * abs(exact)[normal]).all()
    small = abs(exact) < 2**-14
    assert (abs(packed - exact)[small] <= 2**-24).all()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match="not finite"):
        encode(torch.tensor([0.5, value]))


class Elements(html.parser.HTMLParser):
    """The tags of a page in order, and the text of each script."""

    def __init__(self, page: str):
        super().__init__()
        self.tags, self.scripts = [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        if self.tags and self.tags[-1][0] == "script":
            self.scripts.append(data)


@given(
    st.text() | st.sampled_from(["</script>", "<!--<script>", "</SCRIPT\n>", "{data}", "\u2028"])
)
def test_no_text_leaves_its_place(text: str) -> None:
    data = {"models": [{"name": text}]}
    sections = dict.fromkeys(("results", "training", "output", "attention"), "")
    plain = Elements(fill_page("x", "x", {}, **sections))
    sections["results"] = html_table(["a"], [], "c")
    with_table = Elements(fill_page("x", "x", {}, **sections))
    sections["results"] = html_table([text], [], text)
    awkward = Elements(fill_page(text, text, data, **sections))
    assert [tag for tag, _ in awkward.tags] == [tag for tag, _ in with_table.tags]
    assert len(with_table.tags) > len(plain.tags)
    assert json.loads(awkward.scripts[0]) == data
    assert awkward.scripts[1:] == plain.scripts[1:]


def test_data_without_a_number_are_refused() -> None:
    with pytest.raises(ValueError):
        script_json({"weight": float("nan")})


def test_page_asks_for_nothing_and_its_figures_share_no_id() -> None:
    pytest.importorskip("matplotlib")
    from fairseq_sparse.analysis.pictures import new_figure
    from fairseq_sparse.analysis.report.sections import html_figure

    def picture(prefix: str) -> str:
        figure = new_figure(4, 3)
        figure.axes[0].plot([1, 2], marker="o", label="<b> & $x$")
        figure.axes[0].legend()
        return html_figure(figure, prefix, '"quoted" <i>')

    names = ("results", "training", "output", "attention")
    page = fill_page("t", "a", {}, **{name: picture(f"figure-{name}") for name in names})
    tags = Elements(page).tags
    assert sum(tag == "svg" for tag, _ in tags) == 4
    assert not any(tag in ("b", "i", "metadata", "link", "img", "iframe") for tag, _ in tags)
    assert sum(tag == "style" for tag, _ in tags) == 1
    ids = [values["id"] for _, values in tags if "id" in values]
    assert len(ids) == len(set(ids))
    used = {values["xlink:href"] for tag, values in tags if tag == "use"}
    used |= {f"#{name}" for name in re.findall(r"url\(#([^)]+)\)", page)}
    assert used and used <= {f"#{name}" for name in ids}
    links = {values[key] for _, values in tags for key in ("src", "href") if key in values}
    assert all(link.startswith("#") for link in links)
    assert "http" not in page.replace("http-equiv", "")


def test_published_figures_have_a_source_and_one_for_each_column() -> None:
    published = read_published()
    for table in [*published["scores"], *published["tables"]]:
        assert table["paper"] and table["source"]
    for table in published["scores"]:
        assert all(len(row["figures"]) == len(table["datasets"]) for row in table["rows"])
    for table in published["tables"]:
        assert all(len(row) == len(table["header"]) for row in table["rows"])
    assert published_score(published, "wmt16_ro_en_32k", "attention_sparsemax") == "33.5"
    assert published_score(published, "wmt16_ro_en_32k", "sparsemax") is None
    assert published_score(published, "multi30k_de_en", "softmax") is None


def test_published_variants_and_data_sets_are_those_of_the_recipes() -> None:
    examples = Path(__file__).resolve().parents[2] / "examples"
    for table in read_published()["scores"]:
        for folder, names in (
            ("datasets", table["datasets"]),
            ("variants", [name for row in table["rows"] for name in row["variants"]]),
        ):
            for name in names:
                assert (examples / folder / f"{name.split()[0]}.sh").is_file(), name


@pytest.mark.parametrize(
    ("places", "names"),
    [
        (["/r/a"], ["a"]),
        (["/r/a", "/s/b"], ["a", "b"]),
        (["/r/one/a", "/r/two/a"], ["one/a", "two/a"]),
        (["/r/one/a", "/r/two/a", "/r/b"], ["one/a", "two/a", "b"]),
    ],
)
def test_names_of_runs_differ(places: list[str], names: list[str]) -> None:
    assert short_names([Path(place) for place in places]) == names

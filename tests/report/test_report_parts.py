"""The parts of the report: packed weights, escaping, figures in a page, published figures."""

from __future__ import annotations

import base64
import hashlib
import html.parser
import json
import re
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fairseq_sparse.errors import AnalysisError
from fairseq_sparse.measure.run_folders import Run, find_data, short_names
from fairseq_sparse.measure.sentences import encode
from fairseq_sparse.plots.pictures import colours_of, new_figure
from fairseq_sparse.recipes.catalogue import entries, section
from fairseq_sparse.report.figures import draw_curve
from fairseq_sparse.report.page import fill_page, script_json
from fairseq_sparse.report.sections import _figures, results, training
from fairseq_sparse.tables.columns import Quantity, quantity_of
from fairseq_sparse.tables.models import alphas_of, identity, model_of
from fairseq_sparse.tables.published import (
    differences,
    find_figure,
    published_figures,
    published_text,
    read_published,
)

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


@pytest.mark.parametrize(
    "settings",
    [
        lambda task: {"cfg": {"task": vars(task)}},
        lambda task: {"cfg": {"task": task}},
        lambda task: {"args": task},
    ],
    ids=["dataclass", "task with add_args", "old"],
)
def test_data_are_found_by_a_checkpoint_of_any_form(settings, tmp_path: Path) -> None:
    runs = [Run("a", tmp_path / "average.pt", tmp_path)]
    torch.save(settings(Namespace(data=str(tmp_path))), tmp_path / "average.pt")
    assert find_data(runs, None) == str(tmp_path)
    for unknown in (Namespace(), Namespace(data=".")):  # the latter is from average --share
        torch.save(settings(unknown), tmp_path / "average.pt")
        with pytest.raises(AnalysisError, match="give --data"):
            find_data(runs, None)


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


HEADINGS = ("Results", "Training", "Output", "Attention")


@given(
    st.text()
    | st.sampled_from(["</script>", "<!--<script>", "</SCRIPT\n>", "{{ data }}", "{%", "\u2028"])
)
def test_no_text_leaves_its_place(text: str) -> None:
    def page(text: str) -> Elements:
        parts = [
            {"caption": text, "header": [text], "rows": [[text, text]], "source": text},
            {"note": text, "hints": [text]},
            {"terms": [(text, text)]},
            {"figures": [{"svg": "<svg></svg>", "caption": text}], "wide": True},
        ]
        data = {"models": [{"name": text}]}
        return Elements(fill_page(text, text, dict.fromkeys(HEADINGS, parts), data))

    plain, awkward = page("x"), page(text)
    assert [tag for tag, _ in awkward.tags] == [tag for tag, _ in plain.tags]
    assert {"table", "pre", "dl", "svg"} <= {tag for tag, _ in plain.tags}
    assert json.loads(awkward.scripts[0]) == {"models": [{"name": text}]}
    assert awkward.scripts[1:] == plain.scripts[1:]


def test_the_page_allows_its_own_script_alone() -> None:
    page = fill_page("t", "a", {}, {})
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    (policy,) = re.findall(r'content="(default-src[^"]*)"', page)
    assert "default-src 'none'" in policy and f"script-src 'sha256-{digest}'" in policy


def test_data_without_a_number_are_refused() -> None:
    with pytest.raises(ValueError):
        script_json({"weight": float("nan")})


def test_page_asks_for_nothing_and_its_figures_share_no_id() -> None:
    def picture():
        figure = new_figure(4, 3)
        figure.axes[0].plot([1, 2], marker="o", label="<b> & $x$")
        figure.axes[0].legend()
        return figure

    parts = {name: _figures(name, [(picture(), '"quoted" <i>')]) for name in HEADINGS}
    page = fill_page("t", "a", parts, {})
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


def test_a_figure_in_which_nothing_changes_is_only_named() -> None:
    figures = [new_figure(4, 3) for _ in range(2)]
    figures[0].axes[0].plot([1, 1, 1])
    figures[1].axes[0].plot([1, 2, 1])
    drawn, note = _figures("x", [(figures[0], "flat"), (figures[1], "steep"), (None, "none")])
    assert [figure["caption"] for figure in drawn["figures"]] == ["steep"]
    assert note["note"].endswith(": flat.")


def test_the_report_and_the_pictures_load_no_model() -> None:
    code = "import sys, fairseq_sparse.report.page, fairseq_sparse.plots.curves; "
    code += "print([name for name in ('torch', 'fairseq', 'matplotlib') if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


BLEU = Quantity("bleu", "test")
BY_SORT = {"output": "entmax15", "output_algorithm": "sort"}


def entmax(output: float, attention: float) -> dict:
    alphas = {"output_alpha": output, "attention_alpha": attention}
    return {"output": "entmax", "attention": "entmax", **alphas}


SUE, S2S = "speeding_up_entmax", "sparse_seq2seq"
TABLES = {SUE: 7, "speeding_up_entmax_v1": 2, "rela": 6, S2S: 3}


def test_published_tables_are_all_there_and_complete() -> None:
    tables = read_published()
    assert [(table["recipe"], table["table"]) for table in tables] == [
        (recipe, f"Table {number}")
        for recipe, count in TABLES.items()
        for number in range(1, count + 1)
    ]
    for table in tables:
        assert table["paper"] and table["title"]
        for column in table["columns"]:
            assert set(column) - {"languages"} == {
                *("heading", "dataset", "split", "metric", "statistic"),
            }
            assert column["statistic"] in ("value", "mean", "deviation", "ensemble")
            assert column["split"] in ("train", "valid", "test", "rwth", None)
        for row in table["rows"]:
            assert row["name"] and len(row["figures"]) == len(table["columns"])
            assert any(row["figures"]) and all(text != "" for text in row["figures"])
            assert all(row.get("metric") or column["metric"] for column in table["columns"])
        headings = [column["heading"] for column in table["columns"]]
        names = [row["name"] for row in table["rows"]]
        assert len({*headings}) == len(headings) and len({*names}) == len(names)
    assert published_figures()


def test_a_published_figure_is_found_once() -> None:
    seen = set()
    for figure in published_figures():
        for model in figure.models:
            key = (figure.recipe, figure.dataset, figure.quantity, figure.statistic, model)
            assert key not in seen or figure.dataset is None, key
            seen.add(key)


@pytest.mark.parametrize(
    ("recipe", "dataset", "model", "quantity", "text"),
    [
        (SUE, "wmt13_en_ru", {"output": "alpha_relu"}, BLEU, "24.6"),
        (SUE, "iwslt14_de_en", {"output": "entmax15", "output_algorithm": "partial"}, BLEU, "36.7"),
        (SUE, "iwslt14_de_en", entmax(1.5, 1), BLEU, "36.6"),
        (SUE, "iwslt14_de_en", entmax(1, 1), BLEU, "35.3"),
        ("speeding_up_entmax_v1", "wmt14_en_de", entmax(2, 1), BLEU, "26.6"),
        (SUE, "wmt14_en_de", {}, Quantity("empty_is_best", "valid"), "29.8%"),
        (SUE, "wmt14_en_de", {}, Quantity("empty_is_best", "test"), None),
        (SUE, "wmt14_en_de_32k", {}, BLEU, None),
        (SUE, "wmt14_en_de", {}, Quantity("bleu", "valid"), None),
        (SUE, "wmt14_en_de", {}, Quantity("hours", "train"), "30.06"),
        (SUE, "wmt14_en_de", BY_SORT, Quantity("hours", "train"), "79.89"),
        (SUE, "wmt14_en_de", BY_SORT, BLEU, "28.6"),
        ("rela", "wmt14_en_de_32k", {"attention": "rela_g"}, BLEU, "26.6"),
        ("rela", "wmt14_en_de_32k", {"attention": "relu"}, BLEU, "–"),
        ("rela", "wmt14_en_de_32k", entmax(1, 2), BLEU, "26.4"),
        ("rela", "wmt14_en_de_32k", {}, Quantity("tokenized_bleu", "test"), "27.59"),
        ("rela", "wmt14_en_fr", {"attention": "rela_g"}, BLEU, "37.9"),
        ("rela", "wmt14_en_fr", {"output": "alpha_relu", "attention": "rela_g"}, BLEU, None),
        (S2S, "kftt_ja_en", entmax(1.5, 1.5), Quantity("tokenized_bleu", "test"), "20.55 ± 0.30"),
        (S2S, "kftt_ja_en", entmax(1.5, 1.5), BLEU, None),
        (
            S2S,
            "sigmorphon2018_medium",
            entmax(2, 1),
            Quantity("word_accuracy", "test", 102),
            "84.95",
        ),
        (S2S, "sigmorphon2018_medium", entmax(2, 1), Quantity("word_accuracy", "test", 10), None),
        (S2S, "iwslt17_de_en", entmax(2, 2), Quantity("nonzeros", "test"), None),
    ],
)
def test_a_figure_is_found_where_data_split_and_metric_are_the_same(
    recipe: str, dataset: str, model: dict, quantity: Quantity, text: str
) -> None:
    assert published_text(recipe, dataset, model, quantity) == text
    if text:
        assert published_text(None, dataset, model, quantity) == text
    elif dataset not in ("quickstart", "wmt14_en_fr", "wmt14_en_de_32k"):
        assert differences(recipe, dataset, [quantity])


def test_the_report_compares_neither_minutes_with_hours_nor_speeds_with_ratios() -> None:
    summary = {"variant": "softmax", "training": {"seconds": 3600, "words_per_second": 9}}
    models = [{"name": "softmax", "summary": summary}]
    for dataset in ("iwslt14_de_en", "wmt14_en_de_32k"):
        ours, *papers = (
            part for part in results(models, dataset, read_published()) if "rows" in part
        )
        assert "60.0" in ours["rows"][0] and papers
        assert not any("in the paper" in heading for heading in ours["header"])


def test_what_is_missing_is_named_with_the_commands_that_make_it() -> None:
    models = [
        {"name": name, "records": [], "missing": {"records": [hint]}}
        for name, hint in (("a", "make a"), ("b", "make b"), ("c", "make b"))
    ]
    (note,) = (part for part in training(models, {}) if part.get("hints"))
    assert note["hints"] == ["make a", "make b"] and note["note"].endswith(": a, b, c.")


def test_curves_keep_their_colours_and_names_without_logs_and_validations() -> None:
    records = [("train_inner", {"epoch": 1, "num_updates": 5, "loss": 2.0})]
    colours = colours_of(["no log", "one", "two"])
    figure = draw_curve({"one": records, "two": records}, "loss", colours)
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["one", "two"]
    assert [each.get_color() for each in figure.axes[0].lines] == [colours["one"], colours["two"]]


def test_figures_that_stand_beside_ours_need_no_explanation() -> None:
    ours = [Quantity("bleu", "test"), Quantity("tokenized_bleu", "test")]
    assert differences("rela", "wmt14_en_de_32k", ours) == []
    assert len(differences("rela", "wmt14_en_de_32k", ours[:1])) == 1


def test_an_ensemble_is_no_single_model() -> None:
    measure = Quantity("word_accuracy", "test", 86)
    arguments = ("sparse_seq2seq", "sigmorphon2018_high", {"output": "entmax15"}, measure)
    assert find_figure(*arguments).text == "94.36"
    assert find_figure(*arguments, ["ensemble"]).text == "94.96"
    assert find_figure(*arguments, ["deviation"]) is None


def test_a_score_is_of_the_model_however_its_thresholds_are_found() -> None:
    arguments = ("speeding_up_entmax", "wmt14_en_de")
    for output in ("sparsemax", "entmax15"):
        model = {"output": output}
        sorting = {**model, "output_algorithm": "sort"}
        score = find_figure(*arguments, model, Quantity("bleu", "test"))
        assert score is not None
        assert find_figure(*arguments, sorting, Quantity("bleu", "test")) == score
        assert find_figure(*arguments, model, Quantity("hours", "test")) is None
        assert find_figure(*arguments, sorting, None) is None


def test_a_speed_of_batches_does_not_stand_beside_one_of_single_sentences() -> None:
    ours = quantity_of({}, "sentences_per_second")
    arguments = ("rela", "wmt14_en_de_32k", {"attention": "rela_g"})
    assert find_figure(*arguments, ours) is None
    assert find_figure(*arguments, Quantity("decoding_speed_alone", "test")).text == "0.98×"


def test_a_model_is_the_same_under_every_name() -> None:
    scaled = {"attention-scale-queries": True, "attention": "entmax15", "criterion": "a"}
    assert identity({"attention": "rela_g"}) == identity(
        {**dict.fromkeys(("attention_enc", "attention_dec", "attention_cross"), "rela_g")}
    )
    for names, (output, attention) in (
        ({"output": "softmax"}, (1, 1)),
        ({"output": "entmax15", "output_tau": "", "output_algorithm": "newton"}, (1.5, 1)),
        ({"output": "sparsemax", "attention": "softmax", "attention_enc": ""}, (2, 1)),
        ({"attention": "entmax15"}, (1, 1.5)),
        ({"attention": "sparsemax"}, (1, 2)),
    ):
        assert identity(names) == identity(entmax(output, attention))
        assert alphas_of(names) == (output, attention)
    others = [{"output": "softmax"}, {"output": "entmax15"}, {"output": "alpha_relu"}]
    others += [{"output": "alpha_relu", "output_tau": "1"}, BY_SORT, entmax(1.33, 1)]
    others += [{"output": "alpha_relu", "output_alpha": 1.2}]
    others += [{"attention_cross": "entmax", "attention_alpha": 1.2}]
    others += [{"attention": "rela_g"}, {"attention_enc": "rela_g"}, entmax(1.5, 1.5)]
    others += [{"attention": "entmax15"}, {"attention": "entmax15", "flags": scaled}]
    assert len(set(map(identity, others))) == len(others)
    assert alphas_of({"output": "alpha_relu"}) == alphas_of({"attention_enc": "entmax15"}) is None
    relu = {"output": "alpha_relu", "output_alpha": 1.5, "attention_alpha": 1.0}
    assert identity(relu) == identity({"output": "alpha_relu"})
    for tau in ("data", "weights"):
        relu = {"output": "alpha_relu", "output_tau": tau}
        assert identity(relu) == identity({"output": "alpha_relu"})


def test_models_of_summaries_that_only_have_names_are_known() -> None:
    for variant, name, model in (
        (
            "entmax",
            "entmax: output 1.5, attention 2",
            {"output": "entmax15", "attention": "sparsemax"},
        ),
        ("sparsemax", "", {"output": "sparsemax"}),
        ("rela_g", "", {"attention": "rela_g"}),
        (
            *("attention_sigmoid", "attention_sigmoid, output of entmax15"),
            {"output": "entmax15", "attention": "sigmoid"},
        ),
    ):
        assert identity(model_of({"variant": variant, "variant_name": name})) == identity(model)
    unknown = model_of({"variant": "alpha_relu", "variant_name": "alpha_relu, τ = 1"})
    assert identity(unknown) != identity({"output": "alpha_relu"})
    assert (
        model_of({"variant": "softmax", "model": {"output": "sparsemax"}})["output"] == "sparsemax"
    )


def test_the_metric_of_bleu_is_that_of_its_signature() -> None:
    def metric(signature: str) -> str:
        return quantity_of({"bleu": {"signature": signature}}, "bleu").metric

    assert metric("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0") == "bleu"
    assert metric("nrefs:1|case:mixed|eff:no|tok:none|smooth:exp|version:2.6.0") == "tokenized_bleu"
    for other in ("nrefs:1|case:lc|tok:13a", "nrefs:1|tok:zh", ""):
        assert metric(other) not in ("bleu", "tokenized_bleu")
    languages = {"inflection": {"languages": dict.fromkeys("abc")}}
    assert quantity_of(languages, "word_accuracy") == Quantity("word_accuracy", "test", 3)
    for column, metric, paper in (
        ("valid_nonzeros", "nonzeros", "16.13"),
        ("valid_attended", "attended", "5.55"),
    ):
        assert quantity_of({}, column) == Quantity(metric, "valid")
        model = {"output": "entmax15", "attention": "entmax15"}
        figure = find_figure("sparse_seq2seq", "iwslt17_de_en", model, quantity_of({}, column))
        assert figure.text == paper
    empty = {"empty": {"subset": "valid"}}
    assert quantity_of(empty, "empty_is_best") == Quantity("empty_is_best", "valid")


def test_published_models_and_data_sets_are_those_of_the_recipes() -> None:
    outputs = {entry["flags"]["output-transform"] for entry in entries("variants").values()}
    known = {"output": outputs, "output_tau": {"formula"}, "output_algorithm": {"sort", "partial"}}
    places = ("attention", "attention_enc", "attention_dec", "attention_cross")
    known |= dict.fromkeys(places, set(section("variants", "attentions")))
    for table in read_published():
        datasets = {column["dataset"] for column in table["columns"]} - {None}
        assert datasets <= set(entries("datasets"))
        for model in (model for row in table["rows"] for model in row["models"]):
            assert all(value in known[field] for field, value in model.items()), model


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

"""The sections of the report that need no script, as parts for the template ``page.html``.

A part is a note, a table, a list of terms, or figures; the template escapes all text in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Optional

from fairseq_sparse.measure.alignment import ALIGNMENT_KINDS
from fairseq_sparse.measure.training_log import threshold_curve
from fairseq_sparse.plots import attention_curves, output_plots
from fairseq_sparse.plots.pictures import is_flat
from fairseq_sparse.report.figures import CURVES, draw_curve, inline_svg
from fairseq_sparse.tables.attention import kinds_of
from fairseq_sparse.tables.columns import (
    COLUMNS,
    SPEEDS,
    cell,
    columns_of,
    conditions,
    quantity_of,
)
from fairseq_sparse.tables.models import model_of
from fairseq_sparse.tables.output import empty_table, output_table, percent
from fairseq_sparse.tables.published import differences, published_text
from fairseq_sparse.tables.summaries import missing_parts

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Part = dict[str, Any]
Models = Sequence[Mapping[str, Any]]
Colours = Mapping[str, str]


def results(models: Models, dataset: str, published: Sequence[dict[str, Any]]) -> list[Part]:
    """Show the results of all models, beside the papers' figures that are measured in the same way.

    All tables of the papers on this data set follow below.
    """
    summaries = [model["summary"] for model in models]
    names = columns_of(summaries)
    if all(cell(model["summary"], "variant") == model["name"] for model in models):
        names.remove("variant")
    columns = [("model", [model["name"] for model in models])]
    for name in names:
        heading = COLUMNS[name].heading
        columns.append((heading, [cell(part, name) for part in summaries]))
        theirs = [_published_text(dataset, part, name) for part in summaries]
        if any(theirs):
            columns.append((f"{heading} in the paper", [text or "-" for text in theirs]))
    beside = any(heading.endswith(" in the paper") for heading, _ in columns)
    header, cells = zip(*columns, strict=True)
    papers = [
        _table((["", *(column["heading"] for column in table["columns"])], _printed(table)), title)
        | {"source": table["paper"]}
        for table in published
        if any(column["dataset"] == dataset for column in table["columns"])
        for title in [f"{table['table']} of the paper: {table['title']}"]
    ]
    return [
        *map(_note, _paper_notes(summaries, dataset, names, beside)),
        _table((header, zip(*cells, strict=True)), "Results on the test set"),
        *([_note("Attention: encoder / decoder / cross-attention.")] if "null" in names else []),
        {"terms": conditions(summaries)},
        *map(_note, missing_parts({**model["summary"], "run": model["name"]} for model in models)),
        *papers,
    ]


def _published_text(dataset: str, summary: dict[str, Any], column: str) -> Optional[str]:
    if not summary.get("variant") or column in SPEEDS:  # the papers have ratios
        return None
    return published_text(None, dataset, model_of(summary), quantity_of(summary, column))


def _printed(table: dict[str, Any]) -> list[list[str]]:
    """Return the rows of a paper's table, with the figures as printed."""
    return [[row["name"], *(text or "-" for text in row["figures"])] for row in table["rows"]]


def _paper_notes(
    summaries: Sequence[dict[str, Any]], dataset: str, names: Sequence[str], beside: bool
) -> list[str]:
    """Return the notes on the papers' figures that precede the results."""
    measures = (quantity_of(part, name) for part in summaries if part for name in names)
    notes = differences(None, dataset, measures)
    if beside:
        notes.insert(
            0,
            "The papers' figures stand beside ours where data set, split and metric are the same.",
        )
    return notes or [f"The papers have no results for {dataset} that are measured in the same way."]


def training(models: Models, colours: Colours) -> list[Part]:
    """Show the statistics of the training logs over the updates."""
    missing = _missing(models, "records", "No training log")
    records = {model["name"]: model["records"] for model in models if model["records"]}
    if not records:
        return missing
    curves = [{"name": name, **threshold_curve(found)} for name, found in records.items()]
    curves = [curve for curve in curves if curve["updates"]]
    pictures = [
        (draw_curve(records, name, colours), f"Training: {title}")
        for name, (title, _) in CURVES.items()
    ]
    threshold = output_plots.draw_training(curves, colours)
    pictures.append((threshold, "Threshold τ and norm of the logits (Speeding Up Entmax, Fig. 7)"))
    about = (
        "Lines with points: validation set. Thin lines: training data. fairseq reports "
        "cross-entropy in bits, the sparse losses are in nats, and losses of different criterions "
        "cannot be compared."
    )
    return [_note(about), *missing, *_figures("training", pictures)]


def output(models: Models, colours: Colours) -> list[Part]:
    """Show the sparsity of the output, teacher-forced and in beam search."""
    rows, decoded = ([model[key] for model in models] for key in ("output", "decoded"))
    ranks = "Support by part of the vocabulary, teacher-forced"
    zeros = "Share of zeros at the steps of decoding, beam 5 (Speeding Up Entmax, Fig. 5)"
    sums = "Sum of p at the steps of decoding, beam 5 (Speeding Up Entmax, Fig. 9)"
    pictures = [
        (output_plots.draw_nonzeros(rows, colours), "Support size at a step, teacher-forced"),
        (output_plots.draw_positions(rows, colours), "Support size by position in the sentence"),
        (output_plots.draw_ranks(rows, colours), ranks),
        (output_plots.draw_zeros(decoded, colours), zeros),
        (output_plots.draw_sums(decoded, colours), sums),
    ]
    left_out = [f"{row['name']} ({row['left_out']:,})" for row in rows if row["left_out"]]
    too_long = "Sentences left out, because they are too long for the model"
    return [
        _table(output_table(rows), "Teacher-forced statistics on the references"),
        *_note_on(left_out, too_long),
        _table(
            empty_table([row for model in models for row in model["empty"]]),
            "The empty translation and the best that beam search (beam 5) finds",
        ),
        *_figures("output", pictures),
    ]


def attention(models: Models, colours: Colours) -> list[Part]:
    """Show sparsity, null rates and diversity of the attention, and how well it aligns."""
    found = {m["name"]: m["attention"] for m in models if m["attention"]["attention"]}
    if not found:
        return [_note("The models have no attention of a Transformer or an LSTM.")]
    kinds = {result.get("subwords", "none") for result in found.values()}
    units = "between tokens" if kinds == {"none"} else "between words"
    parts = [_table(_attention_table(found), f"Mean over layers and heads, {units}")]
    if any("/" in row[-1] for row in parts[0]["rows"]):
        parts.append(
            _note(
                "Diversity of weights that do not sum to 1: of the softmax of the weights raised "
                "to 1 / 0.5 / 0.25 / 0.1, as in Table 6 of ReLA; 1 alone for GELU and leaky ReLU."
            )
        )
    alignment = {model["name"]: model["alignment"] for model in models if model["alignment"]}
    if alignment:
        caption = "Alignment error rate of cross-attention (%), mean over the layers"
        parts.append(_table(_alignment_table(alignment), caption))
    parts += _missing(models, "alignment", "No alignment error rates, which need gold alignments")
    diverse = attention_curves.with_diversity(found)
    nulls = f"Null rate {units}, and its spread over the heads (ReLA, Fig. 6)"
    aligned = "Alignment error rate of cross-attention (ReLA, Fig. 4)"
    pictures = [
        (attention_curves.draw_sparsity, found, f"Sparsity rate {units} (ReLA, Fig. 3)"),
        (attention_curves.draw_null_rates, found, nulls),
        (
            attention_curves.draw_diversity,
            diverse,
            f"Diversity of the heads {units} (ReLA, Fig. 5)",
        ),
        (attention_curves.draw_alignment_error, alignment, aligned),
    ]
    drawn = [(draw(part, colours), f"{text}, by layer") for draw, part, text in pictures if part]
    return parts + _figures("attention", drawn, wide=True)


def _attention_table(found: dict[str, dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    header = ["model", "place", "attention", "sparsity rate (%)", "null rate (%)"]
    header += ["null rate of layer attention (%)", "diversity (nats)"]
    rows = [
        [name, place, kinds_of(part)]
        + [percent(part.get(rate)) for rate in ("sparsity", "null", "layer_null")]
        + [_diversity(part)]
        for name, result in found.items()
        for place, part in result["attention"].items()
    ]
    return header, rows


def _diversity(part: dict[str, Any]) -> str:
    if "diversity" not in part:  # a single head has none
        return "-"
    values = part.get("diversity_by_exponent", {"": part["diversity"]})
    return " / ".join(f"{value:.2f}" for value in values.values())


def _alignment_table(alignment: dict[str, dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    kinds = [kind for kind in ALIGNMENT_KINDS if any(kind in x for x in alignment.values())]
    what = {"aoh": "best head", "aol": "mean of the heads"}
    header = ["model", *(f"{name}, {kind}" for kind in kinds for name in what.values())]
    rows = [
        [name, *(percent(found.get(kind, {}).get(key)) for kind in kinds for key in what)]
        for name, found in alignment.items()
    ]
    return header, rows


def _table(content: tuple[Sequence[str], Iterable[Sequence[object]]], caption: str) -> Part:
    """Return a table, without what is the same in all tables of a report."""
    header, rows = content
    kept = [number for number, name in enumerate(header) if name not in ("subset", "of")]
    header, *rows = ([row[number] for number in kept] for row in (header, *rows))
    return {"caption": caption, "header": header, "rows": rows}


def _note(text: str) -> Part:
    return {"note": text}


def _note_on(names: Sequence[str], what: str) -> list[Part]:
    return [_note(f"{what}: {', '.join(names)}.")] if names else []


def _missing(models: Models, key: str, what: str) -> list[Part]:
    """Return a note for the models that lack something, and what would make it."""
    lacking = [model for model in models if not model[key]]
    hints = dict.fromkeys(hint for model in lacking for hint in model["missing"][key])
    names = _note_on([model["name"] for model in lacking], what)
    return [{**note, "hints": list(hints)} for note in names]


def _figures(
    prefix: str, pictures: Iterable[tuple[Optional[Figure], str]], wide: bool = False
) -> list[Part]:
    """Return the figures with their captions, but for those in which nothing changes."""
    drawn, flat = [], []
    for number, (figure, caption) in enumerate(pictures):
        if figure is not None and all(map(is_flat, figure.axes)):
            flat.append(caption)
        elif figure is not None:
            svg = inline_svg(figure, f"{prefix}-{number}", caption)
            drawn.append({"svg": svg, "caption": caption})
    parts = [{"figures": drawn, "wide": wide}] if drawn else []
    return parts + _note_on(flat, "Not drawn, because nothing in it changes")

"""The parts of the report that need no script: tables and figures, as HTML.

All text from files and options is escaped here.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any, Optional

from fairseq_sparse.measure.alignment import ALIGNMENT_KINDS
from fairseq_sparse.measure.run_folders import Run
from fairseq_sparse.measure.training_log import threshold_curve
from fairseq_sparse.plots import attention_curves, output_plots
from fairseq_sparse.plots.pictures import colours_of
from fairseq_sparse.report import figures
from fairseq_sparse.tables.columns import (
    COLUMNS,
    SPEEDS,
    cell,
    columns_of,
    conditions,
    quantity_of,
)
from fairseq_sparse.tables.models import model_of
from fairseq_sparse.tables.output import empty_table, output_table
from fairseq_sparse.tables.published import differences, published_text
from fairseq_sparse.tables.summaries import missing_parts

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Messages about missing parts, and how to make them.
_NO_LOG = "No training log (the recipes keep one; for other trainings, --log)"
_TOO_LONG = "Sentences left out, because they are too long for the model"
_NO_ALIGNMENT = "No alignment error rates, which need gold alignments and the recipes' stage align"


def results_section(runs: Sequence[Run], dataset: str, published: Sequence[dict[str, Any]]) -> str:
    """Show the results of all runs, beside the papers' figures that are measured in the same way.

    All tables of the papers on this data set follow below.
    """
    summaries = [run.summary for run in runs]
    names = [
        name for name in columns_of(summaries) if any(cell(part, name) != "-" for part in summaries)
    ]
    if all(cell(run.summary, "variant") == run.name for run in runs):
        names.remove("variant")
    columns = [("model", [run.name for run in runs])]
    for name in names:
        heading = COLUMNS[name].heading
        columns.append((heading, [cell(part, name) for part in summaries]))
        theirs = [_published_text(dataset, part, name) for part in summaries]
        if any(theirs):
            columns.append((f"{heading} in the paper", [text or "-" for text in theirs]))
    beside = any(heading.endswith(" in the paper") for heading, _ in columns)
    rows = [list(line) for line in zip(*(cells for _, cells in columns), strict=True)]
    parts = [
        *(f"<p>{escape(note)}</p>" for note in _paper_notes(summaries, dataset, names, beside)),
        html_table([heading for heading, _ in columns], rows, "Results on the test set"),
        "<p>Attention: encoder / decoder / cross-attention.</p>" if "null" in names else "",
        _terms(conditions(summaries)),
        _missing(runs),
        *(_paper_table(table) for table in published if _has_data(table, dataset)),
    ]
    return "\n".join(filter(None, parts))


def _published_text(dataset: str, summary: dict[str, Any], column: str) -> Optional[str]:
    if not summary.get("variant") or column in SPEEDS:  # the papers have ratios
        return None
    return published_text(None, dataset, model_of(summary), quantity_of(summary, column))


def _paper_notes(
    summaries: Sequence[dict[str, Any]], dataset: str, names: Sequence[str], beside: bool
) -> list[str]:
    """Return the notes on the papers' figures that precede the results."""
    measures = (quantity_of(part, name) for part in summaries if part for name in names)
    other = differences(None, dataset, measures)
    if beside:
        other.insert(
            0,
            "The papers' figures stand beside ours where data set, split and metric are the same.",
        )
    return other or [f"The papers have no results for {dataset} that are measured in the same way."]


def _has_data(table: dict[str, Any], dataset: str) -> bool:
    return any(column["dataset"] == dataset for column in table["columns"])


def training_section(runs: Sequence[Run]) -> str:
    """Show the statistics of the training logs over the updates."""
    records = {run.name: run.records for run in runs}
    if not any(records.values()):
        return _names_of([run.name for run in runs], _NO_LOG)
    pictures = [
        html_figure(figures.draw_curve(records, name), f"training-{name}", f"Training: {title}")
        for name, (title, _) in figures.CURVES.items()
    ]
    curves = [{"name": name, **threshold_curve(found)} for name, found in records.items()]
    curves = [curve for curve in curves if curve["updates"]]
    threshold = output_plots.draw_training(curves, colours_of(list(records)))
    caption = "Threshold τ and mean norm of the logits (Speeding Up Entmax, Fig. 7)"
    pictures.append(html_figure(threshold, "threshold", caption))
    return (
        "<p>Lines with points: validation set. Thin lines: training "
        "data. fairseq reports cross-entropy in bits, the sparse losses are in nats, and losses "
        "of different criterions cannot be compared.</p>\n"
        + _names_of([name for name, found in records.items() if not found], _NO_LOG)
        + _gallery(pictures)
    )


def output_section(
    rows: Sequence[dict[str, Any]],
    decoded: Sequence[dict[str, Any]],
    empty: Sequence[dict[str, Any]],
) -> str:
    """Show the sparsity of the output, teacher-forced and in beam search.

    Args:
        rows, decoded, empty: the results of these methods of :class:`Measurements`, for all models
            (``rows``: of ``output``).
    """
    support = html_table(*output_table(rows), "Teacher-forced statistics on the references")
    left_out = [f"{row['name']} ({row['left_out']:,})" for row in rows if row["left_out"]]
    support += _names_of(left_out, _TOO_LONG)
    caption = "The empty translation and the best that beam search (beam 5) finds"
    colours = colours_of([row["name"] for row in rows])
    pictures = [
        html_figure(
            output_plots.draw_nonzeros(rows, colours),
            "nonzeros",
            "Support size at a step, teacher-forced (cf. S2S, Table 3, on a validation set)",
        ),
        html_figure(
            output_plots.draw_zeros(decoded, colours),
            "zeros",
            "Share of zeros at the steps of decoding, beam 5 (Speeding Up Entmax, Fig. 5)",
        ),
        html_figure(
            output_plots.draw_sums(decoded, colours),
            "prob-sum",
            "Sum of p at the steps of decoding, beam 5 (Speeding Up Entmax, Fig. 9)",
        ),
    ]
    return "\n".join([support, html_table(*empty_table(empty), caption), _gallery(pictures)])


def attention_section(
    attention: dict[str, dict[str, Any]], alignment: dict[str, dict[str, Any]]
) -> str:
    """Show sparsity, null rates and diversity of the attention, and how well it aligns.

    Args:
        attention: for each model the output of ``fairseq-sparse analyze attention --json``.
        alignment: for the models that have alignments, their entry under "folders" in the output of
            ``fairseq-sparse analyze alignment --json``.
    """
    cells = [
        [name, place, ", ".join(dict.fromkeys(layer["attention"] for layer in part["layers"]))]
        + [f"{100 * part[rate]:.2f}" for rate in ("sparsity", "null")]
        + [_or_dash(part.get("layer_null"), 100)]
        + [_diversity(part)]
        for name, result in attention.items()
        for place, part in result["attention"].items()
    ]
    if not cells:
        return "<p>The models have no attention of a Transformer or an LSTM.</p>"
    header = ["model", "place", "attention", "sparsity rate (%)", "null rate (%)"]
    header += ["null rate of layer attention (%)", "diversity (nats)"]
    kinds = {result.get("subwords", "none") for result in attention.values()}
    units = "between tokens" if kinds == {"none"} else "between words"
    caption = f"Mean over layers and heads, {units}, teacher-forced"
    tables = [html_table(header, cells, caption)]
    if any("diversity_by_exponent" in part for part in _parts(attention)):
        tables.append(
            "<p>Diversity of weights that do not sum to 1: of the softmax of the weights raised to "
            "the exponents 1 / 0.5 / 0.25 / 0.1, as in Table 6 of ReLA; 1 alone for GELU and leaky "
            "ReLU.</p>"
        )
    if alignment:
        tables.append(_alignment_table(alignment))
    tables.append(_names_of([name for name in attention if name not in alignment], _NO_ALIGNMENT))
    with_attention = {name: part for name, part in attention.items() if part["attention"]}
    drawings = [
        (
            "sparsity",
            attention_curves.draw_sparsity,
            with_attention,
            f"Sparsity rate {units}, by layer (ReLA, Fig. 3)",
        ),
        (
            "null-rates",
            attention_curves.draw_null_rates,
            with_attention,
            f"Null rate {units}, by layer, and its spread over the heads (ReLA, Fig. 6)",
        ),
        (
            "diversity",
            attention_curves.draw_diversity,
            attention_curves.with_diversity(with_attention),
            f"Diversity of the heads {units}, by layer (ReLA, Fig. 5)",
        ),
        (
            "alignment",
            attention_curves.draw_alignment_error,
            alignment,
            "Alignment error rate of cross-attention, by layer (ReLA, Fig. 4)",
        ),
    ]
    pictures = [
        html_figure(draw(results), prefix, caption, wide=True)
        for prefix, draw, results, caption in drawings
        if results
    ]
    return "\n".join([*tables, _gallery(pictures, wide=True)])


def _parts(attention: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    return [part for result in attention.values() for part in result["attention"].values()]


def _diversity(part: dict[str, Any]) -> str:
    if "diversity" not in part:  # a single head has none
        return "-"
    values = part.get("diversity_by_exponent", {"": part["diversity"]})
    return " / ".join(f"{value:.2f}" for value in values.values())


def _alignment_table(alignment: dict[str, dict[str, Any]]) -> str:
    """Make a table of error rates of attention, normal and shifted."""
    kinds = [kind for kind in ALIGNMENT_KINDS if any(kind in x for x in alignment.values())]
    header = ["model"]
    header += [f"{what}, {kind}" for kind in kinds for what in ("best head", "mean of the heads")]
    cells = []
    for name, found in alignment.items():
        rates = [found.get(kind, {}).get(key) for kind in kinds for key in ("aoh", "aol")]
        cells.append([name, *(_or_dash(rate, 100) for rate in rates)])
    caption = "Alignment error rate of cross-attention (%), mean over the layers"
    return html_table(header, cells, caption)


def html_table(header: Sequence[str], rows: Sequence[Sequence[str]], caption: str) -> str:
    """Return a table whose first column names the rows; it scrolls where the page is too narrow."""
    head = "".join(f'<th scope="col">{escape(text)}</th>' for text in header)
    lines = [
        f'<tr><th scope="row">{escape(first)}</th>'
        + "".join(f"<td>{escape(text)}</td>" for text in rest)
        + "</tr>"
        for first, *rest in rows
    ]
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}">\n'
        f"<table><caption>{escape(caption)}</caption>\n<thead><tr>{head}</tr></thead>\n<tbody>\n"
        + "\n".join(lines)
        + "\n</tbody></table></div>"
    )


def html_figure(figure: Optional[Figure], prefix: str, caption: str, wide: bool = False) -> str:
    """Return a figure with its caption, scrollable if wide; an empty text for None."""
    if figure is None:
        return ""
    text = escape(caption)
    svg = figures.inline_svg(figure, prefix, text)
    if wide:
        svg = f'<div class="scroll" tabindex="0" role="region" aria-label="{text}">{svg}</div>'
    return f"<figure>{svg}\n<figcaption>{text}</figcaption></figure>"


def _paper_table(table: dict[str, Any]) -> str:
    """Return a paper's table with the figures as printed."""
    header = ["", *(column["heading"] for column in table["columns"])]
    rows = [[row["name"], *(text or "-" for text in row["figures"])] for row in table["rows"]]
    content = html_table(header, rows, f"{table['table']} of the paper: {table['title']}")
    return f'<div class="published">{content}\n<p>{escape(table["paper"])}.</p></div>'


def _terms(pairs: Sequence[tuple[str, str]]) -> str:
    items = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in pairs)
    return f"<dl>{items}</dl>" if items else ""


def _missing(runs: Sequence[Run]) -> str:
    """Return a paragraph for each part of the results that some runs lack, and what makes it."""
    messages = missing_parts([{**run.summary, "run": run.name} for run in runs])
    return "\n".join(f"<p>{escape(message)}</p>" for message in messages)


def _names_of(names: Sequence[str], what: str) -> str:
    """Return a paragraph that says what the named models lack; empty without names."""
    return f"<p>{escape(what)}: {escape(', '.join(names))}.</p>" if names else ""


def _gallery(pictures: Sequence[str], wide: bool = False) -> str:
    kind = "gallery wide" if wide else "gallery"
    return f'<div class="{kind}">\n' + "\n".join(filter(None, pictures)) + "\n</div>"


def _or_dash(value: Optional[float], scale: float = 1) -> str:
    return "-" if value is None else f"{scale * value:.2f}"

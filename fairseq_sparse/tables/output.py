"""Tables of the output: support, certified search, empty translations, thresholds in training."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Context
from typing import Any, Optional

from fairseq_sparse.measure.cache import BEAM
from fairseq_sparse.measure.text.word_frequency import bucket_label

Table = tuple[list[str], list[list[object]]]

_MODEL = ["model", "output", "subset"]


def output_table(rows: Sequence[dict[str, Any]]) -> Table:
    """Return the header and the rows for statistics of steps, as of ``Measurements.output``."""
    header = [*_MODEL, "of", "steps", "nonzeros per step", "5 / 50 / 95 %"]
    header += ["zeros (%)", "gold at p=0 (%)", "Σp (sd)", "attended per step"]
    lines = []
    for row in rows:
        nonzeros, sums = row["nonzeros"], row["prob_sum"]
        quantiles = " / ".join(f"{nonzeros['quantiles'][q]:,}" for q in ("0.05", "0.5", "0.95"))
        lines.append(
            [*_model(row), row["of"], f"{row['steps']:,}"]
            + [f"{nonzeros['mean']:,.1f} of {row['vocabulary']:,}", quantiles]
            + [percent(row["zeros"]), percent(row["gold_zero"])]
            + [f"{sums['mean']:.3f} ({sums['sd']:.3f})", _number(row["attended"])]
        )
    return header, lines


def gold_table(rows: Sequence[dict[str, Any]]) -> Table:
    """Return the header and the rows for ``Measurements.gold``, a row for each frequency class."""
    header = [*_MODEL, "frequency in training", "words", "tokens", "gold first (%)"]
    header += [f"among the first {BEAM} (%)", "mean rank", "median", "gold at p=0 (%)"]
    header += ["words with one (%)", "nonzeros per step"]
    lines = []
    for row in rows:
        for part in [*row["classes"], row["all"]]:
            whole = part is row["all"]
            label = "all" if whole else bucket_label(part["least"], part["most"])
            lines.append(
                [*_model(row), label, f"{part['words']:,}", f"{part['tokens']:,}"]
                + [percent(part["first"]), percent(part["in_beam"])]
                + [_number(part["mean_rank"]), _whole(part["median_rank"])]
                + [percent(part["zero"]), percent(part["words_zero"])]
                + [_number(part["nonzeros"])]
            )
    return header, lines


def _parameter(row: dict[str, Any], value: Optional[float]) -> str:
    """Format a limit so that the one that is printed covers no less; temperatures are rounded up
    already."""
    if value is None:
        return "-"
    if row["sets"] == "temperature":
        return f"{value:.4f}"
    safe = ROUND_CEILING if row["sets"] == "top-p" else ROUND_FLOOR
    return f"{Context(prec=5, rounding=safe).create_decimal_from_float(value):g}"


def calibration_table(rows: Sequence[dict[str, Any]]) -> Table:
    """Return the header and the rows for sets of equal coverage, as of ``calibrate``."""
    header = [*_MODEL, "wanted (%)", "sets", "parameter", "gold covered (%)", "tokens per set"]
    lines = [
        [*_model(row), f"{100 * row['wanted']:g}", row["sets"], _parameter(row, row["parameter"])]
        + [percent(row["covered"]), f"{row['size']:,.1f}"]
        for row in rows
    ]
    return header, lines


def class_table(rows: Sequence[dict[str, Any]]) -> Table:
    """Return the header and the rows for the temperature that each frequency class needs."""
    header = [*_MODEL, "wanted (%)", "frequency in training", "tokens of validation"]
    header += ["temperature needed", "gold covered by the temperature above (%)"]
    lines = [
        [*_model(row), f"{100 * row['wanted']:g}", bucket_label(part["least"], part["most"])]
        + [f"{part['tokens']:,}", _parameter(row, part["parameter"]), percent(part["covered"])]
        for row in rows
        if row["sets"] == "temperature"
        for part in row["by_class"]
    ]
    return header, lines


def certified_table(rows: Sequence[dict[str, Any]]) -> Table:
    """Return the header and the rows for ``Measurements.certified`` with the same beams."""
    beams = list(rows[0]["beams"])
    header = [*_MODEL, *(f"exact, beam {beam} (%)" for beam in beams), "one hypothesis only (%)"]
    lines = []
    for row in rows:
        # From the widest beam, which can follow more prefixes until they prove to be dead ends.
        single = row["beams"][max(beams, key=int)]["single"]
        shares = [*(row["beams"][beam]["exact"] for beam in beams), single]
        lines.append([*_model(row), *map(percent, shares)])
    return header, lines


def empty_table(rows: Sequence[dict[str, Any]]) -> Table:
    """Return the header and the rows for ``Measurements.empty``."""
    header = [*_MODEL, "sentences", "scores", "p(empty) > p(best) (%)", "p(empty) = 0 (%)"]
    header += ["mean log p(empty) where p > 0", "mean log p(best) where p > 0"]
    lines = [
        [*_model(row), f"{row['sentences']:,}", row["scores"]]
        + [percent(row["empty_is_best"]), percent(row["empty_is_impossible"])]
        + [_number(row["log_p_empty"]), _number(row["log_p_found"])]
        for row in rows
    ]
    return header, lines


def training_table(curves: Sequence[dict[str, Any]]) -> Table:
    """Return the header and the rows for first and last values of ``threshold_curve``."""

    def ends(values: Sequence[Optional[float]], digits: int) -> str:
        known = [value for value in values if value is not None]
        return f"{known[0]:.{digits}f} to {known[-1]:.{digits}f}" if known else "-"

    lines = [
        [curve["name"], f"{curve['updates'][0]} to {curve['updates'][-1]}"]
        + [ends(curve["tau"], 3), ends(curve["logit_norm"], 1)]
        for curve in curves
    ]
    return ["model", "updates", "τ", "norm of the logits"], lines


def _model(row: dict[str, Any]) -> list[object]:
    return [row["name"], row["output"], row["subset"]]


def _number(value: Optional[float]) -> str:
    return "-" if value is None else f"{value:.2f}"


def _whole(value: Optional[int]) -> str:
    return "-" if value is None else f"{value:,}"


def percent(share: Optional[float]) -> str:
    """Format a share as a percentage, or a dash if it is not known."""
    return "-" if share is None else f"{100 * share:.2f}"

"""Tables as text: Markdown as laid out, LaTeX and TSV in which no cell is a command."""

import re

import hypothesis.strategies as st
from hypothesis import given

from fairseq_sparse.tables.formats import format_table


def test_cells_are_padded_and_left_as_they_are():
    table = format_table(["model", "p"], [["α-ReLU", 0.5], ["1e5", "1,000"], ["", None]])
    assert table.splitlines() == [
        "| model  | p     |",
        "| ------ | ----- |",
        "| α-ReLU | 0.5   |",
        "| 1e5    | 1,000 |",
        "|        |       |",
    ]


def test_a_long_header_is_as_wide_as_it_is_and_rows_may_be_missing():
    assert format_table(["a header"], []) == "| a header |\n| -------- |"


# Characters with a meaning in LaTeX, unless they are part of an escape.
ACTIVE = re.compile(r"[&%$#_{}~^\\]")


def unescape(text: str) -> str:
    """Return what LaTeX would print for a cell."""
    symbols = {r"\textbackslash{}": "\\", r"\textasciitilde{}": "~", r"\textbar{}": "|"}
    symbols |= {r"\^{}": "^", "$<$": "<", "$>$": ">", r"$\pm$": "±"}
    symbols |= {r"$\Sigma$": "Σ", r"$\alpha$": "α", r"$\tau$": "τ"}
    symbols |= {"\\" + character: character for character in "{}&%$#_"}
    pattern = "|".join(map(re.escape, sorted(symbols, key=len, reverse=True)))
    left = re.sub(pattern, "", text)
    assert not ACTIVE.search(left), left
    return re.sub(pattern, lambda match: symbols[match[0]], text)


def cell_of(text: str) -> str:
    """Return a cell of a LaTeX table."""
    table = format_table([""], [[text]], "latex")
    return table.partition("\\midrule\n")[2].rpartition("\\\\\n\\bottomrule")[0].strip(" ")


@given(st.text(alphabet="ab 1.|&%$#_{}~^\\<>±Σατü", max_size=12))
def test_text_is_printed_as_it_stands(text: str) -> None:
    assert unescape(cell_of(text)).strip(" ") == text.strip(" ")


def test_a_table_has_its_rules_cells_and_notes() -> None:
    rows = [["a_b", "1.00 ± 0.50", "50%"], ["c & d", "-", "{x}"]]
    text = format_table(["", "BLEU", "Σp"], rows, "latex", "100% of it", ["α_1", "second"])
    lines = [re.sub(r" +", " ", line.strip()) for line in text.splitlines()]
    assert lines[0] == r"\begin{table}" and lines[-1] == r"\end{table}"
    assert r"\caption{100\% of it}" in lines and r"\begin{tabular}{lrr}" in lines
    inside = lines[lines.index(r"\toprule") : lines.index(r"\bottomrule") + 1]
    assert inside == [
        r"\toprule",
        r"& BLEU & $\Sigma$p \\",
        r"\midrule",
        r"a\_b & 1.00 $\pm$ 0.50 & 50\% \\",
        r"c \& d & - & \{x\} \\",
        r"\bottomrule",
    ]
    assert r"$\alpha$\_1\par" in lines and r"second\par" in lines
    assert text.count("{") - text.count(r"\{") == text.count("}") - text.count(r"\}")


def test_a_bar_is_no_end_of_a_cell_in_any_row() -> None:
    lines = format_table(["a|b", "c"], [["1|2", "3"]]).splitlines()
    assert [len(re.findall(r"(?<!\\)\|", line)) for line in lines] == [3, 3, 3]


def test_values_are_tab_separated() -> None:
    header, rows = ["model", "p"], [["α-ReLU", 0.5], ["", None]]
    assert format_table(header, rows, "tsv") == "model\tp\nα-ReLU\t0.5\n\t"

"""Tables in LaTeX: nothing in a cell is taken for a command."""

import re

import hypothesis.strategies as st
from hypothesis import given

from fairseq_sparse.tables.latex import escape, latex_table

# Characters with a meaning in LaTeX, unless they are part of an escape.
ACTIVE = re.compile(r"[&%$#_{}~^\\]")


def unescape(text: str) -> str:
    """Return what LaTeX would print for text returned by ``escape``."""
    symbols = {r"\textbackslash{}": "\\", r"\textasciitilde{}": "~", r"\textbar{}": "|"}
    symbols |= {r"\textasciicircum{}": "^", "$<$": "<", "$>$": ">", r"$\pm$": "±"}
    symbols |= {r"$\Sigma$": "Σ", r"$\alpha$": "α", r"$\tau$": "τ"}
    symbols |= {"\\" + character: character for character in "{}&%$#_"}
    pattern = "|".join(map(re.escape, sorted(symbols, key=len, reverse=True)))
    left = re.sub(pattern, "", text)
    assert not ACTIVE.search(left), left
    return re.sub(pattern, lambda match: symbols[match[0]], text)


@given(st.text(alphabet="ab 1.|&%$#_{}~^\\<>±Σατü", max_size=12))
def test_text_is_printed_as_it_stands(text: str) -> None:
    assert unescape(escape(text)) == text


def test_a_table_has_its_rules_cells_and_notes() -> None:
    rows = [["a_b", "1.00 ± 0.50", "50%"], ["c & d", "-", "{x}"]]
    text = latex_table(["", "BLEU", "Σp"], rows, "100% of it", ["α_1", "second"])
    lines = [line.strip() for line in text.splitlines()]
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

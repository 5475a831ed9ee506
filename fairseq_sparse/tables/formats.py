"""Tables as Markdown, tab-separated values or LaTeX, and pages of them, also as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tabulate import LATEX_ESCAPE_RULES, SEPARATING_LINE, DataRow, Line, TableFormat, tabulate

from fairseq_sparse.files import write_json, write_text

PACKAGES = "% needs \\usepackage{booktabs}"

_ROW = DataRow("| ", " | ", " |")
# Each cell with one space around it, and dashes below the header.
_MARKDOWN = TableFormat(
    lineabove=None,
    linebelowheader=Line("| ", "-", " | ", " |"),
    linebetweenrows=None,
    linebelow=None,
    headerrow=_ROW,
    datarow=_ROW,
    padding=0,
    with_header_hide=None,
)
# Characters that LaTeX takes for commands, or that its usual fonts lack.
_LATEX = str.maketrans(
    {
        **LATEX_ESCAPE_RULES,
        "|": r"\textbar{}",
        "<": r"$<$",
        ">": r"$>$",
        "±": r"$\pm$",
        "×": r"$\times$",
        "−": r"$-$",
        "Σ": r"$\Sigma$",
        "α": r"$\alpha$",
        "ε": r"$\varepsilon$",
        "κ": r"$\kappa$",
        "τ": r"$\tau$",
    }
)


def format_table(
    header: Sequence[str],
    rows: Sequence[Sequence[object]],
    style: str = "md",
    caption: str = "",
    notes: Sequence[str] = (),
) -> str:
    """Return a table as text.

    Args:
        style: ``md``, ``tsv`` or ``latex``.
        caption: the text above a LaTeX table, which then floats.
        notes: the paragraphs below a LaTeX table with a caption.
    """
    cells = [["" if cell is None else str(cell) for cell in row] for row in rows]
    if style == "tsv":
        return "\n".join("\t".join(row) for row in [header, *cells])
    if style == "latex":
        return _latex(header, cells, caption, notes)
    # The header goes in as a row: tabulate would make its columns wider than necessary.
    titles, *cells = ([cell.replace("|", r"\|") for cell in row] for row in (header, *cells))
    return tabulate([titles, SEPARATING_LINE, *cells], tablefmt=_MARKDOWN, disable_numparse=True)


def _latex(
    header: Sequence[str], cells: Sequence[Sequence[str]], caption: str, notes: Sequence[str]
) -> str:
    # tabulate's own escapes lack Greek letters, and would escape ours.
    escaped = [[cell.translate(_LATEX) for cell in row] for row in [header, *cells]]
    columns = "l" + "r" * (len(header) - 1)
    row = DataRow("", " & ", r" \\")
    booktabs = TableFormat(
        lineabove=Line(f"\\begin{{tabular}}{{{columns}}}\n\\toprule", "", "", ""),
        linebelowheader=Line(r"\midrule", "", "", ""),
        linebetweenrows=None,
        linebelow=Line("\\bottomrule\n\\end{tabular}", "", "", ""),
        headerrow=row,
        datarow=row,
        padding=0,
        with_header_hide=None,
    )
    table = tabulate(escaped[1:], escaped[0], tablefmt=booktabs, disable_numparse=True)
    if not caption:
        return table
    lines = [r"\begin{table}", r"\centering", rf"\caption{{{caption.translate(_LATEX)}}}", table]
    if notes:
        lines.append(r"\par\medskip\footnotesize")
        lines += [note.translate(_LATEX) + r"\par" for note in notes]
    return "\n".join([*lines, r"\end{table}"])


class Part(NamedTuple):
    """A table of a page: its title, which may be empty, header, rows, and the notes below it."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[object]]
    notes: Sequence[str] = ()


@dataclass
class Page:
    """Tables with a common title, and all numbers behind them."""

    title: str
    parts: list[Part]
    numbers: dict[str, Any]

    def text(self, style: str = "md") -> str:
        """Return the page as ``md``, ``tsv``, ``latex``, or ``json``: the numbers alone."""
        if style == "json":
            return json.dumps(self.numbers, ensure_ascii=False, indent=1) + "\n"
        blocks = {"md": [f"# {self.title}"], "latex": [PACKAGES], "tsv": []}[style]
        for title, *table, notes in self.parts:
            if style == "latex":
                caption = "; ".join(filter(None, (self.title, title)))
                blocks.append(format_table(*table, style, caption, notes))
                continue
            blocks += [f"## {title}"] if title else []
            blocks.append(format_table(*table, style))
            if style == "md" and notes:
                blocks.append("\n".join(f"- {note}" for note in notes))
        return "\n\n".join(blocks) + "\n"

    def write(self, stem: Path) -> None:
        """Write STEM.md, STEM.tex (which needs booktabs) and STEM.json."""
        stem.parent.mkdir(parents=True, exist_ok=True)
        for suffix, style in ((".md", "md"), (".tex", "latex")):
            write_text(stem.with_name(stem.name + suffix), self.text(style))
        write_json(stem.with_name(f"{stem.name}.json"), self.numbers)

"""Tables for a paper, in LaTeX with booktabs."""

from collections.abc import Sequence

PACKAGES = "% needs \\usepackage{booktabs}"
# Characters that LaTeX takes for commands, or that its usual fonts lack.
_SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "|": r"\textbar{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"$<$",
    ">": r"$>$",
    "±": r"$\pm$",
    "×": r"$\times$",
    "−": r"$-$",
    "Σ": r"$\Sigma$",
    "α": r"$\alpha$",
    "τ": r"$\tau$",
}


def escape(text: str) -> str:
    """Return text that LaTeX prints as it stands."""
    return "".join(_SPECIAL.get(character, character) for character in text)


def latex_table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    caption: str,
    notes: Sequence[str] = (),
) -> str:
    """Return a floating table; its first column is flush left, the others flush right.

    Args:
        header: the headings of the columns.
        rows: the cells of each row, as many as headings.
        caption: the text above the table.
        notes: the paragraphs below the table.
    """

    def line(cells: Sequence[str]) -> str:
        return f"    {' & '.join(map(escape, cells))} \\\\"

    parts = [r"\begin{table}", r"  \centering", f"  \\caption{{{escape(caption)}}}"]
    parts += [f"  \\begin{{tabular}}{{l{'r' * (len(header) - 1)}}}", r"    \toprule", line(header)]
    parts += [r"    \midrule", *map(line, rows), r"    \bottomrule", r"  \end{tabular}"]
    if notes:
        parts.append(r"  \par\medskip\footnotesize")
        parts += [f"  {escape(note)}\\par" for note in notes]
    return "\n".join([*parts, r"\end{table}"])

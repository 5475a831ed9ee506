#!/usr/bin/env python3
"""Make tables and a picture from the finished runs of examples/sweep.sh.

Writes sweep.md, sweep.json and, if matplotlib is installed, sweep.png and sweep.svg into the
sweep's folder, and prints the tables. The picture has the validation accuracy by one alpha, the
other fixed at 1.5.
"""

from __future__ import annotations

import sys
from pathlib import Path

from command_line import exit_status, report_errors, script_parser, write_text


def summarize(folder: Path) -> str:
    """Write the files, and return the text of sweep.md."""
    from fairseq_sparse.analysis.pictures import MISSING, require_matplotlib, save_png_and_svg
    from fairseq_sparse.analysis.runs import alpha_grid
    from fairseq_sparse.analysis.runs.columns import conditions
    from fairseq_sparse.analysis.runs.curves import draw_alphas
    from fairseq_sparse.analysis.runs.rows import read_sweep
    from fairseq_sparse.errors import AnalysisError
    from fairseq_sparse.files import write_json

    rows = read_sweep(folder)
    content = alpha_grid.as_json(rows)
    parts = [f"# {content['dataset']}: alphas of output and attention"]
    parts += [f"{title}\n\n{table}" for title, table in alpha_grid.tables(rows)]
    summaries = [summary for row in rows for summary in row.summaries.values()]
    parts += [f"{label}: {value}" for label, value in conditions(summaries)]
    text = "\n\n".join(parts) + "\n"
    write_text(folder / "sweep.md", text)
    write_json(folder / "sweep.json", content)
    try:
        require_matplotlib()
    except AnalysisError:
        print(f"summarize_sweep: no picture, {MISSING}", file=sys.stderr)
        return text
    try:
        save_png_and_svg(draw_alphas(rows), folder, "sweep")
    except AnalysisError as error:
        print(f"summarize_sweep: no picture, {error}", file=sys.stderr)
    return text


def main(argv: list[str] | None = None) -> int:
    parser = script_parser(__doc__)
    parser.add_argument("folder", type=Path, metavar="SWEEP_DIR")
    folder = parser.parse_args(argv).folder
    return report_errors("summarize_sweep", lambda: print(summarize(folder), end=""))


if __name__ == "__main__":
    sys.exit(exit_status(main, quiet=["matplotlib"]))

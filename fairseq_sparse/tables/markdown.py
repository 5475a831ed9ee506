"""Tables in Markdown."""

from collections.abc import Sequence

from tabulate import SEPARATING_LINE, DataRow, Line, TableFormat, tabulate

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


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a table, padded so that its source is readable."""
    # The header goes in as a row: tabulate would make its columns wider than necessary.
    lines = [header, SEPARATING_LINE, *rows]
    return tabulate(lines, tablefmt=_MARKDOWN, disable_numparse=True)

"""Sheets on which people judge translations without knowing whose they are.

They follow Tezekbayev, Nikoulina, Gallé, Assylbekov 2022, "Speeding Up Entmax", Tables 4 and 6: two
annotators score 135 random test sentences each, 45 of them the same for both; several systems and
the reference are the candidates, in random order. They judge how much of the meaning is kept, on
the paper's scale from 4 to 1 with + and -, and leave empty what they cannot judge. The wording of
the scale, the instructions and the examples are our own.

A sheet is a CSV file for spreadsheet programs. Each text is in square brackets, so that no program
takes it for a formula, a date or a number, and an empty translation is visible.
"""

import csv
import io
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple, Optional

from fairseq_sparse.errors import AnalysisError

ANNOTATORS = ("annotator_1", "annotator_2")
REFERENCE = "reference"
SCALE = {
    4: "all of the meaning is there",
    3: "most of the meaning is there",
    2: "little of the meaning is there",
    1: "nothing of the meaning is there, or the translation is empty",
}
# As in Table 6 of the paper, but with other sentences: a translation and its grade.
_EXAMPLE = "The train to the coast was very late, and nobody told us why."
_EXAMPLES = (
    ("The train to the coast was very late, and nobody told us why.", "4"),
    ("The train to the coast was very late, and nobody told us why..", "4"),
    ("Train to coast very late; not told why", "4"),
    ("The train to the coast was late, and nobody told us why.", "4-"),
    ("Train to coast late; not told why", "4-"),
    ("Nobody told us why the train came.", "2+"),
    ("There was a train.", "2"),
    ("Good morning, everybody!", "1"),
    ("The train to the coast was early.", "1"),
    ("The train to the coast was early, and we were told why.", "1-"),
)
COLUMNS = ("id", "source", "translation", "score", "comment")
SEPARATORS = {"comma": ",", "semicolon": ";", "tab": "\t"}
# No vowels: an id is never a word, the name of a month, or a number.
_LETTERS = "bcdfghjkmnpqrstvwxz"
_ID_LENGTH = 6


class Judgement(NamedTuple):
    """A grade of ``SCALE``, and -1, 0 or 1 for a minus, nothing or a plus behind it."""

    grade: int
    mark: int = 0


class SheetError(AnalysisError):
    """Error in making or reading sheets; the message names the place."""


@dataclass(frozen=True)
class Row:
    """A translation to be judged, with the data that its sheet does not show.

    ``systems`` are all systems with this translation: the same words are judged once, and count for
    each of them. ``sentence`` counts from 1.
    """

    id: str
    sentence: int
    systems: tuple[str, ...]
    source: str
    translation: str


Sheets = dict[str, list[Row]]  # annotator -> rows


def draw_sheets(
    source: Sequence[str],
    candidates: Mapping[str, Sequence[str]],
    sentences: int,
    shared: int,
    seed: int,
) -> Sheets:
    """Choose sentences at random, and shuffle them and the candidates of each.

    The translations of a sentence stay together. The names of the systems have no influence.

    Args:
        candidates: the translations of each system, and of :data:`REFERENCE`.
        sentences: number of sentences for each annotator.
        shared: number of these that both get.

    Raises:
        SheetError: the test set is too small, or a system has another number of translations.
    """
    for system, translations in candidates.items():
        if len(translations) != len(source):
            raise SheetError(
                f"{system} has {len(translations)} lines, but there are {len(source)} sources"
            )
    if shared > sentences:
        raise SheetError(f"{shared} shared sentences are more than the {sentences} of an annotator")
    own = sentences - shared
    if shared + 2 * own > len(source):
        raise SheetError(
            f"the test set has {len(source)} sentences: too few for {shared} shared ones and {own} "
            "more for each annotator"
        )
    draw = random.Random(seed)
    chosen = draw.sample(range(len(source)), shared + 2 * own)
    used: set[str] = set()
    sheets: Sheets = {}
    for number, annotator in enumerate(ANNOTATORS):
        first = shared + number * own
        rows = []
        for index in draw.sample(chosen[:shared] + chosen[first : first + own], sentences):
            whose: dict[str, list[str]] = {}
            for system, translations in candidates.items():
                whose.setdefault(translations[index], []).append(system)
            for translation in draw.sample(list(whose), len(whose)):
                systems = tuple(whose[translation])
                row_id = new_id(draw, used)
                rows.append(Row(row_id, index + 1, systems, source[index], translation))
        sheets[annotator] = rows
    return sheets


def sheet(rows: Sequence[Row], separator: str = ",") -> str:
    """Return the CSV file for an annotator, who fills in the scores. Write it as UTF-8 with a
    BOM."""
    return as_csv(COLUMNS, [(row.id, row.source, row.translation) for row in rows], separator)


def as_csv(columns: Sequence[str], rows: Sequence[tuple[str, str, str]], separator: str) -> str:
    """Return a sheet with an id and two texts in each row, and two empty cells to fill in."""
    text = io.StringIO()
    writer = csv.writer(text, delimiter=separator, quoting=csv.QUOTE_ALL, lineterminator="\r\n")
    writer.writerow(columns)
    writer.writerows((name, f"[{first}]", f"[{second}]", "", "") for name, first, second in rows)
    return text.getvalue()


def instructions() -> str:
    """Return the instructions for the annotators."""
    scale = "\n".join(f"  {score}  {meaning}" for score, meaning in SCALE.items())
    examples = "\n".join(f"  {score:<2}  {text}" for text, score in _EXAMPLES)
    return f"""How to judge the translations

Each row of the sheet has a source sentence and one translation of it. Several translations of a
sentence follow each other, in random order. They may be by people or by programs; please do not try
to find out which, and do not talk about them with the other annotator before both have finished.

Read the source, then the translation, and rate in the column "score" how much of the meaning is
kept:

{scale}

You may put a + or a - behind the number, for a little more or less. For example, if the source said

  {_EXAMPLE}

then these translations would get

{examples}

- Judge each translation by itself against the source: two may get the same score.
- Judge the meaning alone: spelling, grammar, punctuation and style do not count.
- The square brackets around a text do not belong to it; [] is a translation without a word.
- If you cannot say, leave the score empty. "comment" is for notes, if you like.
- Change nothing but the scores and comments. You may sort the rows, but delete none.
- Save the sheet as CSV in UTF-8 ("CSV UTF-8" in Excel), under the same name, and send it back.
"""


def to_key(sheets: Sheets) -> dict[str, Any]:
    """Return the key that the experimenter keeps, for :func:`from_key`."""
    return {annotator: [asdict(row) for row in rows] for annotator, rows in sheets.items()}


def from_key(key: Mapping[str, Any], path: Path) -> Sheets:
    """Return the sheets as they were drawn, from the content of the file ``path``."""
    try:
        return {
            annotator: [Row(**{**row, "systems": tuple(row["systems"])}) for row in key[annotator]]
            for annotator in ANNOTATORS
        }
    except (KeyError, TypeError) as error:
        raise SheetError(f"{path} is not the key.json of sheets make") from error


def read_sheet(text: str, sheets: Sheets) -> tuple[str, dict[str, Optional[Judgement]]]:
    """Read the scores on a sheet that came back.

    Returns:
        The annotator, and the score by the row's id; None where it was left empty.

    Raises:
        SheetError: as :func:`read_rows`, or a text was changed, a score is not on the scale, or all
            are empty.
    """
    sent = {name: {row.id: row for row in rows} for name, rows in sheets.items()}
    annotator, found = read_rows(text, COLUMNS, sent)
    scores: dict[str, Optional[Judgement]] = {}
    for row_id, (place, cells) in found.items():
        for column in ("source", "translation"):
            expected = f"[{getattr(sent[annotator][row_id], column)}]"
            if _comparable(cells[column]) != _comparable(expected):
                raise SheetError(
                    f"{place}: the {column} was changed, or not saved as UTF-8: {cells[column]!r}"
                )
        scores[row_id] = _score(cells["score"], place)
    if not any(scores.values()):
        raise SheetError("no row has a score")
    return annotator, scores


def parse_sheet(path: Path, parse: Callable[[str], Any]) -> Any:
    """Return the result of ``parse`` for the text of a file, which error messages name."""
    try:
        return parse(path.read_text("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise SheetError(f"{path} is not in UTF-8; save it as CSV UTF-8") from error
    except SheetError as error:
        raise SheetError(f"{path}: {error}") from error


def new_id(draw: random.Random, used: set[str]) -> str:
    """Return a random id that is not yet used."""
    while True:
        new = "".join(draw.choices(_LETTERS, k=_ID_LENGTH))
        if new not in used:
            used.add(new)
            return new


def _comparable(text: str) -> str:
    """Return a cell with unified line ends, because spreadsheet programs change them."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read_rows(
    text: str, columns: Sequence[str], sent: Mapping[str, Collection[str]]
) -> tuple[str, dict[str, tuple[str, dict[str, str]]]]:
    """Read a sheet that came back, of those that were sent.

    Its rows may be in any order, its separator may have changed, and a spreadsheet program may have
    added empty rows or columns.

    Args:
        columns: their names.
        sent: the ids of the rows of each sheet.

    Returns:
        The name of the sheet, and for each id the row's place in words and its cells.

    Raises:
        SheetError: the text is not CSV with these columns, or a row is missing, duplicate, foreign,
            or of another sheet. The message counts rows as spreadsheet programs do.
    """
    name = ""
    found: dict[str, tuple[str, dict[str, str]]] = {}
    for number, cells in _read_cells(text, columns):
        row_id = cells["id"]
        place = f"row {number} (id {row_id!r})"
        whose = next((each for each, ids in sent.items() if row_id in ids), None)
        if whose is None:
            raise SheetError(f"{place} was not sent")
        if whose != (name := name or whose):
            raise SheetError(f"{place} belongs to {whose}, the rows above do not")
        if row_id in found:
            raise SheetError(f"{place} is there twice")
        found[row_id] = place, cells
    if not found:
        raise SheetError("there are no rows")
    if missing := [row_id for row_id in sent[name] if row_id not in found]:
        raise SheetError(f"{len(missing)} rows are missing, the first of them with id {missing[0]}")
    return name, found


def _read_cells(text: str, columns: Sequence[str]) -> list[tuple[int, dict[str, str]]]:
    """Return the rows that are not empty, with their numbers."""
    try:
        for separator in SEPARATORS.values():
            rows = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
            header = next(rows, [])
            if set(columns) <= set(header):
                return [
                    (number, dict(zip_longest(header, cells, fillvalue="")))
                    for number, cells in enumerate(rows, start=2)
                    if any(cell.strip() for cell in cells)
                ]
    except csv.Error as error:
        raise SheetError(f"not a CSV file: {error}") from error
    raise SheetError(f"row 1 does not name the columns {', '.join(columns)}")


def _score(cell: str, place: str) -> Optional[Judgement]:
    cell = "".join(cell.split()).replace("−", "-")
    if not cell:
        return None
    grade, mark = (cell[:-1], cell[-1]) if cell[-1] in "+-" else (cell, "")
    if grade not in map(str, SCALE):
        raise SheetError(
            f"{place}: {cell!r} is not a score from {min(SCALE)} to {max(SCALE)}, with or without "
            "a + or - behind it"
        )
    return Judgement(int(grade), {"+": 1, "-": -1, "": 0}[mark])

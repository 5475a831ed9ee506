"""Make the sheets on which two annotators judge translations of several systems (SUE, Table 4).

A SYSTEM is a file with one translation per line, the output of fairseq-generate, or the folder of a
recipe's run, whose hyp.detok.txt is read; NAME= before it gives it a name (default: that of the
file or folder). Test sentences are drawn at random, some of them for both annotators. The reference
is one of the candidates, and nothing in a sheet tells which. A translation that several systems
gave is judged once, and counts for each of them. The command writes to the folder

  annotator_1.csv, annotator_2.csv, instructions.txt   for the annotators
  key.json            says which system gave each translation; keep it from the annotators, and
                      give it to sheets score

The same arguments give the same files. Existing files are not overwritten.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from fairseq_sparse.commands.common import add_output_folder, command_parser, find_systems
from fairseq_sparse.commands.values import not_negative, positive, seed
from fairseq_sparse.files import lines_of, replacing

# The sizes of the paper.
SENTENCES, SHARED = 135, 45


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = command_parser("sheets make", __doc__)
    add = parser.add_argument
    add("systems", nargs="+", metavar="[NAME=]SYSTEM", help="file or folder")
    add("--source", required=True, type=Path, metavar="FILE", help="raw source of the test set")
    add("--reference", required=True, type=Path, metavar="FILE", help="raw reference translations")
    text = "sentences per annotator (default: 135, as in the paper)"
    add("--sentences", type=positive, default=SENTENCES, metavar="N", help=text)
    text = "number of these that both judge (default: 45, as in the paper)"
    add("--shared", type=not_negative, default=SHARED, metavar="N", help=text)
    add_sheet_options(parser)
    return parser.parse_args(arguments)


def add_sheet_options(parser: argparse.ArgumentParser) -> None:
    """Add the folder of the sheets, the seed of the random choices, and the separator of cells."""
    add_output_folder(parser)
    parser.add_argument("--seed", type=seed, default=1, help="of the random choices (default: 1)")
    parser.add_argument(
        "--separator",
        choices=("comma", "semicolon", "tab"),
        default="comma",
        help="between cells; give semicolon for annotators who use Excel in a language that writes "
        "0,5 for 0.5 (default: comma)",
    )


def write_new(folder: Path, key: dict[str, Any], files: dict[str, bytes]) -> None:
    """Write the key and other files, each whole or not at all, unless one exists with different
    content.

    Raises:
        SheetError: a file exists with different content.
        OSError: a file cannot be written.
    """
    from fairseq_sparse.sheets.annotation_sheets import SheetError

    text = json.dumps(key, indent=2, ensure_ascii=False) + "\n"
    files = {"key.json": text.encode(), **files}
    contents = {folder / name: content for name, content in files.items()}
    for path, content in contents.items():
        if path.exists() and path.read_bytes() != content:
            raise SheetError(
                f"{path} exists with different content; choose another folder, or move this one "
                "away"
            )
    folder.mkdir(parents=True, exist_ok=True)
    for path, content in contents.items():
        with replacing(path, binary=True) as file:
            file.write(content)


def run(options: argparse.Namespace) -> None:
    from fairseq_sparse.measure.text.fairseq_output import check_subwords, read_translations
    from fairseq_sparse.sheets import annotation_sheets

    paths = find_systems(options.systems)
    paths[annotation_sheets.REFERENCE] = options.reference
    texts = {name: read_translations(path) for name, path in paths.items()}
    for name, path in paths.items():
        check_subwords(path, texts[name], texts[annotation_sheets.REFERENCE])
    source = lines_of(options.source)
    sheets = annotation_sheets.draw_sheets(
        source,
        texts,
        options.sentences,
        options.shared,
        options.seed,
    )
    key = {
        "source": str(options.source),
        "systems": {name: str(path) for name, path in paths.items()},
        "sentences": options.sentences,
        "shared": options.shared,
        "seed": options.seed,
        **annotation_sheets.to_key(sheets),
    }
    separator = annotation_sheets.SEPARATORS[options.separator]
    files = {
        f"{annotator}.csv": annotation_sheets.sheet(rows, separator).encode("utf-8-sig")
        for annotator, rows in sheets.items()
    }
    files["instructions.txt"] = annotation_sheets.instructions().encode()
    write_new(options.output_folder, key, files)
    counts = " and ".join(str(len(rows)) for rows in sheets.values())
    folder = options.output_folder
    print(f"wrote sheets with {counts} translations to {folder}; keep key.json to yourself")

#!/usr/bin/env python3
"""Write benchmarks.md and benchmarks.json from the records and the parts in a folder.

The folder is one of run_all.sh or run_gpu.sh: NAME.json has the measurements of the part NAME, and
NAME.status says whether it ended. The page has every target, reached or not, and every table.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

# The imported modules are in scripts/.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmark import check_kernels, harness, targets
from command_line import script_parser
from fairseq_sparse.files import write_json, write_text

TITLE = "benchmarks"
TABLES = {**targets.TABLES, "check_kernels": check_kernels.table}


def read_parts(folder: Path) -> list[dict]:
    """Read name, status and seconds of the parts, oldest status file first."""
    files = sorted(folder.glob("*.status"), key=lambda file: file.stat().st_mtime_ns)
    parts = []
    for file in files:
        status, seconds = file.read_text(encoding="utf-8").splitlines()[:2]
        parts.append({"name": file.stem, "status": status, "seconds": int(seconds)})
    return parts


def read_records(folder: Path, parts: list[dict]) -> dict[str, dict]:
    """Return the records by part; that of a stopped part is incomplete."""
    files = {part["name"]: folder / f"{part['name']}.json" for part in parts}
    return {
        name: json.loads(file.read_text(encoding="utf-8"))
        for name, file in files.items()
        if file.is_file()
    }


def page(
    parts: list[dict], records: dict[str, dict], found: list[targets.Target], dry_run: bool = False
) -> str:
    """Return the Markdown page, which is marked if it is a dry run."""
    from fairseq_sparse.tables.formats import format_table

    reached = sum(target.reached for target in found)
    sections = [
        f"# {TITLE.capitalize()}",
        "Ratios of times in the same run. Time and memory: below 1 is better than the baseline; "
        "speed: above 1.",
        *(["**A dry run at toy sizes: the figures mean nothing.**"] if dry_run else []),
        "## Targets",
        f"{reached} of {len(found)} reached.",
        format_table(targets.HEADER, [target.cells() for target in found]),
        "## Parts",
        format_table(
            ["part", "status", "seconds"],
            [[part["name"], part["status"], part["seconds"]] for part in parts],
        ),
    ]
    for name, content in records.items():
        sections += [f"## {name}", f"`{content['command']}`"]
        results = content["results"]
        sections += [TABLES[content["benchmark"]](results), harness.failures(results)]
        sections.append(harness.conditions(content))
    return "\n\n".join(filter(None, sections)) + "\n"


def main(arguments: list[str] | None = None) -> int:
    parser = script_parser(__doc__)
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--dry-run", action="store_true", help="say that the sizes were toys")
    options = parser.parse_args(arguments)
    folder: Path = options.folder
    try:
        parts = read_parts(folder)
        records = read_records(folder, parts)
        if not parts:
            raise ValueError(f"{folder}: no parts; run run_all.sh or run_gpu.sh first")
        found = targets.targets(records.values())
        text = page(parts, records, found, options.dry_run)
        reached = [{**vars(target), "reached": target.reached} for target in found]
        write_json(
            folder / f"{TITLE}.json", {"targets": reached, "parts": parts, "records": records}
        )
        write_text(folder / f"{TITLE}.md", text)
    except (ValueError, OSError) as error:
        print(f"summarize: error: {harness.one_line(error)}", file=sys.stderr)
        return 1
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Keep the files that others need to check a finished run, without its checkpoints.

Writes into docs/results/runs/DATASET/NAME, where NAME is the name of the run's folder:

    summary.json      all results
    settings.txt      the commit, and the settings of each stage
    training.tsv      each validation, and the hours of training until then
    translations.gz   of the test set, one per line
    translations-long.gz   of the test set of long sentences, if there is one
    guesses/LANG-out.gz    the guessed forms of the test set, in the shared task's format
    samples.txt       the samples of a language model

scripts/update_tables.py makes the tables of the pages from these files.
"""

from __future__ import annotations

import argparse
import gzip
import subprocess
import sys
from pathlib import Path

from command_line import exit_status, replacing, report_errors, script_parser, write_text

ROOT = Path(__file__).resolve().parents[1]
LONG = "translations-long.gz"
# The files in a run's folder, and the names under which they are kept.
TEXTS = {
    "hyp.detok.txt": "translations.gz",
    "hyp-long.detok.txt": LONG,
    "samples.txt": "samples.txt",
}


def texts_of(run: Path) -> dict[Path, str]:
    """Return the texts that a run has produced, with the names under which they are kept."""
    names = {run / name: kept for name, kept in TEXTS.items()}
    names |= {path: f"guesses/{path.name}.gz" for path in (run / "guesses").glob("*-out")}
    return {path: kept for path, kept in names.items() if path.is_file()}


def training_table(records: list) -> str:
    """Return the validations in a training log as tab-separated values, one line for each."""
    from fairseq_sparse.measure.training_log import validation_curve

    curve = validation_curve(records, "epoch")
    hours = dict(zip(curve["updates"], curve["hours"], strict=True))
    # A validation that was repeated after an interruption counts once, by its last record.
    every = {
        found.get("num_updates", found["epoch"]): found for tag, found in records if tag == "valid"
    }
    for found in every.values():
        if hours.get(found.get("num_updates")):
            found["hours"] = round(hours[found["num_updates"]], 4)
    names = list(dict.fromkeys(name for found in every.values() for name in found))
    rows = [
        [f"{found[name]:.10g}" if name in found else "" for name in names]
        for found in every.values()
    ]
    return "".join("\t".join(row) + "\n" for row in [names, *rows])


def publish(run: Path, results: Path, commit: str) -> Path:
    """Copy a run's results into a folder of their own, and return the folder.

    Raises:
        AnalysisError: the run is not finished.
        OSError, ValueError: a file cannot be read.
    """
    from fairseq_sparse.errors import AnalysisError
    from fairseq_sparse.files import read_json, write_json
    from fairseq_sparse.measure.training_log import read_log
    from fairseq_sparse.tables.summaries import read_summary

    texts = texts_of(run)
    summary = read_summary(run)
    if summary is None or set(texts.values()) <= {LONG}:
        raise AnalysisError(f"{run} is not a finished run: it has no summary.json or no texts")
    parts = [f"commit {commit}\ndata set {summary['dataset']}, variant {summary['variant']}"]
    for path in sorted((run / "stages").iterdir()):
        settings = read_json(path)["settings"].items()
        parts.append(
            "\n".join([f"# {path.stem}", *(f"{flag} {value}" for flag, value in settings)])
        )
    training = training_table(read_log(run / "logs" / "train.log"))
    # All is read before anything is written: a folder without its run would enter the tables.
    folder = results / "runs" / summary["dataset"] / run.resolve().name
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "summary.json", summary)
    write_text(folder / "settings.txt", "\n\n".join(parts) + "\n")
    write_text(folder / "training.tsv", training)
    for path, kept in texts.items():
        content = path.read_bytes()
        if kept.endswith(".gz"):
            content = gzip.compress(content, mtime=0)  # the same bytes each time
        (folder / kept).parent.mkdir(exist_ok=True)
        with replacing(folder / kept, binary=True) as file:
            file.write(content)
    return folder


def parse_arguments() -> argparse.Namespace:
    parser = script_parser(__doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN_DIR")
    parser.add_argument(
        "--commit", help="with which the run was trained (default: the one checked out)"
    )
    parser.add_argument("--results", type=Path, default=ROOT / "docs" / "results")
    return parser.parse_args()


def publish_all(options: argparse.Namespace) -> None:
    command = ["git", "rev-parse", "--short=10", "HEAD"]
    try:
        commit = options.commit or subprocess.check_output(command, cwd=ROOT, text=True).strip()
    except subprocess.CalledProcessError as error:
        raise ValueError(f"give --commit: {error}") from error
    for run in options.runs:
        print(publish(run, options.results, commit))


def main() -> int:
    return report_errors("publish_run", publish_all, parse_arguments())


if __name__ == "__main__":
    sys.exit(exit_status(main))

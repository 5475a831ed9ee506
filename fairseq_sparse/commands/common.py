"""Shared parts of all commands: options, their checks, messages and progress bars.

This module imports nothing heavy, so that ``--help`` and commands that only read text are quick.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fairseq_sparse.commands.values import PICTURES, output_file, picture_file, positive
from fairseq_sparse.errors import AnalysisError, CheckpointError, RecipeError, in_words
from fairseq_sparse.measure.text import TRIALS

FORMATS = ("md", "tsv", "latex", "json")
# Header and rows of a table.
Table = tuple[Sequence[str], Sequence[Sequence[object]]]
# The translations in the folder of a recipe's run.
HYPOTHESES = "hyp.detok.txt"
METRICS = ("bleu", "chrf", "ter")
# sacreBLEU's own default.
TOKENIZE = "13a"


def add_logs(parser: argparse.ArgumentParser) -> None:
    """Add --log, the training logs of the runs; see :func:`check_logs`."""
    parser.add_argument(
        "--log",
        nargs="+",
        type=Path,
        default=[],
        metavar="FILE",
        help="output of fairseq-train, or its --log-file, for each RUN in order (default: "
        "RUN/logs/train.log, where the recipes put it, or RUN/train.log)",
    )


def check_logs(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    if options.log and len(options.log) != len(options.runs):
        runs, logs = len(options.runs), len(options.log)
        parser.error(f"--log: {runs} runs, but {logs} logs: give one for each")


def add_format(parser: argparse.ArgumentParser) -> None:
    """Add --format, the form in which a command prints its tables; see :func:`print_tables`."""
    parser.add_argument(
        "--format",
        choices=FORMATS,
        default="md",
        help="how tables are printed; json: all numbers, as in --json (default: md)",
    )


def print_tables(
    tables: Sequence[Table], numbers: Any, options: argparse.Namespace, notes: Sequence[str] = ()
) -> None:
    """Print the tables of a result, or all its numbers, and write these into the file of --json.

    Args:
        tables: header and rows of each.
        numbers: the whole result, for JSON.
        options: has --format, and perhaps --json.
        notes: paragraphs below the tables; on stderr, if these are not in Markdown.
    """
    import json

    from fairseq_sparse.files import write_json
    from fairseq_sparse.tables.formats import format_table

    if getattr(options, "json", None):
        write_json(options.json, numbers)
    if options.format == "json":
        print(json.dumps(numbers, ensure_ascii=False, indent=1))
    else:
        parts = [format_table(header, rows, options.format) for header, rows in tables]
        is_markdown = options.format == "md"
        print("\n\n".join([*parts, *(notes if is_markdown else [])]))
        if notes and not is_markdown:
            print(*notes, sep="\n\n", file=sys.stderr)


def add_plots(parser: argparse.ArgumentParser) -> None:
    """Add --plots, a picture's file name; several pictures put their own names before its
    ending."""
    parser.add_argument(
        "--plots",
        type=picture_file,
        metavar="FILE",
        help=f"draw pictures ({', '.join(PICTURES)}); each inserts its own name before the ending",
    )


class _Once(argparse.Action):
    """Store each of several words once."""

    def __call__(self, parser, namespace, values, option_string=None) -> None:
        setattr(namespace, self.dest, list(dict.fromkeys(values)))


def add_scoring(parser: argparse.ArgumentParser, required: bool = True) -> None:
    """Add the references, and how sacreBLEU scores and compares translations."""
    add = parser.add_argument
    text = "raw text, one per line; several files are several references"
    add("--reference", nargs="+", type=Path, required=required, metavar="FILE", help=text)
    text = "(default: bleu chrf)"
    add("--metrics", nargs="+", action=_Once, choices=METRICS, default=["bleu", "chrf"], help=text)
    add_tokenize(parser)
    text = f"number of random exchanges in the paired test (default: {TRIALS})"
    add("--trials", type=positive, default=TRIALS, metavar="N", help=text)


def add_tokenize(parser: argparse.ArgumentParser) -> None:
    text = f"sacreBLEU's tokenizer for BLEU (default: {TOKENIZE}; none: the text is tokenised)"
    parser.add_argument("--tokenize", default=TOKENIZE, metavar="NAME", help=text)


def add_by_frequency(parser: argparse.ArgumentParser, what: str = "the F1 of words") -> None:
    text = f"show {what} by the words' frequency in this text"
    parser.add_argument("--by-frequency", type=Path, metavar="TRAINING_TEXT", help=text)


def add_output_folder(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--output-folder", required=True, type=Path, metavar="FOLDER", help="folder to fill"
    )


def refuse_alone(
    parser: argparse.ArgumentParser, options: argparse.Namespace, name: str, *others: str
) -> None:
    """Refuse an option that has no effect because none of the others is given.

    Args:
        name: of the option, in ``options``.
        others: at least one.
    """

    def is_given(name: str) -> bool:
        return getattr(options, name) != parser.get_default(name)

    if is_given(name) and not any(map(is_given, others)):
        flag, *needed = (f"--{word.replace('_', '-')}" for word in (name, *others))
        parser.error(f"{flag} has no effect without {' or '.join(needed)}")


def check_tokenizer(
    parser: argparse.ArgumentParser,
    options: argparse.Namespace,
    metrics: Collection[str],
    words: bool = False,
) -> None:
    """Refuse ``--tokenize`` where BLEU's tokenizer is not used.

    Args:
        metrics: all metrics that are computed.
        words: whether the tokenizer also splits text into words to be counted.
    """
    if "bleu" not in metrics and not words and options.tokenize != TOKENIZE:
        parser.error("--tokenize has no effect: nothing here is scored with BLEU")


def prepare_plots(options: argparse.Namespace) -> None:
    """Check, before anything is computed, that the pictures of --plots can be drawn.

    Raises:
        AnalysisError: matplotlib is missing.
    """
    if options.plots:
        from fairseq_sparse.plots.pictures import require_matplotlib

        require_matplotlib()


def write_plots(figures: Mapping[str, Any], options: argparse.Namespace) -> None:
    """Write the pictures of --plots and say where they are."""
    from fairseq_sparse.plots.pictures import save_pictures

    written = save_pictures(figures, options.plots)
    for path in written:
        print(f"wrote {path}", file=sys.stderr)
    if options.plots and not written:
        print(f"{options.plots}: nothing to draw", file=sys.stderr)


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--json", type=output_file, metavar="OUT", help="write all numbers to this file"
    )


def check_outputs(
    parser: argparse.ArgumentParser, options: argparse.Namespace, *names: str
) -> None:
    """Refuse an output file that is also an input or another output.

    Args:
        names: the options that are output files.
    """
    values = dict(vars(options))
    written = [path for path in map(values.pop, names) if path is not None]
    texts = [
        part
        for value in values.values()
        for text in (value if isinstance(value, list) else [value])
        if isinstance(text, (str, Path))
        for part in str(text).split(os.pathsep)  # A:B is an ensemble
    ]
    inputs = map(find_translations, map(Path, texts))  # also those of a run's folder
    others = [path.resolve() for path in inputs if path.is_file()]
    for path in written:
        if path.resolve() in others:
            parser.error(f"{path} is named twice, and would be overwritten")
        others.append(path.resolve())


def refuse_overwriting(output: str | Path, inputs: Iterable[str | Path]) -> None:
    """Refuse an output file that is also an input.

    Raises:
        AnalysisError: it is.
    """
    if os.path.realpath(output) in map(os.path.realpath, inputs):
        raise AnalysisError(f"{output} is an input, and would be overwritten: name another file")


def find_systems(texts: list[str], reference: bool = True) -> dict[str, Path]:
    """Return the file of each system, by the system's name.

    Args:
        texts: the arguments, ``[NAME=]SYSTEM``.
        reference: whether there is a reference beside the systems, whose name is reserved.

    Raises:
        AnalysisError: a name is given twice, or is reserved.
    """
    from fairseq_sparse.sheets.annotation_sheets import REFERENCE

    systems: dict[str, Path] = {}
    for text in texts:
        name, place = split_name(text)
        path = Path(place)
        whole = path.resolve()
        name = name or (whole.name if path.is_dir() else whole.stem)
        if name in systems or (reference and name == REFERENCE):
            raise AnalysisError(f"{text}: another one is called {name}; put NAME= before it")
        systems[name] = find_translations(path)
    return systems


def find_translations(path: Path) -> Path:
    """Return the file of the translations in the folder of a recipe's run, or any other path."""
    return path / HYPOTHESES if path.is_dir() else path


def split_name(text: str) -> tuple[str, str]:
    """Return the name, or nothing, and the path of ``[NAME=]PATH``; both can contain ``=``.

    The path may be an ensemble, ``A:B``.
    """

    def exists(path: str) -> bool:
        return all(Path(part).exists() for part in path.split(os.pathsep))

    if "=" not in text or exists(text):
        return "", text
    places = [number for number, character in enumerate(text) if character == "="]
    place = next((x for x in places if exists(text[x + 1 :])), places[-1])
    return text[:place], text[place + 1 :]


def command_parser(command: str, description: str | None) -> argparse.ArgumentParser:
    """Return the parser of a command, whose description is shown with its line breaks."""
    return argparse.ArgumentParser(
        prog=program(command),
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def program(command: str) -> str:
    """Return the name of a command in messages."""
    return f"fairseq-sparse {command}"


def report_errors(name: str, run: Callable[..., None], *arguments: Any) -> int:
    """Run a program and return its exit status; report user errors in one line.

    Args:
        name: its name in the message.
        run: does and prints everything; called with ``arguments``.
    """
    try:
        run(*arguments)
    except BrokenPipeError:  # for exit_status
        raise
    except RecipeError as error:  # may have lines of a log
        print(f"{name}: error: {error}", file=sys.stderr)
        return 1
    except (AnalysisError, CheckpointError, OSError, ValueError) as error:
        print(f"{name}: error: {one_line(error)}", file=sys.stderr)
        return 1
    return 0


def exit_status(main: Callable[[], int], quiet: Sequence[str] = (), name: str = "") -> int:
    """Run ``main`` and return its exit status; report missing packages, lack of memory and
    interruptions in one line, and end quietly when nobody reads the output (``| head``).

    Args:
        main: the function to run.
        quiet: libraries that log what they load; ``main`` shows only their warnings.
        name: the program's name in messages; if empty, the name of the script.
    """
    loggers = [logging.getLogger(library) for library in quiet]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.WARNING)
    try:
        status = main()
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes at exit
        return 1
    except ImportError as error:
        message = (
            f"{error}: install what fairseq_sparse needs (in a checkout: bash "
            "scripts/setup_env.sh), and activate that environment"
        )
    except (MemoryError, RuntimeError) as error:
        # PyTorch's words for a GPU and for a CPU.
        words = ("out of memory", "can't allocate memory")
        if isinstance(error, RuntimeError) and not any(text in str(error) for text in words):
            raise
        message = "there is not enough memory; if the command has --max-tokens, give a smaller one"
    except KeyboardInterrupt:
        message = "interrupted"
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
    print(f"{name or Path(sys.argv[0]).stem}: {message}", file=sys.stderr)
    return 1


def one_line(error: Exception) -> str:
    """Return the message of an exception, in one line of readable length."""
    text = " ".join(in_words(error).split())
    return text if len(text) <= 500 else text[:500] + "..."


def with_progress(batches: Iterable[Any], label: str, unit: str = "batch") -> Iterable[Any]:
    """Show a progress bar while the batches, or other units, are read."""
    from tqdm import tqdm

    return tqdm(batches, desc=label, unit=unit, mininterval=1)

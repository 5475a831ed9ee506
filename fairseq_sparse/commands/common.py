"""Shared parts of the command lines: options, their checks, messages and progress bars.

This module imports nothing heavy, so that ``--help`` and commands that only read text are quick.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairseq_sparse.errors import AnalysisError, CheckpointError, RecipeError, in_words
from fairseq_sparse.measure.alignment import SUBWORDS

if TYPE_CHECKING:
    from fairseq_sparse.measure.cache import Measurements
    from fairseq_sparse.measure.translator import Translator

FORMATS = ("md", "tsv", "latex", "json")
# The endings of the pictures that can be drawn.
PICTURES = (".png", ".svg", ".pdf")
# Header and rows of a table.
Table = tuple[Sequence[str], Sequence[Sequence[object]]]
# The translations in the folder of a recipe's run.
HYPOTHESES = "hyp.detok.txt"
METRICS = ("bleu", "chrf", "ter")
# sacreBLEU's own default.
TOKENIZE = "13a"


def positive(text: str) -> int:
    """Parse a whole number of at least 1, for argparse."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {value}")
    return value


def numbers(text: str) -> list[int]:
    """Parse different whole numbers of at least 1, separated by commas, for argparse."""
    return list(dict.fromkeys(positive(part) for part in text.split(",")))


def not_negative(text: str) -> int:
    """Parse a whole number of at least 0, for argparse."""
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} is negative")
    return value


def add_model_arguments(
    parser: argparse.ArgumentParser, several: bool = False, subsets: bool = False
) -> None:
    """Add the arguments that name a model, or several, and the data to read with them."""
    parser.add_argument("data", metavar="DATA", help="folder that fairseq-preprocess made")
    if several:
        add_paths(parser)
    else:
        parser.add_argument("--path", required=True, metavar="CKPT", help="checkpoint of the model")
    if subsets:
        parser.add_argument(
            "--subset",
            type=lambda text: list(dict.fromkeys(text.split(","))),
            default=["test"],
            metavar="NAME,...",
            help="parts of the data (default: test)",
        )
    else:
        parser.add_argument("--subset", default="test", help="part of the data (default: test)")
    parser.add_argument("--cpu", action="store_true", help="do not use a GPU")


def add_paths(parser: argparse.ArgumentParser) -> None:
    """Add --path, the checkpoints of several models; see :func:`name_models`."""
    parser.add_argument(
        "--path",
        required=True,
        nargs="+",
        metavar="[NAME=]CKPT",
        help="models; an ensemble is A:B, and models of one NAME are seeds of one model",
    )


def add_limit(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--sentences", type=positive, metavar="N", help="the first N of each part (default: all)"
    )


def add_sentences(parser: argparse.ArgumentParser) -> None:
    """Add the numbers of sentences; see :func:`sentence_batches`."""
    parser.add_argument(
        "--sentence",
        type=sentence_numbers,
        required=True,
        metavar="N,M,FROM-TO",
        help="sentence numbers as fairseq-generate prints them, from 0",
    )


def sentence_numbers(text: str) -> list[int]:
    """Parse ``3,7-9`` as 3, 7, 8, 9, for argparse."""
    numbers: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        numbers += range(int(first), int(last or first) + 1)
    if not numbers:
        raise argparse.ArgumentTypeError(f"{text}: no sentence")
    return sorted(set(numbers))


def add_max_tokens(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--max-tokens",
        type=positive,
        default=4000,
        metavar="N",
        help="maximum number of tokens per batch (default: 4000)",
    )


def add_format(parser: argparse.ArgumentParser) -> None:
    """Add --format, the form in which a command prints its tables; see :func:`print_tables`."""
    parser.add_argument(
        "--format",
        choices=FORMATS,
        default="md",
        help="how tables are printed; json: all numbers, as in --json (default: md)",
    )


def print_tables(
    tables: Sequence[Table], numbers: Any, style: str, notes: Sequence[str] = ()
) -> None:
    """Print the tables of a result, or all its numbers.

    Args:
        tables: header and rows of each.
        numbers: the whole result, for JSON.
        style: the value of --format.
        notes: paragraphs below the tables, in Markdown alone.
    """
    import json

    from fairseq_sparse.tables.formats import format_table

    if style == "json":
        print(json.dumps(numbers, ensure_ascii=False, indent=1))
    else:
        parts = [format_table(header, rows, style) for header, rows in tables]
        print("\n\n".join([*parts, *(notes if style == "md" else [])]))


def add_plots(parser: argparse.ArgumentParser) -> None:
    """Add --plots, a picture's file name; several pictures put their own names before its
    ending."""
    parser.add_argument(
        "--plots",
        type=picture_file,
        metavar="FILE",
        help=f"draw pictures ({', '.join(PICTURES)}); each inserts its own name before the ending",
    )


def picture_file(text: str) -> Path:
    """Parse the path of a picture to be written, for argparse."""
    path = output_file(text)
    if path.suffix.lower() not in PICTURES:
        raise argparse.ArgumentTypeError(f"{text}: the name must end in {', '.join(PICTURES)}")
    return path


def add_scoring(parser: argparse.ArgumentParser, required: bool = True) -> None:
    """Add the references, and how sacreBLEU scores and compares translations."""
    add = parser.add_argument
    text = "raw text, one per line; several files are several references"
    add("--reference", nargs="+", type=Path, required=required, metavar="FILE", help=text)
    text = "(default: bleu chrf)"
    add("--metrics", nargs="+", choices=METRICS, default=["bleu", "chrf"], help=text)
    text = f"sacreBLEU's tokenizer for BLEU (default: {TOKENIZE}; none: the text is tokenised)"
    add("--tokenize", default=TOKENIZE, metavar="NAME", help=text)
    text = "number of draws of the paired bootstrap (default: 1000)"
    add("--resamples", type=positive, default=1000, metavar="N", help=text)


def add_by_frequency(parser: argparse.ArgumentParser) -> None:
    text = "show the F1 of words by their frequency in this text"
    parser.add_argument("--by-frequency", type=Path, metavar="TRAINING_TEXT", help=text)


def add_output_folder(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--output-folder", required=True, type=Path, metavar="FOLDER", help="folder to fill"
    )


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

    for path in save_pictures(figures, options.plots):
        print(f"wrote {path}", file=sys.stderr)


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--json", type=output_file, metavar="OUT", help="write all numbers to this file"
    )


def add_steps(parser: argparse.ArgumentParser) -> None:
    """Add the choice between references and the model's own translations; see also
    :func:`check_steps`."""
    parser.add_argument(
        "--steps",
        choices=("references", "translations"),
        default="references",
        help="give the model the reference or its own best translation (default: references)",
    )
    parser.add_argument(
        "--beam", type=positive, metavar="N", help="beam size of --steps translations (default: 5)"
    )


def check_steps(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Refuse --beam for references, and set the beam size: None if no search is wanted."""
    if options.steps == "translations":
        options.beam = options.beam or 5
    elif options.beam:
        parser.error("--beam is the beam size of --steps translations: give both")


def add_subwords(parser: argparse.ArgumentParser, default: str | None = "none") -> None:
    """Add the flag that says how words were split.

    With ``default=None``, the value recorded by the runs' recipe is used.
    """
    shown = default or "as in the recipe of the first run, if there is one"
    parser.add_argument(
        "--subwords",
        choices=SUBWORDS,
        default=default,
        help=f"work on whole words, whose subwords are marked by @@ or by ▁ (default: {shown})",
    )


def output_file(text: str) -> Path:
    """Parse the path of a file to be written, in a folder that exists, for argparse."""
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text or 'nothing'} is a folder: name a file")
    if path.exists() and not path.is_file():
        raise argparse.ArgumentTypeError(
            f"{text} is not a regular file, and cannot be replaced by one"
        )
    if not path.absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text}: there is no such folder")
    return path


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
    others = [path.resolve() for path in map(Path, texts) if path.is_file()]
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
        name, place = _split_name(text)
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


def _split_name(text: str) -> tuple[str, str]:
    """Return the name, or nothing, and the path of ``[NAME=]PATH``; both can contain ``=``.

    The path may be an ensemble, ``A:B``.
    """

    def exists(path: str) -> bool:
        return Path(path.split(os.pathsep)[0]).exists()

    if "=" not in text or exists(text):
        return "", text
    places = [number for number, character in enumerate(text) if character == "="]
    place = next((x for x in places if exists(text[x + 1 :])), places[-1])
    return text[:place], text[place + 1 :]


def seed(text: str) -> int:
    """Parse a seed of NumPy's generators, for argparse."""
    value = int(text)
    if not 0 <= value < 2**32:
        raise argparse.ArgumentTypeError(f"{value} is not between 0 and 2^32 - 1")
    return value


def command_parser(command: str, description: str | None) -> argparse.ArgumentParser:
    """Return the parser of a command, whose description is shown with its line breaks."""
    return argparse.ArgumentParser(
        prog=program(command),
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def program(command: str) -> str:
    """Return the name of a command in messages."""
    return f"fairseq-sparse {command}"


def finish(command: str, run: Callable[..., None], *arguments: Any) -> int:
    """Run a command of fairseq-sparse, such as ``analyze nulls``, with ``report_errors``."""
    return report_errors(program(command), run, *arguments)


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


def name_models(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Split ``[NAME=]CKPT`` into ``options.names`` and ``options.path``.

    A model without a name is called by the part of its path in which it differs from the others.
    """
    given, options.path = map(list, zip(*map(_split_name, options.path), strict=True))
    short = short_names(options.path)
    options.names = [name or other for name, other in zip(given, short, strict=True)]
    files = [os.path.realpath(path) for path in options.path]
    twice = [path for path, file in zip(options.path, files, strict=True) if files.count(file) > 1]
    if twice:
        parser.error(f"--path: {twice[0]} is given twice")


def load_one_model(path: str, options: argparse.Namespace, **settings: Any) -> Translator:
    """Load one checkpoint with ``load_translator``.

    Args:
        path: the checkpoint.
        options: those of ``add_model_arguments``.
        settings: other arguments of ``load_translator``.

    Raises:
        AnalysisError: as ``load_translator``, or it is an ensemble.
        CheckpointError: as ``load_translator``.
    """
    from fairseq_sparse.measure.translator import load_translator

    translator = load_translator(path, options.data, options.cpu, **settings)
    translator.model  # noqa: B018  (refuses an ensemble)
    return translator


def measurements(
    options: argparse.Namespace, subwords: str | None = "none", first: int | None = None
) -> Iterator[Measurements]:
    """Yield the measurements of each model of --path on each part of the data.

    Args:
        options: those of ``add_model_arguments`` and ``add_max_tokens``.
        subwords: see ``Measurements``; None for the value that the first model's recipe recorded.
        first: see ``Measurements``.
    """
    from fairseq_sparse.measure.cache import Measurements
    from fairseq_sparse.measure.run_folders import Run, find_subwords

    runs = [
        Run(name, Path(path).parent, Path(path), {}, [], None)
        for path, name in zip(options.path, options.names, strict=True)
    ]
    subwords = subwords or find_subwords(runs)
    subsets = [options.subset] if isinstance(options.subset, str) else options.subset
    for run in runs:
        found = Measurements(
            run, options.data, "", subwords, options.cpu, with_progress, options.max_tokens, first
        )
        for subset in subsets:
            found = found.on(subset)
            yield found


def sentence_batches(
    options: argparse.Namespace,
) -> Iterator[tuple[Translator, str, list[dict[str, Any]]]]:
    """Yield each model of --path, each part of the data, and the batches with its sentences of
    --sentence.

    Raises:
        AnalysisError: there is no such sentence, or it is too long for the model.
    """
    from fairseq_sparse.measure.translator import load_translator

    for path, name in zip(options.path, options.names, strict=True):
        translator = load_translator(path, options.data, options.cpu, name)
        for subset in options.subset:
            batches = list(translator.batches(subset, options.max_tokens, options.sentence))
            found = {number for sample in batches for number in sample["id"].tolist()}
            missing = set(options.sentence) - found
            if missing:
                raise AnalysisError(
                    f"--sentence {min(missing)}: no such sentence in {subset}, or too long"
                )
            yield translator, subset, batches


def with_progress(batches: Iterable[Any], label: str, unit: str = "batch") -> Iterable[Any]:
    """Show a progress bar while the batches, or other units, are read."""
    from tqdm import tqdm

    return tqdm(batches, desc=label, unit=unit, mininterval=1)


def describe(translator: Translator, subset: str) -> dict[str, Any]:
    """Return the fields of a JSON result that identify its models and its data."""
    return {
        "name": translator.name,
        "checkpoints": translator.checkpoints,
        "output": translator.describe_output(),
        "subset": subset,
    }


def print_left_out(left_out: int) -> None:
    """Say how many sentences were not read, if any."""
    if left_out > 0:
        print(f"left out {left_out} sentences that are too long for the model", file=sys.stderr)


def short_names(paths: list[str]) -> list[str]:
    """Return the parts of the paths that differ: a and b of ``runs/a/x.pt``, ``runs/b/x.pt``."""
    parts = [checkpoint.split(os.sep) for path in paths for checkpoint in path.split(":")]
    first = len(os.path.commonprefix(parts))
    last = len(os.path.commonprefix([part[first:][::-1] for part in parts]))

    def shorten(checkpoint: str) -> str:
        part = checkpoint.split(os.sep)
        return os.sep.join(part[first : len(part) - last])

    names = [" + ".join(map(shorten, path.split(":"))) for path in paths]
    return names if len(paths) > 1 and len(set(names) - {""}) == len(paths) else paths

"""Options of the commands that run models, and how these commands load and measure them."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairseq_sparse.commands.common import refuse_alone, split_name, with_progress
from fairseq_sparse.commands.values import positive, words
from fairseq_sparse.errors import AnalysisError
from fairseq_sparse.measure.alignment import SUBWORDS

if TYPE_CHECKING:
    from fairseq_sparse.measure.cache import Measurements
    from fairseq_sparse.measure.translator import Translator

# In one range of --sentence: all of them are kept, with what is drawn or printed of each.
MOST_SENTENCES = 1_000_000


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
            type=words,
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


def add_sentences(parser: argparse.ArgumentParser, translated: bool = True) -> None:
    """Add the choice of sentences, by number or typed; see :func:`sentence_batches`.

    Args:
        translated: whether the translation of a typed sentence can be typed, too.
    """
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument(
        "--sentence",
        type=sentence_numbers,
        metavar="N,M,FROM-TO",
        help="sentence numbers as fairseq-generate prints them, from 0",
    )
    add_typed(parser, which, translated)


def add_typed(
    parser: argparse.ArgumentParser,
    which: argparse._MutuallyExclusiveGroup,
    translated: bool = True,
) -> None:
    """Add --source, as one of the choices of a group, and --target; see :func:`check_typed`."""
    text = "a typed sentence, tokenised by Moses and subword-nmt"
    which.add_argument("--source", type=typed_text, metavar="TEXT", help=text)
    if translated:
        text = "its translation (default: the model's own)"
        parser.add_argument("--target", type=typed_text, metavar="TEXT", help=text)
    else:
        parser.set_defaults(target=None)


def typed_text(text: str) -> str:
    """Parse a typed sentence, for argparse."""
    if not text.strip():
        raise argparse.ArgumentTypeError("no text")
    return text


def check_typed(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Refuse --target without --source, or where the model's own translation is wanted, and
    --subset with --source."""
    refuse_alone(parser, options, "target", "source")
    if options.source:
        if options.subset != parser.get_default("subset"):
            parser.error("--source is typed, and not of a --subset: leave out one of them")
        options.subset = ["typed"]
        steps = getattr(options, "steps", None)
        if steps and not options.target:
            options.steps = "translations"
        elif steps == "translations":
            parser.error("--target: with --steps translations, the translation is the model's own")


def sentence_numbers(text: str) -> list[int]:
    """Parse ``3,7-9`` as 3, 7, 8, 9, for argparse."""
    numbers: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        several = range(int(first), int(last or first) + 1)
        if not several:
            raise argparse.ArgumentTypeError(f"{part}: no sentence")
        if several[-1] - several[0] >= MOST_SENTENCES:
            raise argparse.ArgumentTypeError(f"{part}: more than {MOST_SENTENCES:,} sentences")
        numbers += several
    return sorted(set(numbers))


def add_tokenizer(parser: argparse.ArgumentParser) -> None:
    text = "how the training text was tokenised (default: moses)"
    parser.add_argument("--tokenizer", choices=("moses", "space"), default="moses", help=text)


def add_max_tokens(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--max-tokens",
        type=positive,
        default=4000,
        metavar="N",
        help="maximum number of tokens per batch (default: 4000)",
    )


def add_steps(parser: argparse.ArgumentParser, *more: str) -> None:
    """Add the choice between references, the model's own translations and ``more``; see also
    :func:`check_steps`."""
    parser.add_argument(
        "--steps",
        choices=("references", "translations", *more),
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


def name_models(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Split ``[NAME=]CKPT`` into ``options.names`` and ``options.path``.

    A model without a name is called by the part of its path in which it differs from the others.
    """
    given, options.path = map(list, zip(*map(split_name, options.path), strict=True))
    short = short_names(options.path)
    options.names = [name or other for name, other in zip(given, short, strict=True)]
    refuse_twice(parser, options.path, "--path: ")


def refuse_twice(
    parser: argparse.ArgumentParser, paths: Sequence[str | Path], flag: str = ""
) -> None:
    """Refuse a file or folder that is given twice, under any name."""
    places = [os.path.realpath(path) for path in paths]
    for path, place in zip(paths, places, strict=True):
        if places.count(place) > 1:
            parser.error(f"{flag}{path} is given twice")


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
        Run(name, Path(path), Path(path))
        for path, name in zip(options.path, options.names, strict=True)
    ]
    subwords = subwords or find_subwords(runs)
    for run in runs:
        found = Measurements(
            run, options.data, "", subwords, options.cpu, with_progress, options.max_tokens, first
        )
        for subset in _subsets(options):
            found = found.on(subset)
            yield found


def _subsets(options: argparse.Namespace) -> list[str]:
    return [options.subset] if isinstance(options.subset, str) else options.subset


def sentence_batches(
    options: argparse.Namespace,
) -> Iterator[tuple[Translator, str, list[dict[str, Any]]]]:
    """Yield each model of --path, each part of the data, and the batches with its sentences of
    --sentence; or the typed sentence alone, as the part ``typed``.

    Raises:
        AnalysisError: there is no such sentence, or it is too long for the model.
    """
    from fairseq_sparse.measure.translator import load_translator
    from fairseq_sparse.measure.typed import typed_batch

    for path, name in zip(options.path, options.names, strict=True):
        translator = load_translator(path, options.data, options.cpu, name)
        if options.source:
            targets = [options.target] if options.target else []
            yield translator, "typed", [typed_batch(translator, [options.source], targets)]
            continue
        for subset in _subsets(options):
            batches = list(translator.batches(subset, options.max_tokens, options.sentence))
            found = {number for sample in batches for number in sample["id"].tolist()}
            missing = set(options.sentence) - found
            if missing:
                raise AnalysisError(
                    f"--sentence {min(missing)}: no such sentence in {subset}, or too long"
                )
            yield translator, subset, batches


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

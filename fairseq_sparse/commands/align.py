"""Extract word alignments from the cross-attention of a trained translation model.

The model reads each source sentence of a prepared data set with its reference, or with its own
translation. For each head of each layer, and for the mean of the heads, the command writes to
FOLDER a file of links in Pharaoh form, with one line per sentence in the order of the data:

  normal-layer1-head2.pharaoh   a target word is linked by the query that predicts it
  shifted-layer1-mean.pharaoh   a target word is linked by the query that has it as its input
                                (Chen et al. 2020)
  source.txt, target.txt        the words, which the links number from 0
  manifest.json                 checkpoint, data and settings

Subwords are merged: weights are summed over the pieces of a source word and averaged over those of
a target word (Zenkel et al. 2019). EOS is not a word: the source's EOS is left out before links are
made, so attention to it is ignored; on the target side, the query that predicts EOS is left out
(normal), or the one whose input is the EOS that a sentence begins with (shifted). A target word
whose weights for all source words are 0 has no link. The mean of heads is that of their weights.

--npz also saves the attention weights of every head of every layer, in attention-FIRST-LAST.npz for
the sentences FIRST to LAST. For sentence 7, numpy.load(FILE) has
  7.weights   float32 [layers, heads, target length, source length]; row t predicts target piece t
  7.source    pieces, EOS last
  7.target    likewise

An interrupted run continues when it is started again. A sentence that is too long for the model
gets an empty line of links.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairseq_sparse.commands.common import (
    add_output_folder,
    command_parser,
    finish,
    numbers,
)
from fairseq_sparse.commands.models import (
    add_max_tokens,
    add_model_arguments,
    add_steps,
    add_subwords,
    check_steps,
    load_one_model,
)
from fairseq_sparse.errors import AnalysisError
from fairseq_sparse.files import sha256_of
from fairseq_sparse.measure.alignment import ALIGNMENT_KINDS

if TYPE_CHECKING:
    from fairseq_sparse.measure.translator import Translator

# Sentences per part: the most work that an interruption can lose.
PART = 1000


def layers(text: str) -> str | list[int]:
    """Parse `all`, or numbers from 1, for argparse."""
    return text if text == "all" else sorted(numbers(text))


def heads(text: str) -> str | list[int | str]:
    """Parse `all`, or numbers from 1 and `mean`, which comes last, for argparse."""
    parts = set(text.split(","))
    chosen = layers(",".join(parts - {"mean"})) if parts != {"mean"} else []
    return chosen if chosen == "all" else [*chosen, *({"mean"} & parts)]


def above_zero(text: str) -> float:
    """Parse a number above 0, for argparse."""
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"must be above 0, not {text}")
    return value


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = command_parser("align", __doc__)
    add_model_arguments(parser)
    add_output_folder(parser)
    add_steps(parser)
    parser.add_argument(
        "--layers",
        type=layers,
        default="all",
        metavar="all|N,...",
        help="layers to use, numbered from 1 (default: all)",
    )
    parser.add_argument(
        "--heads",
        type=heads,
        default="all",
        metavar="all|mean|N,...",
        help="heads, numbered from 1, and `mean` for the mean of all heads, such as `1,mean` "
        "(default: all, which is each head and the mean)",
    )
    parser.add_argument(
        "--attention",
        choices=(*ALIGNMENT_KINDS, "both"),
        default="both",
        help="which queries link a target word, see above (default: both)",
    )
    parser.add_argument(
        "--threshold",
        type=above_zero,
        metavar="X",
        help="link to every source word with at least this weight (default: to the one with the "
        "largest weight)",
    )
    add_subwords(parser, default="subword_nmt")
    parser.add_argument("--npz", action="store_true", help="save the attention as well")
    add_max_tokens(parser)
    options = parser.parse_args(arguments)
    check_steps(parser, options)
    return options


def choose(chosen: str | list, count: int, flag: str) -> list:
    """Return the numbers, from 1 to a count, that a flag selects."""

    for number in chosen if chosen != "all" else []:
        if number != "mean" and number > count:
            raise AnalysisError(f"{flag} {number}: the model has {count}")
    return list(range(1, count + 1)) if chosen == "all" else chosen


def describe(options: argparse.Namespace, translator: Translator, sentences: int) -> dict[str, Any]:
    """Return all that the links depend on, for the manifest."""
    from fairseq_sparse.measure.attention.attention_statistics import attention_modules, head_count

    (model,) = translator.models
    modules = attention_modules(model)["cross"]
    if not modules:
        raise ValueError("the model has no cross-attention")
    chosen = choose(options.heads, head_count(modules[0]), "--heads")
    data = Path(options.data)
    files = sorted([*data.glob(f"{options.subset}.*"), *data.glob("dict.*.txt")])
    sums = "".join(f"{sha256_of(path)} {path.name}\n" for path in files)
    return {
        "subset": options.subset,
        "hypothesis": options.steps == "translations",
        "beam": options.beam,
        "attention": list(ALIGNMENT_KINDS) if options.attention == "both" else [options.attention],
        "layers": choose(options.layers, len(modules), "--layers"),
        "heads": [*chosen, "mean"] if options.heads == "all" else chosen,
        "threshold": options.threshold,
        "subwords": options.subwords,
        "npz": options.npz,
        "checkpoint": {"path": options.path, "sha256": sha256_of(Path(options.path))},
        "data": {"path": options.data, "sha256": hashlib.sha256(sums.encode()).hexdigest()},
        "sentences": sentences,
    }


def extract(options: argparse.Namespace) -> str:
    """Fill the folder, and return a message for the user."""
    from tqdm import tqdm

    from fairseq_sparse.measure.alignment.alignment_extraction import extract_part
    from fairseq_sparse.measure.alignment.alignment_folder import AlignmentFolder, link_files

    translator = load_one_model(options.path, options)
    # Load the data, and refuse a --max-tokens that is too small before the folder is made.
    translator.batches(options.subset, options.max_tokens)
    dataset = translator.task.dataset(options.subset)
    if options.steps == "references" and len(dataset) and dataset[0].get("target") is None:
        raise AnalysisError(
            f"--subset {options.subset}: there are no references; use --steps translations"
        )
    settings = describe(options, translator, len(dataset))
    folder = AlignmentFolder(options.output_folder, settings)
    if folder.finished:
        return f"done already: {options.output_folder}"
    parts = [
        range(first, min(first + PART, len(dataset))) for first in range(0, len(dataset), PART)
    ]
    done = sum(len(part) for part in parts if folder.has_part(part))
    with tqdm(total=len(dataset), initial=done, unit="sentence", mininterval=1) as bar:
        for part in parts:
            if not folder.has_part(part):
                for count in extract_part(folder, part, translator, dataset, options.max_tokens):
                    bar.update(count)
    too_long = folder.finish(parts)
    if too_long:
        print(
            f"{len(too_long)} sentences are too long for the model and have no links: "
            f"{', '.join(map(str, too_long[:10]))}{', ...' if len(too_long) > 10 else ''}",
            file=sys.stderr,
        )
    return (
        f"wrote {len(link_files(settings))} alignments of {len(dataset)} sentences to {folder.path}"
    )


def run(options: argparse.Namespace) -> None:
    print(extract(options))


def main(arguments: list[str] | None = None) -> int:
    return finish("align", run, parse_arguments(arguments))

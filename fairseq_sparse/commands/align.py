"""Extract word alignments from the cross-attention of a trained translation model.

The model reads each source sentence of a prepared data set with its reference, or with its own
translation. For each head of each layer, and for the mean of the heads, the command writes to
FOLDER a file of links in Pharaoh form, with one line per sentence in the order of the data:

  normal-layer1-head2.pharaoh   a target word is linked by the query that predicts it
  shifted-layer1-mean.pharaoh   a target word is linked by the query that has it as its input
                                (Chen et al. 2020)
  source.txt, target.txt        the words, which the links number from 0
  manifest.json                 checkpoint, data and settings

A target word is linked with the source word of the largest weight, if that is above 0. Subwords are
merged: weights are summed over the pieces of a source word and averaged over those of a target word
(Zenkel et al. 2019). EOS is not a word: the source's EOS is left out before links are made, so
attention to it is ignored; on the target side, the query that predicts EOS is left out (normal), or
the one whose input is the EOS that a sentence begins with (shifted). The mean of heads is that of
their weights.

An interrupted run continues when it is started again. A sentence that is too long for the model
gets an empty line of links.

A sentence typed as --source, with --target or the model's own translation, needs no prepared text:
a table shows the source word of each target word, by the mean of the heads of each layer.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairseq_sparse.commands.common import command_parser
from fairseq_sparse.commands.models import (
    add_max_tokens,
    add_model_arguments,
    add_steps,
    add_subwords,
    add_typed,
    check_steps,
    check_typed,
    load_one_model,
)
from fairseq_sparse.errors import AnalysisError
from fairseq_sparse.files import sha256_of
from fairseq_sparse.measure.alignment import ALIGNMENT_KINDS

if TYPE_CHECKING:
    from fairseq_sparse.measure.translator import Translator

# Sentences per part: the most work that an interruption can lose.
PART = 1000


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = command_parser("align", __doc__)
    add_model_arguments(parser)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--output-folder", type=Path, metavar="FOLDER", help="folder to fill")
    add_typed(parser, what)
    add_steps(parser)
    add_subwords(parser, default="subword_nmt")
    add_max_tokens(parser)
    options = parser.parse_args(arguments)
    check_typed(parser, options)
    check_steps(parser, options)
    return options


def describe(options: argparse.Namespace, translator: Translator, sentences: int) -> dict[str, Any]:
    """Return all that the links depend on, for the manifest."""
    from fairseq_sparse.measure.attention.attention_statistics import attention_modules, head_count

    modules = attention_modules(translator.model)["cross"]
    if not modules:
        raise ValueError("the model has no cross-attention")
    data = Path(options.data)
    files = sorted([*data.glob(f"{options.subset}.*"), *data.glob("dict.*.txt")])
    sums = "".join(f"{sha256_of(path)} {path.name}\n" for path in files)
    return {
        "subset": options.subset,
        "hypothesis": options.steps == "translations",
        "beam": options.beam,
        "layers": list(range(1, len(modules) + 1)),
        "heads": [*range(1, head_count(modules[0]) + 1), "mean"],
        "subwords": options.subwords,
        "checkpoint": {"path": options.path, "sha256": sha256_of(Path(options.path))},
        "data": {"path": options.data, "sha256": hashlib.sha256(sums.encode()).hexdigest()},
        "sentences": sentences,
    }


def extract(options: argparse.Namespace) -> None:
    """Fill the folder."""
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
        print(f"done already: {folder.path}")
        return
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
        shown = f"{', '.join(map(str, too_long[:10]))}{', ...' if len(too_long) > 10 else ''}"
        text = "sentences are too long for the model and have no links"
        print(f"{len(too_long)} {text}: {shown}", file=sys.stderr)
    files = len(link_files(settings))
    print(f"wrote {files} alignments of {len(dataset)} sentences to {folder.path}")


def align_typed(options: argparse.Namespace) -> None:
    """Print the links of a typed sentence."""
    from fairseq_sparse.measure.alignment.alignment_extraction import aligned_words
    from fairseq_sparse.measure.translator import with_best_translations
    from fairseq_sparse.measure.typed import typed_batch
    from fairseq_sparse.tables.formats import format_table

    translator = load_one_model(options.path, options)
    batch = typed_batch(translator, [options.source], [options.target] if options.target else [])
    if options.beam:
        (batch,) = with_best_translations(translator, [batch], options.beam)
    words, linked = aligned_words(translator, batch, options.subwords)
    layers = range(1, len(linked[0]) // len(ALIGNMENT_KINDS) + 1) if linked else []
    header = [f"layer {layer}, {kind}" for layer in layers for kind in ALIGNMENT_KINDS]
    rows = [[word, *found] for word, found in zip(words, linked, strict=True)]
    print(format_table(["target", *header], rows))


def run(options: argparse.Namespace) -> None:
    (align_typed if options.source else extract)(options)

"""Rank sentence pairs by their null attention, to find misaligned and mistranslated ones.

A model with rectified cross-attention (rela_g, ...) reads each source sentence and its target (no
search). The null rate of a pair is the share of queries whose weights are all 0, over the layers,
the heads and the target tokens (with --subwords, target words), including EOS. The output table
lists the pairs from the highest rate to the lowest: rank, number of the sentence (from 0), rate,
source and target. With --bad or --shuffle, it also says which pairs are bad, and the precision of
the ranking is printed, beside that of a random order.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from fairseq_sparse.commands.common import (
    add_format,
    check_outputs,
    command_parser,
    print_tables,
    refuse_alone,
    with_progress,
)
from fairseq_sparse.commands.models import (
    add_max_tokens,
    add_model_arguments,
    add_subwords,
    load_one_model,
    print_left_out,
)
from fairseq_sparse.commands.values import output_file, seed
from fairseq_sparse.files import replacing

if TYPE_CHECKING:
    from fairseq_sparse.measure.translator import Translator


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = command_parser("analyze nulls", __doc__)
    add_model_arguments(parser)
    parser.add_argument(
        "--output", required=True, type=output_file, metavar="FILE", help="table (TSV)"
    )
    add_subwords(parser)
    parser.add_argument(
        "--post-process",
        nargs="?",
        const="@@ ",
        metavar="KIND",
        help="join subwords in the table, as fairseq-generate does (without KIND: those of BPE)",
    )
    known = parser.add_mutually_exclusive_group()
    known.add_argument(
        "--bad",
        type=Path,
        metavar="FILE",
        help="file with one line per pair: 1 if the pair is bad, else 0",
    )
    known.add_argument(
        "--shuffle",
        type=float,
        metavar="PERCENT",
        help="make this share of the pairs bad by shuffling their targets",
    )
    parser.add_argument(
        "--seed", type=seed, default=1, metavar="N", help="seed of --shuffle (default: 1)"
    )
    add_max_tokens(parser)
    add_format(parser)
    parser.add_argument(
        "--json", type=output_file, metavar="OUT", help="write the precision to this file"
    )
    options = parser.parse_args(arguments)
    refuse_alone(parser, options, "seed", "shuffle")
    refuse_alone(parser, options, "json", "bad", "shuffle")
    check_outputs(parser, options, "output", "json")
    return options


def load(options: argparse.Namespace) -> tuple[Translator, set[int] | None]:
    """Load the model with its data, and, if known, the numbers of the bad pairs."""
    from fairseq_sparse.measure.attention.null_ranking import check_rectified, read_labels
    from fairseq_sparse.measure.attention.shuffled_references import (
        derange,
        with_reordered_references,
    )
    from fairseq_sparse.measure.model_loading import load_subset

    translator = load_one_model(options.path, options)
    check_rectified(translator.model)
    count = len(load_subset(translator.task, options.subset))
    if options.bad:
        return translator, read_labels(options.bad, count)
    if options.shuffle is None:
        return translator, None
    order = derange(count, options.seed, options.shuffle)
    bad = {number for number in range(count) if order[number] != number}
    return with_reordered_references(translator, order), bad


def measure(translator: Translator, options: argparse.Namespace) -> dict[int, float]:
    """Measure the null rate of each pair, by its number."""
    from fairseq_sparse.measure.attention.null_ranking import null_rates
    from fairseq_sparse.measure.attention.subword_merging import SubwordMerger
    from fairseq_sparse.measure.translator import with_references

    task = translator.task
    batches = translator.batches(options.subset, options.max_tokens)
    batches = with_references(with_progress(batches, options.subset), options.subset)
    merger = SubwordMerger(task.source_dictionary, task.target_dictionary, options.subwords)
    rates = dict(null_rates(translator.model, batches, merger))
    print_left_out(len(task.dataset(options.subset)) - len(rates))
    return rates


def write_ranking(
    translator: Translator,
    rates: dict[int, float],
    ranking: list[int],
    bad: set[int] | None,
    options: argparse.Namespace,
) -> None:
    """Write the pairs in the order of the ranking."""
    task = translator.task
    dataset = task.dataset(options.subset)
    with replacing(options.output) as file:
        header = ["rank", "sentence", "null_rate", *(["bad"] if bad is not None else [])]
        print(*header, "source", "target", sep="\t", file=file)
        for rank, number in enumerate(ranking, start=1):
            pair = dataset[number]
            source = task.source_dictionary.string(pair["source"], options.post_process)
            target = task.target_dictionary.string(pair["target"], options.post_process)
            label = [int(number in bad)] if bad is not None else []
            rate = f"{rates[number]:.4f}"
            print(rank, number, rate, *label, source, target, sep="\t", file=file)
    print(f"wrote {options.output}", file=sys.stderr)


def run(options: argparse.Namespace) -> None:
    from fairseq.data.data_utils import post_process

    from fairseq_sparse.measure.attention.null_ranking import evaluate, rank
    from fairseq_sparse.tables.attention import precision_table

    try:  # before anything is computed
        post_process("", options.post_process)
    except NotImplementedError as error:
        raise ValueError(f"--post-process: {error}") from error
    translator, bad = load(options)
    rates = measure(translator, options)
    ranking = rank(rates)
    found = {"checkpoint": options.path, "data": options.data, "subset": options.subset}
    if bad is not None:
        found |= evaluate(rates, bad)
    write_ranking(translator, rates, ranking, bad, options)
    if bad is not None:
        print(f"{found['bad']} of {found['pairs']} pairs are bad", file=sys.stderr)
        print_tables([precision_table(found)], found, options)

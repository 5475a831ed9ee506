"""Measure the support of the output: how many tokens have nonzero probability at each step.

Steps are those of the references (teacher-forced), of the model's own translations, or both. The
table has the number of tokens with p > 0, the sum of p, how often the given token has p = 0, and
the number of source positions that cross-attention gives weight. By search, it measures how often
a beam provably has every translation of nonzero probability. With training logs, it shows the
threshold tau and the norm of the logits.

With --by-frequency, a second table has the rank of the reference's tokens among all logits, and how
often their p is 0, by how often their word occurs in the training text. A token has the frequency
of the word that it is a part of, the end of a sentence that of the sentences. The text must be
tokenised as the data, before or after the words were split; --subwords says how they were.

Softmax and sparse outputs and fairseq's own models can be compared; A.pt:B.pt is an ensemble.
Measurements of whole parts are kept in RUN/measurements, and read again.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from fairseq_sparse.commands.common import (
    add_by_frequency,
    add_format,
    add_json,
    add_plots,
    check_outputs,
    command_parser,
    prepare_plots,
    print_tables,
    refuse_alone,
    write_plots,
)
from fairseq_sparse.commands.models import (
    add_limit,
    add_max_tokens,
    add_model_arguments,
    add_steps,
    add_subwords,
    measurements,
    name_models,
    print_left_out,
)
from fairseq_sparse.commands.values import numbers
from fairseq_sparse.errors import AnalysisError

NO_CURVE = (
    "no logit_norm in it; fairseq-train writes it with --criterion entmax_loss or alpha_relu_loss"
)


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = command_parser("analyze support", __doc__)
    add_model_arguments(parser, several=True, subsets=True)
    add_limit(parser)
    add_steps(parser, "both")
    parser.add_argument(
        "--beams",
        type=numbers,
        default=[1, 5, 10],
        metavar="N,...",
        help="search the first part of the data with these beam sizes (default: 1,5,10)",
    )
    parser.add_argument(
        "--no-search", dest="beams", action="store_const", const=[], help="do not search"
    )
    parser.add_argument(
        "--log",
        nargs="+",
        type=Path,
        default=[],
        metavar="LOG",
        help="the models' training logs, in any --log-format: tau and the logits' norm",
    )
    add_by_frequency(parser, "gold's rank and support")
    add_subwords(parser, default=None)
    add_max_tokens(parser)
    add_format(parser)
    add_json(parser)
    add_plots(parser)
    options = parser.parse_args(arguments)
    name_models(parser, options)
    if options.by_frequency and options.steps == "translations":
        parser.error("--by-frequency is about the references: leave out --steps translations")
    refuse_alone(parser, options, "subwords", "by_frequency")
    if len(options.log) not in (0, len(options.path)):
        parser.error("--log: give as many as --path has models")
    if options.steps == "references" and options.beam is not None:
        parser.error("--beam is that of --steps translations; --beams are those of the search")
    check_outputs(parser, options, "json")
    return options


def training_curves(options: argparse.Namespace) -> list[dict]:
    """Read τ and the norm of the logits over the updates from fairseq's logs."""
    from fairseq_sparse.measure.training_log import log_text, read_records, threshold_curve

    curves = []
    for log, name in zip(options.log, options.names, strict=False):
        curve = threshold_curve(read_records(log_text(log)))
        if curve["updates"]:
            curves.append({"name": name, "log": str(log), **curve})
        else:
            print(f"left out {log}: {NO_CURVE}", file=sys.stderr)
    if options.log and not curves:
        raise AnalysisError(f"--log {options.log[0]}: {NO_CURVE}")
    return curves


def run(options: argparse.Namespace) -> None:
    from fairseq_sparse.measure.cache import BEAM
    from fairseq_sparse.tables.output import (
        certified_table,
        gold_table,
        output_table,
        training_table,
    )

    prepare_plots(options)
    curves = training_curves(options)
    rows, searched, gold = [], [], []
    for found in measurements(options, options.subwords, options.sentences):
        if options.steps != "translations":
            rows.append(found.output())
        if options.steps != "references":
            rows.append(found.decoded(options.beam or BEAM))
        if options.by_frequency:
            gold.append(found.gold(options.by_frequency))
        print_left_out(rows[-1]["left_out"])
        if options.beams and found.subset == options.subset[0]:
            searched.append(found.certified(options.beams))
    result = {"data": options.data, "forced": rows, "searched": searched, "training": curves}
    result |= {"gold": gold} if gold else {}
    tables = [output_table(rows)]
    tables += [gold_table(gold)] if gold else []
    tables += [certified_table(searched)] if searched else []
    tables += [training_table(curves)] if curves else []
    print_tables(tables, result, options)
    if options.plots:
        from fairseq_sparse.plots.output_plots import output_figures

        write_plots(output_figures(rows, curves), options)

"""Find the temperature at which a wanted share of reference tokens has nonzero probability.

On the validation set, for each --coverage; give the temperature to fairseq-generate --temperature.
It is at least 1. With --by-frequency, a second table has the temperature that each frequency class
of words needs for the same share of its own tokens: the largest one serves all classes. The text
must be tokenised as the data.

The promise: if the validation sentences and a new one are exchangeable, and the new one is not the
longest, the expected number of its reference tokens with p = 0 is at most 1 - coverage times that
of its reference tokens. Nothing is promised for single sentences or tokens, for text from another
source, or for what a search finds.

Softmax has no zeros and so no such temperature. For comparison, the table has the truncations of
the softmax of each model's logits (top-p, min-p, epsilon) that cover as much, and the mean size of
all sets on --subset. Models with softmax can be given beside a sparse one.
"""

from __future__ import annotations

import argparse
import sys

from fairseq_sparse.commands.common import (
    add_by_frequency,
    add_format,
    add_json,
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
    describe,
    name_models,
    print_left_out,
)
from fairseq_sparse.commands.values import share
from fairseq_sparse.errors import AnalysisError


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = command_parser("calibrate", __doc__)
    add_model_arguments(parser, several=True)
    add = parser.add_argument
    add(
        "--validation",
        default="valid",
        metavar="NAME",
        help="part to calibrate on (default: valid)",
    )
    add(
        "--coverage",
        type=open_share,
        nargs="+",
        default=[0.95, 0.98, 0.99],
        metavar="C",
        help="wanted shares of tokens (default: .95 .98 .99)",
    )
    add_by_frequency(parser, "the temperature needed")
    add_subwords(parser)
    add_max_tokens(parser)
    add_format(parser)
    add_json(parser)
    options = parser.parse_args(arguments)
    name_models(parser, options)
    refuse_alone(parser, options, "subwords", "by_frequency")
    check_outputs(parser, options, "json")
    return options


def open_share(text: str) -> float:
    """Parse a number above 0 and below 1, for argparse."""
    value = share(text)
    if value in (0, 1):
        raise argparse.ArgumentTypeError(f"{text} must lie between 0 and 1")
    return value


open_share.__name__ = "number"


def run(options: argparse.Namespace) -> None:
    from fairseq_sparse.measure.output.calibration import calibrate
    from fairseq_sparse.measure.output.gold_by_frequency import WordClasses
    from fairseq_sparse.measure.translator import load_translator
    from fairseq_sparse.tables.output import calibration_table, class_table

    translators = [
        load_translator(path, options.data, options.cpu, name)
        for path, name in zip(options.path, options.names, strict=True)
    ]
    if not any(translator.is_sparse for translator in translators):
        raise AnalysisError(
            "--path: softmax gives no token probability 0, so there is no temperature to find; "
            "give a model with a sparse output"
        )
    rows = []
    for translator in translators:
        classes = options.by_frequency and WordClasses(
            translator.task.target_dictionary, options.by_frequency, options.subwords
        )

        def batches(subset: str, translator=translator):
            found = translator.batches(subset, options.max_tokens)
            left_out = len(translator.task.dataset(subset))
            for sample in with_progress(found, f"{translator.name}, {subset}"):
                left_out -= len(sample["id"])
                yield sample
            print_left_out(left_out)

        found = calibrate(
            translator, batches, options.validation, options.subset, options.coverage, classes
        )
        about = describe(translator, options.subset)
        rows += [{**about, **row} for row in found]
    tables = [calibration_table(rows)]
    if options.by_frequency:
        tables.append(class_table(rows))
        if any(part["parameter"] is None for row in rows for part in row["by_class"]):
            print(f"'-': the class has too few tokens in {options.validation}", file=sys.stderr)
    result = {"data": options.data, "validation": options.validation, "rows": rows}
    print_tables(tables, result, options)

"""Measure how sparse, and how diverse, the attention of trained translation models is.

The model reads each source sentence and its reference (no search). For the encoder, the decoder
and cross-attention, for each layer, the table has

- the sparsity rate: the share of attention weights that are exactly 0, among the keys that a query
  may see;
- the nonzeros: the mean number of nonzero weights of a query; and the mean sum of its weights (of
  absolute values, where they can be below 0);
- attention sinks: the shares of a query's weights on the first key, and on EOS, which is the first
  key in the decoder; averaged over the queries that have any weight;
- the null rate: the share of queries whose weights are all 0, averaged over the heads; its variance
  over the heads (with n - 1 in the denominator); and the null rate of layer attention, the mean of
  the heads' weights;
- the diversity of the heads, if there are several: their generalised Jensen-Shannon divergence in
  nats, 0 if all heads are the same. Weights that do not sum to 1 are turned into distributions by a
  softmax, in which a query without any weight attends to a dummy key. For a second table, they are
  first raised to an exponent, the temperature of ReLA's Table 6; the lower, the smoother. GELU and
  leaky ReLU give negative weights, which have no fractional powers, so their exponent is always 1.

ReLA measures attention between words: --subwords sums the weights over the subwords of a word that
is attended to, and averages them over those of a word that attends (Zenkel et al. 2019); EOS is a
word of its own. With "none", tokens are counted. An LSTM has only cross-attention, with one layer
and one head.

With --shuffled, each source is also read with the reference of another sentence. Models with the
same name are seeds of one model: means over them are shown, with standard deviations. In the
pictures, a band is one standard deviation over the heads to either side, a bar one over the seeds.

--by-previous N adds a table of cross-attention: the null rate of each head after the N most
frequent target words, or after the N most frequent tags of --tags.

The rates are means over the heads of a layer, and over the layers; the JSON file has the heads too.
With several models it has the numbers of each under "models", by name. Measurements are kept in
RUN/measurements, and read again.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairseq_sparse.commands.common import (
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
    add_max_tokens,
    add_model_arguments,
    add_subwords,
    measurements,
    name_models,
    print_left_out,
)
from fairseq_sparse.commands.values import positive, seed
from fairseq_sparse.errors import AnalysisError

if TYPE_CHECKING:
    from fairseq_sparse.measure.cache import Measurements


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = command_parser("analyze attention", __doc__)
    add_model_arguments(parser, several=True)
    parser.add_argument(
        "--shuffled",
        type=seed,
        metavar="SEED",
        help="measure also with references that are shuffled at random",
    )
    add_subwords(parser, default=None)
    parser.add_argument(
        "--by-previous",
        type=positive,
        metavar="N",
        help="null rate of each cross-attention head after the N most frequent target words",
    )
    parser.add_argument(
        "--tags",
        type=Path,
        metavar="FILE",
        help="one line per sentence, with a tag for each target word: --by-previous uses the tags",
    )
    add_max_tokens(parser)
    add_format(parser)
    add_json(parser)
    add_plots(parser)
    options = parser.parse_args(arguments)
    name_models(parser, options)
    refuse_alone(parser, options, "tags", "by_previous")
    check_outputs(parser, options, "json")
    return options


def analyze(found: Measurements, options: argparse.Namespace) -> dict[str, Any]:
    """Return all the numbers of a model."""
    path = str(found.run.checkpoint)
    result = {"checkpoint": path, "data": options.data}
    if options.by_previous:
        result["by_previous"] = found.by_previous(options.by_previous, options.tags)
    if options.shuffled is not None:
        result |= found.shuffled(options.shuffled)
    result |= found.own_attention()
    if not result["attention"]:
        raise AnalysisError(f"{path}: no attention of a Transformer or an LSTM")
    print_left_out(result["left_out"])
    return result


def run(options: argparse.Namespace) -> None:
    from fairseq_sparse.measure.attention.attention_seeds import average_seeds
    from fairseq_sparse.tables.attention import attention_table, exponent_table, previous_table

    prepare_plots(options)
    results = [analyze(found, options) for found in measurements(options, options.subwords)]
    for result, name in zip(results, options.names, strict=True):
        number = f"{result['sentences']} sentences of {options.subset}"
        print(f"{name}: {number}, {result['checkpoint']}", file=sys.stderr)
    models = average_seeds(results, options.names)
    numbers = {"models": models} if len(models) > 1 else models[options.names[0]]
    tables = [attention_table(models), exponent_table(models)]
    if options.by_previous:
        tables.append(previous_table({x["checkpoint"]: x["by_previous"] for x in results}))
    print_tables([table for table in tables if table[1]], numbers, options)
    if options.plots:
        from fairseq_sparse.plots.attention_curves import attention_figures

        write_plots(attention_figures(models), options)

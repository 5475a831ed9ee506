"""Analyse which translations have nonzero probability in a model, on a prepared data set.

analyze output empty DATA --path CKPT         how often the empty translation is more probable than
                                              the beam's best
analyze output support DATA --path CKPT       support size, sum of p and number of attended source
                                              positions at each step of the references or (--steps
                                              decoding) of the model's own translations, and how
                                              often a beam has all possible translations
analyze output alternatives DATA --path CKPT  the possible tokens at each step of a sentence
analyze output tree DATA --path CKPT          all possible translations of a sentence, as a tree

Models with softmax or sparse outputs and fairseq's own can be compared; A:B is an ensemble.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from fairseq_sparse.commands.analyze_output_sentences import (
    add_alternatives,
    add_tree,
    run_alternatives,
    run_tree,
)
from fairseq_sparse.commands.common import (
    add_json,
    add_max_tokens,
    add_paths,
    batches,
    check_hypothesis,
    check_outputs,
    command_parser,
    count_left_out,
    describe,
    finish,
    name_models,
    numbers,
    positive,
    print_left_out,
    translators,
)
from fairseq_sparse.errors import AnalysisError
from fairseq_sparse.files import write_json

# The steps that are measured, by the value of --steps.
STEPS = {
    "references": ("references",),
    "decoding": ("translations",),
    "both": ("references", "translations"),
}
NO_CURVE = (
    "no logit_norm in it; fairseq-train writes it with --criterion entmax_loss or alpha_relu_loss"
)


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = command_parser("analyze output", __doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    add_empty(commands)
    add_support(commands)
    text = "list the possible tokens at each step of a sentence"
    add_alternatives(add_command(commands, "alternatives", run_alternatives, text))
    text = "draw the translations of nonzero probability as a tree"
    add_tree(add_command(commands, "tree", run_tree, text))
    options = parser.parse_args(arguments)
    options.subset = list(dict.fromkeys(options.subset or ["test"]))
    parser = commands.choices[options.command]
    name_models(parser, options)
    if len(getattr(options, "log", [])) not in (0, len(options.path)):
        parser.error("--log: give as many as --path has models")
    if options.command == "support":
        if options.steps == "references" and options.beam is not None:
            parser.error("--beam is that of --steps decoding; --beams are those of the search")
        options.beam = options.beam or 5
    if options.command == "alternatives":
        check_hypothesis(parser, options)
    check_outputs(parser, options, "json")
    return options


def add_command(commands, name: str, run, description: str) -> argparse.ArgumentParser:
    """Add a subcommand with the options that all of them have."""
    parser = commands.add_parser(name, help=description, description=description)
    parser.set_defaults(run=run)
    parser.add_argument("data", metavar="DATA", help="folder that fairseq-preprocess made")
    add_paths(parser)
    parser.add_argument(
        "--subset",
        type=lambda text: text.split(","),
        action="extend",
        metavar="NAME,...",
        help="parts of the data (default: test)",
    )
    add_max_tokens(parser)
    parser.add_argument("--cpu", action="store_true", help="do not use a GPU")
    add_json(parser)
    return parser


def add_limit(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--sentences", type=positive, metavar="N", help="the first N of each part (default: all)"
    )


def add_empty(commands) -> None:
    parser = add_command(
        commands, "empty", run_empty, "count how often the empty translation beats all of the beam"
    )
    add_limit(parser)
    parser.add_argument(
        "--beam", type=positive, default=5, metavar="N", help="beam size (default: 5)"
    )


def add_support(commands) -> None:
    parser = add_command(
        commands,
        "support",
        run_support,
        "count the tokens, and hypotheses, of nonzero probability",
    )
    add_limit(parser)
    parser.add_argument(
        "--steps",
        choices=STEPS,
        default="references",
        help="steps to measure: those of the references (teacher-forced), of the model's "
        "translations, or both (default: references)",
    )
    parser.add_argument(
        "--beam",
        type=positive,
        metavar="N",
        help="beam size for --steps decoding (default: 5); --beams are those of the search",
    )
    parser.add_argument(
        "--beams",
        type=numbers,
        default=[1, 5, 10],
        metavar="N,...",
        help="search the first subset with these beam sizes (default: 1,5,10)",
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
    parser.add_argument("--plots", type=Path, metavar="DIR", help="draw PNG and SVG pictures")


def limit(options: argparse.Namespace):
    return range(options.sentences) if options.sentences else None


def run_empty(options: argparse.Namespace) -> tuple[dict, str]:
    from fairseq_sparse.measure.output.empty_translations import (
        count_empty_translations,
        empty_table,
        scores_to_compare,
    )
    from fairseq_sparse.tables.formats import format_table

    rows = []
    for translator in translators(options, limit(options)):
        for subset in options.subset:
            for name, scored in scores_to_compare(translator).items():
                data = batches(scored, subset, options, f"beam {options.beam}, {name}")
                found = count_empty_translations(scored, data, options.beam)
                left_out = count_left_out(translator, subset, found["sentences"])
                print_left_out(left_out)
                counts = {"left_out": left_out, "scores": name}
                rows.append({**describe(translator, subset), **counts, **found})
    result = {"data": options.data, "beam": options.beam, "rows": rows}
    return result, format_table(*empty_table(rows))


def run_support(options: argparse.Namespace) -> tuple[dict, str]:
    from fairseq_sparse.measure.output.output_statistics import (
        certified_table,
        output_table,
        training_table,
    )
    from fairseq_sparse.plots.output_plots import save_plots
    from fairseq_sparse.plots.pictures import prepare_plots
    from fairseq_sparse.tables.formats import format_table

    if options.plots:
        prepare_plots(options.plots)
    curves = training_curves(options)
    rows, searched = [], []
    for translator in translators(options, limit(options)):
        for subset in options.subset:
            rows += statistics_of_steps(translator, subset, options)
        if options.beams:
            searched.append(certify(translator, options))
    tables = [format_table(*output_table(rows))]
    if searched:
        tables.append(certified_table(searched))
    if curves:
        tables.append(training_table(curves))
    if options.plots:
        tables.append("\n".join(map(str, save_plots(options.plots, rows, curves))))
    result = {"data": options.data, "forced": rows, "searched": searched, "training": curves}
    return result, "\n\n".join(tables)


def statistics_of_steps(translator, subset: str, options: argparse.Namespace) -> list[dict]:
    """Return the statistics of the steps of the references, of the model's translations, or of
    both."""
    from fairseq_sparse.measure.output.output_statistics import (
        follow_translations,
        force_references,
    )

    rows = []
    for source in STEPS[options.steps]:
        data = batches(translator, subset, options, source)
        if source == "references":
            found, sentences = force_references(translator, data, subset)
        else:
            found, sentences = follow_translations(translator, data, subset, options.beam)
        left_out = count_left_out(translator, subset, sentences)
        print_left_out(left_out)
        counts = {"of": source, "sentences": sentences, "left_out": left_out}
        rows.append({**describe(translator, subset), **counts, **found})
    return rows


def certify(translator, options: argparse.Namespace) -> dict:
    """Return how often each beam size proves its result, on the first part of the data."""
    from fairseq_sparse.measure.output.output_statistics import count_certified

    subset, beams = options.subset[0], {}
    for beam in options.beams:
        label = f"beam {beam}"
        data = batches(translator, subset, options, label) if translator.is_sparse else []
        beams[str(beam)] = count_certified(translator, data, beam)
    return {**describe(translator, subset), "beams": beams}


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
    result, text = options.run(options)
    if options.json:
        write_json(options.json, {"command": options.command, **result})
    print(text)


def main(arguments: list[str] | None = None) -> int:
    return finish("analyze output", run, parse_arguments(arguments))

"""Translate typed sentences, and show what else the model could have said.

For each sentence: the translation that beam search finds, its probability, whether it is proven to
be the best of all or the only one (of at least one token: the empty translation is not searched
for), and the tokens of nonzero probability at each of its steps.
--plots draws all translations of nonzero probability as a tree.

MODEL is a folder with model.pt, the dictionaries and, for text split by subword-nmt, bpecodes; that
of a run or a --save-dir, whose data are still there; or one that fairseq-preprocess made, with
--path. Without TEXT, sentences are read from standard input, one a line.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairseq_sparse.commands.common import (
    add_plots,
    command_parser,
    prepare_plots,
    refuse_alone,
    write_plots,
)
from fairseq_sparse.commands.models import add_tokenizer
from fairseq_sparse.commands.values import positive
from fairseq_sparse.errors import AnalysisError

if TYPE_CHECKING:
    from fairseq_sparse.measure.translator import Translator


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = command_parser("translate", __doc__)
    parser.add_argument("model", metavar="MODEL", type=Path)
    parser.add_argument("text", metavar="TEXT", nargs="*", help="sentences, each in quotes")
    text = "checkpoint (default: MODEL/model.pt, or the one that a run would be measured by)"
    parser.add_argument("--path", metavar="CKPT", help=text)
    parser.add_argument("--beam", type=positive, default=5, metavar="N", help="(default: 5)")
    parser.add_argument(
        "--exact", action="store_true", help="look for the most probable translation of all"
    )
    parser.add_argument(
        "--nodes",
        type=positive,
        default=1000,
        metavar="N",
        help="prefixes that --exact may expand, and that the tree shows (default: 1000)",
    )
    parser.add_argument(
        "--top", type=positive, default=5, metavar="N", help="tokens shown per step (default: 5)"
    )
    add_tokenizer(parser)
    parser.add_argument("--cpu", action="store_true", help="do not use a GPU")
    add_plots(parser)
    options = parser.parse_intermixed_args(arguments)
    refuse_alone(parser, options, "nodes", "exact", "plots")
    return options


def run(options: argparse.Namespace) -> None:
    from fairseq_sparse.measure.translator import load_translator
    from fairseq_sparse.measure.typed import typed_batch

    prepare_plots(options)
    if not options.model.is_dir():
        raise AnalysisError(f"{options.model} is no folder: name that of a model first")
    typed = "" if options.text else sys.stdin.read().removeprefix("\ufeff")
    sentences = options.text or [line for line in typed.split("\n") if line.strip()]
    if not sentences:
        raise AnalysisError("no sentence: give it in quotes, or on standard input")
    path, data = find_model(options)
    # 1.5-ReLU gives weights; divided by their sum they are probabilities.
    translator = load_translator(path, data, options.cpu).normalised()
    figures = {}
    for number, sentence in enumerate(sentences, start=1):
        sample = typed_batch(translator, [sentence], tokenizer=options.tokenizer)
        print(f"{sentence}\n{translation(translator, sample, options)}\n")
        if options.plots:
            name = f"tree-{number}" if len(sentences) > 1 else "tree"
            figures[name] = picture(translator, sample, options.nodes)
    if options.plots:
        write_plots(figures, options)


def find_model(options: argparse.Namespace) -> tuple[str, str]:
    """Return the checkpoint, and the folder with its dictionaries."""
    from fairseq_sparse.measure.run_folders import find_checkpoint, find_data, find_runs

    own = options.model / "model.pt"
    try:
        path = options.path or str(own if own.is_file() else find_checkpoint(options.model))
    except AnalysisError as error:
        raise AnalysisError(f"{options.model} has no model: give --path CKPT") from error
    if any(options.model.glob("dict.*.txt")):
        return path, str(options.model)
    first = Path(path if Path(path).is_file() else path.split(":")[0])
    remedy = f"name its folder in place of {options.model}, and give --path CKPT"
    return path, find_data(find_runs([first]), None, remedy)


def translation(translator: Translator, sample: dict[str, Any], options) -> str:
    """Return the translation of a batch of one sentence, and a table of its steps."""
    from fairseq_sparse.measure.output.alternatives import find_alternatives
    from fairseq_sparse.measure.translator import search, with_targets
    from fairseq_sparse.measure.typed import find_codes, text_encoder
    from fairseq_sparse.tables.formats import format_table
    from fairseq_sparse.tables.sentences import number_text

    dictionary, task = translator.task.target_dictionary, translator.task
    beam = search(translator, [sample], options.beam, options.beam, options.exact * options.nodes)
    ((_, (found,)),) = list(beam)
    best = found[0]["tokens"]
    net_input, target = with_targets(sample["net_input"], [best], dictionary)
    forced = {**sample, "net_input": net_input, "target": target}
    (steps,) = find_alternatives(translator, [forced], "typed", options.top)
    codes = find_codes(task.cfg.data, task.cfg.target_lang)
    encoder = text_encoder(task.cfg.target_lang, options.tokenizer, codes)
    rows = []
    for step in steps["steps"]:
        others = [row for row in step["alternatives"] if not row["given"]]
        texts = [f"{row['token']} {number_text(row['p'])}" for row in others]
        texts += [f"{step['left_out']:,} more"] if step["left_out"] else []
        rows.append([step["token"], number_text(step["p"]), f"{step['nonzeros']:,}"])
        rows[-1].append(", ".join(texts))
    header = ["token", "p", "possible", "others"]
    text = encoder.decode(dictionary.string(best))
    return f"{text}\n{proof(found, steps, translator)}\n\n{format_table(header, rows)}"


def proof(found: list[dict[str, Any]], steps: dict[str, Any], translator: Translator) -> str:
    """Say how probable a translation is, and what the search has proven about it."""
    from math import exp

    from fairseq_sparse.tables.sentences import number_text

    log_p, words = steps["log_p"], ""
    if log_p is not None:  # exp is 0 for what is possible, but hardly
        words = f"p = {number_text(exp(log_p))}; " if exp(log_p) else f"log p = {log_p:.1f}; "
    best = found[0]
    if best.get("incomplete"):
        return "no complete translation was found: this is the most probable beginning of one"
    if best.get("exact"):
        only = f"one of {len(found)} translations" if len(found) > 1 else "the only translation"
        return f"{words}{only} of at least one token with nonzero probability: proven"
    if best.get("optimal"):
        return f"{words}no other translation of at least one token scores better: proven"
    if not translator.is_sparse:
        return f"{words}every other text has a probability above 0, too"
    return f"{words}nothing is proven: try --exact"


def picture(translator: Translator, sample: dict[str, Any], nodes: int):
    """Draw the translations of nonzero probability of a batch of one sentence."""
    from fairseq_sparse.measure.output.alternatives import source_texts
    from fairseq_sparse.measure.output.support_tree import trees_of
    from fairseq_sparse.plots.support_tree import draw_tree

    ((_, tree),) = trees_of(translator, sample, nodes)
    (source,) = source_texts(translator, sample).values()
    return draw_tree(tree, 0.01, source)

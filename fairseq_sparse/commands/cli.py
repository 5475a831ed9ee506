"""The command ``fairseq-sparse``: it finds the subcommand's module and calls its ``main``.

A module is loaded when its subcommand runs, and loads torch and fairseq only after it has parsed
its arguments, if it needs them at all.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import warnings
from collections.abc import Sequence

import fairseq_sparse
from fairseq_sparse.commands import common

# Libraries that log what they load; only their warnings are shown.
QUIET = ("fairseq", "fairseq_sparse", "matplotlib", "sacrebleu")

# Subcommands and their descriptions. "analyze output" is in the module analyze_output.
COMMANDS = {
    "run": "prepare data, train, decode and score, by the recipe of a data set",
    "reproduce": "train the models behind a table or figure of a paper, and make it",
    "sweep": "train a grid of alphas with several seeds and their ensembles, and compare them",
    "ensemble": "decode the test set with several trained models together, and score it",
    "compare-mbr": "compare minimum Bayes risk decoding of finished runs with beam search",
    "average": "average the parameters of several checkpoints into one",
    "export": "write a softmax model as a checkpoint of stock fairseq",
    "rescore": "score the candidates of another decoder, and put the best first",
    "recover": "repair a run that was killed while it saved, so that it can resume",
    "score": "score fairseq-generate's output with cased sacreBLEU",
    "mbr": "choose from samples by minimum Bayes risk, and compare with beam search",
    "compare": "show sentences that one system translates better, side by side",
    "analyze output": "measure the support and empty translations, list alternatives, draw trees",
    "analyze attention": "measure sparsity, null attention and diversity of the heads",
    "analyze alignment": "measure precision, recall and error rate of word alignments",
    "analyze nulls": "rank sentence pairs by null attention, to find bad ones",
    "analyze samples": "measure repetition and diversity of samples",
    "align": "extract word alignments from cross-attention, in Pharaoh form",
    "draw attention": "draw the attention in one sentence",
    "draw mappings": "draw alpha-ReLU or alpha-entmax for several alphas",
    "report": "compare trained models in one HTML page",
    "table results": "print one Markdown table of the results of several runs",
    "table sizes": "count parameters and operations of models, by kind of attention",
    "table thresholds": "print thresholds of 1.5-entmax in untrained models",
    "sheets make": "make sheets on which two annotators judge translations",
    "sheets score": "score the completed sheets, and measure agreement",
    "sheets pairs": "draw pairs of a ranking by null attention for a judge, and score them",
    "corpus download": "download a file, resume it, and check its checksum",
    "corpus extract": "extract the sentences of a corpus from its archives",
    "corpus clean": "leave out unfit training pairs, hold out pairs, join paragraphs",
    "corpus split": "split pairs of which many share a sentence",
    "corpus inflection": "make character data of CoNLL-SIGMORPHON 2018, task 1",
    "corpus batch-size": "find --max-tokens and --update-freq for a number of target tokens",
    "score-inflection": "score inflected forms as the shared task does",
    "flags": "list every flag that fairseq's commands take with --user-dir",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``fairseq-sparse`` and return its exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    for length in (1, 2):
        if " ".join(words[:length]) in COMMANDS:
            return run(" ".join(words[:length]), words[length:])
    group = words[0] if words and any(name.startswith(f"{words[0]} ") for name in COMMANDS) else ""
    parser = _parser(group)
    parser.parse_args(words[1:] if group else words)  # --help and --version end here
    parser.error("name a command first")


def run(command: str, arguments: Sequence[str]) -> int:
    """Run a subcommand in this process and return its exit status."""
    warnings.filterwarnings("ignore", category=UserWarning, module="torch")

    def main() -> int:
        module = importlib.import_module(f"{__package__}.{module_name(command)}")
        return module.main(list(arguments))

    return common.exit_status(main, QUIET, name=common.program(command))


def module_name(command: str) -> str:
    """Return the name of a subcommand's module."""
    return command.replace(" ", "_").replace("-", "_")


def _parser(group: str) -> argparse.ArgumentParser:
    """Return the parser that lists all subcommands, or those of a group, and refuses others."""
    names = [name for name in COMMANDS if not group or name.startswith(f"{group} ")]
    width = max(map(len, names)) + 2
    lines = [f"  {name:{width}}{COMMANDS[name]}" for name in names]
    parser = argparse.ArgumentParser(
        prog=f"fairseq-sparse {group}".strip(),
        description="Analyses and tools for fairseq models with sparse outputs and attention.",
        epilog="\n".join(["commands:", *lines, "", "Each command has --help."]),
        usage=f"fairseq-sparse {group}{' ' * bool(group)}COMMAND ...",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    choices = [name.removeprefix(group).split()[0] for name in names]
    parser.add_argument(
        "command", metavar="COMMAND", choices=list(dict.fromkeys(choices)), help=argparse.SUPPRESS
    )
    if not group:
        parser.add_argument(
            "--version", action="version", version=f"fairseq_sparse {fairseq_sparse.__version__}"
        )
    return parser

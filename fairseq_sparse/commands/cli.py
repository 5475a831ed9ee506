"""The command ``fairseq-sparse``: it finds the subcommand's module and runs it.

A module has ``parse_arguments``, and ``run``, which prints everything. It is loaded when its
subcommand runs, and loads torch and fairseq only in ``run``, if it needs them at all.
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

# The commands by subject, each with a description. "analyze nulls" is in the module analyze_nulls.
GROUPS = {
    "Recipes": {
        "run": "prepare data, train, decode and score, by the recipe of a data set",
        "reproduce": "train the models behind a table or figure of a paper, and make it",
        "sweep": "train a grid of alphas with several seeds and their ensembles, and compare them",
        "flags": "list every flag that fairseq's commands take with --user-dir",
    },
    "Translate and search": {
        "translate": "translate typed sentences, and show what else was possible",
        "ensemble": "decode the test set with several trained models together, and score it",
        "rescore": "score the candidates of another decoder, and put the best first",
        "mbr": "choose from samples by minimum Bayes risk, and compare with beam search",
        "calibrate": "find the temperature at which references are possible, by a wanted share",
        "compare-mbr": "compare minimum Bayes risk decoding of finished runs with beam search",
    },
    "Measure": {
        "evaluate": "decode, score, validate and analyse a checkpoint in one go",
        "score": "score translations with sacreBLEU, and test the difference from a baseline",
        "score-inflection": "score inflected forms as the shared task does",
        "align": "extract word alignments from cross-attention, in Pharaoh form",
        "analyze support": "count the tokens, and translations, of nonzero probability",
        "analyze empty": "count how often the empty translation beats all of the beam",
        "analyze alternatives": "list the tokens of nonzero probability at each step of a sentence",
        "analyze attention": "measure sparsity, null attention and diversity of the heads",
        "analyze alignment": "measure precision, recall and error rate of word alignments",
        "analyze nulls": "rank sentence pairs by null attention, to find bad ones",
        "analyze samples": "measure repetition and diversity of samples",
    },
    "Draw": {
        "draw attention": "draw the attention in one sentence",
        "draw tree": "draw all translations of nonzero probability of a sentence as a tree",
        "report": "compare trained models in one HTML page",
    },
    "Compare": {
        "compare": "score several systems, and show sentences that one translates better",
        "table results": "print one table of the results of several runs",
    },
    "Checkpoints": {
        "average": "average the parameters of several checkpoints into one",
        "export": "convert a model for stock fairseq or CTranslate2",
        "recover": "repair a run that was killed while it saved, so that it can resume",
    },
    "People": {
        "sheets make": "make sheets on which two annotators judge translations",
        "sheets score": "score the completed sheets, and measure agreement",
        "sheets draw-pairs": "draw pairs of a ranking by null attention for a judge",
        "sheets score-pairs": "score the pairs that a judge has marked",
    },
    "Corpora": {
        "corpus download": "download a file, resume it, and check its checksum",
        "corpus extract": "extract the sentences of a corpus from its archives",
        "corpus clean": "leave out unfit training pairs, hold out pairs, join paragraphs",
        "corpus split": "split pairs of which many share a sentence",
        "corpus inflection": "make character data of CoNLL-SIGMORPHON 2018, task 1",
    },
}
COMMANDS = {name: text for commands in GROUPS.values() for name, text in commands.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``fairseq-sparse`` and return its exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    for length in (1, 2):
        if " ".join(words[:length]) in COMMANDS:
            return run(" ".join(words[:length]), words[length:])
    group = words[0] if words and any(name.startswith(f"{words[0]} ") for name in COMMANDS) else ""
    parser = _parser(group)
    rest = words[1:] if group else words
    if not rest:
        parser.print_help(sys.stderr)
        return 2
    # --help and --version end here, unless they follow what is no command.
    wrong = parser.parse_known_args(rest)[1] if rest[0].startswith("-") else rest
    name = f"{group} {wrong[0]}".strip()
    parser.error(f"there is no command {name}; {_hint(' '.join(words[:2]), name)}")


def run(command: str, arguments: Sequence[str]) -> int:
    """Run a subcommand in this process and return its exit status."""
    warnings.filterwarnings("ignore", category=UserWarning, module="torch")

    def main() -> int:
        module = importlib.import_module(f"{__package__}.{module_name(command)}")
        options = module.parse_arguments(list(arguments))
        return common.report_errors(common.program(command), module.run, options)

    return common.exit_status(main, QUIET, name=common.program(command))


def module_name(command: str) -> str:
    """Return the name of a subcommand's module."""
    return command.replace(" ", "_").replace("-", "_")


def _hint(*names: str) -> str:
    """Ask whether the commands whose names are closest to these were meant."""
    from difflib import get_close_matches

    known = list(dict.fromkeys([*COMMANDS, *(name.split()[0] for name in COMMANDS)]))
    found = (name for name in names for name in get_close_matches(name, known, n=2, cutoff=0.7))
    close = list(dict.fromkeys(found))
    return f"did you mean {' or '.join(close)}?" if close else "see --help"


def _parser(group: str) -> argparse.ArgumentParser:
    """Return the parser whose help lists all commands by subject, or those of a group."""
    width = max(map(len, COMMANDS)) + 2
    parts = []
    for subject, commands in GROUPS.items():
        lines = [
            f"  {name:{width}}{text}"
            for name, text in commands.items()
            if not group or name.startswith(f"{group} ")
        ]
        if lines:
            parts.append("\n".join([*([] if group else [f"{subject}:"]), *lines]))
    parser = argparse.ArgumentParser(
        prog=f"fairseq-sparse {group}".strip(),
        description=None
        if group
        else "Recipes, analyses and tools for fairseq models with sparse outputs and attention.",
        epilog="\n\n".join([*parts, "Each command has --help."]),
        usage=f"fairseq-sparse {group}{' ' * bool(group)}COMMAND ...",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    if not group:
        parser.add_argument(
            "--version", action="version", version=f"fairseq_sparse {fairseq_sparse.__version__}"
        )
    return parser

#!/usr/bin/env python3
"""Compare translations and supports of models with the truth of the synthetic corpus.

The corpus lists all correct translations of its test sentences. Each model translates the sources;
then it is given every prefix of a correct translation, and its support, the tokens of nonzero
probability, is compared with the tokens that can follow. DATA has raw/, made by make_corpus.py, and
prepared/, made by `fairseq-sparse run quickstart`; a RUN_DIR has average.pt.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

# A checkout works without being installed.
ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

from command_line import (  # noqa: E402
    exit_status,
    lines_of,
    output_file,
    positive,
    report_errors,
    script_parser,
    with_progress,
)

if TYPE_CHECKING:
    from torch import Tensor

    from fairseq_sparse.measure.translator import Translator

Target = tuple[list[int], float]  # BPE units, EOS at the end, and probability
PARTS = ("test", "test_unseen_pairs")
SHARES = {
    "support_exact": "exact support (%)",
    "support_covers": "covers (%)",
    "wrong_mass": "wrong mass (%)",
    "distance": "distance (%)",
}


class Part(NamedTuple):
    """A part of the corpus: for each sentence the source and the correct translations."""

    name: str
    sources: list[Tensor]  # BPE units, EOS at the end
    targets: list[list[Target]]
    texts: list[dict[str, float]]  # tokens separated by spaces, with probabilities
    references: list[str]  # plain text


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN_DIR")
    parser.add_argument("--data", required=True, type=Path, help="with raw/ and prepared/")
    parser.add_argument(
        "--parts",
        nargs="+",
        default=list(PARTS),
        metavar="PART",
        help=f"of the corpus (default: {' '.join(PARTS)})",
    )
    parser.add_argument(
        "--sentences", type=positive, metavar="N", help="only the first N of each part"
    )
    parser.add_argument(
        "--beam", type=positive, default=5, metavar="N", help="beam size (default: 5)"
    )
    parser.add_argument(
        "--max-tokens",
        type=positive,
        default=2000,
        metavar="N",
        help="source tokens in a batch (default: 2000)",
    )
    parser.add_argument("--cpu", action="store_true", help="do not use a GPU")
    parser.add_argument(
        "--json", type=output_file, metavar="OUT", help="write all numbers to this file"
    )
    return parser.parse_args(arguments)


def read_parts(options: argparse.Namespace) -> list[Part]:
    from fairseq.data import Dictionary
    from subword_nmt.apply_bpe import BPE

    from fairseq_sparse.errors import AnalysisError

    prepared, raw = options.data / "prepared", options.data / "raw"
    german, english = (
        Dictionary.load(str(prepared / "bin" / f"dict.{side}.txt")) for side in ("de", "en")
    )
    with open(prepared / "bpe.codes", encoding="utf-8") as handle:
        bpe = BPE(handle)

    def encode(text: str, words: Dictionary) -> Tensor:
        return words.encode_line(bpe.process_line(text), add_if_not_exist=False).long()

    def read(name: str) -> Part:
        path = raw / f"{name}.targets.jsonl"
        with open(path, encoding="utf-8") as handle:
            records = [json.loads(line) for line in handle]
        references = lines_of(raw / f"{name}.en")
        if not records or len(records) != len(references):
            raise AnalysisError(
                f"{path} has {len(records)} lines but {name}.en has {len(references)}: "
                "make the corpus again"
            )
        records = records[: options.sentences]
        texts = [{item["text"]: item["probability"] for item in x["targets"]} for x in records]
        targets = [
            [(encode(text, english).tolist(), p) for text, p in correct.items()]
            for correct in texts
        ]
        sources = [encode(record["source"], german) for record in records]
        return Part(name, sources, targets, texts, references[: len(records)])

    return [read(name) for name in dict.fromkeys(options.parts)]


def load_run(folder: Path, options: argparse.Namespace) -> Translator:
    """Load the model of a run under its name in tables."""
    from fairseq_sparse.measure.translator import load_translator

    summary = folder / "summary.json"
    content = json.loads(summary.read_text(encoding="utf-8")) if summary.is_file() else {}
    name = content.get("variant_name") or content.get("variant", folder.name)
    data = options.data / "prepared" / "bin"
    return load_translator(str(folder / "average.pt"), str(data), options.cpu, name=name)


def batches_of(part: Part, translator: Translator, max_tokens: int) -> Iterable[dict[str, Any]]:
    """Return the sources in batches, without targets."""
    from fairseq_sparse.errors import AnalysisError

    lengths = [len(source) for source in part.sources]
    targets = [len(tokens) for correct in part.targets for tokens, _ in correct]
    limits = translator.models[0].max_positions()
    for length, limit in zip((max(lengths), max(targets)), limits, strict=True):
        if length > limit:
            raise AnalysisError(
                f"{translator.name} takes {limit} tokens, but {part.name} has sentences of {length}"
            )
    task = translator.task
    dataset = task.build_dataset_for_inference(part.sources, lengths)
    try:
        return task.get_batch_iterator(
            dataset, max_tokens=max_tokens, disable_iterator_cache=True
        ).next_epoch_itr(shuffle=False)
    except AssertionError as error:
        raise AnalysisError(f"--max-tokens {max_tokens}: {error}") from error


def compare_steps(
    translator: Translator, net_input: dict[str, Tensor], targets: list[list[Target]]
) -> Iterator[dict[str, Tensor]]:
    """Compare all steps of the correct translations of a batch with the truth, chunk by chunk.

    Args:
        translator: the model.
        net_input: fairseq's `src_tokens` and `src_lengths`.
        targets: the correct translations of each source.
    """
    import torch

    from fairseq_sparse.measure.translator import forced_steps, with_targets
    from support import compare, steps_of

    dictionary = translator.task.target_dictionary
    source = [number for number, correct in enumerate(targets) for _ in correct]
    repeated = {name: value[source] for name, value in net_input.items()}
    tokens = [torch.tensor(tokens) for correct in targets for tokens, _ in correct]
    repeated, target = with_targets(repeated, tokens, dictionary)
    steps, first = [], 0
    is_step = torch.zeros(target.shape, dtype=torch.bool)
    for correct in targets:
        for step in steps_of(correct):
            is_step[first + step.target, step.position] = True
            steps.append(step)
        first += len(correct)
    target = target.masked_fill(~is_step.to(target.device), dictionary.pad())
    done = 0
    for chunk in forced_steps(translator.models, repeated, target, dictionary.pad()):
        size = len(chunk.token)
        yield compare(chunk.log_p, steps[done : done + size])
        done += size


def check(translator: Translator, part: Part, options: argparse.Namespace) -> dict[str, Any]:
    """Translate a part of the corpus with a model and compare its steps with the truth."""
    import torch
    from fairseq import utils

    from fairseq_sparse.measure.translator import search

    words = translator.task.target_dictionary
    cuda = next(translator.models[0].parameters()).is_cuda
    translations = [""] * len(part.sources)
    compared: list[dict[str, Tensor]] = []
    batches = batches_of(part, translator, options.max_tokens)
    batches = with_progress(batches, f"{translator.name}, {part.name}")
    samples = (utils.move_to_cuda(sample) if cuda else sample for sample in batches)
    for sample, found in search(translator, samples, options.beam):
        numbers = sample["id"].tolist()
        for number, hypotheses in zip(numbers, found, strict=True):
            translations[number] = words.string(hypotheses[0]["tokens"], "subword_nmt")
        targets = [part.targets[number] for number in numbers]
        compared += compare_steps(translator, sample["net_input"], targets)
    values = {key: torch.cat([chunk[key] for chunk in compared]) for key in compared[0]}
    if values["distance"].isnan().any():
        raise ValueError(f"{translator.name}: probabilities are NaN, the parameters are no good")
    is_choice = values["correct"] > 1
    pairs = zip(translations, part.texts, strict=True)
    return {
        "run": str(Path(translator.checkpoints[0]).parent),
        "variant": translator.name,
        "bleu": bleu(translations, part)["bleu"],
        "correct_translations": sum(text in texts for text, texts in pairs) / len(translations),
        "steps": means(values),
        "choices": means({key: value[is_choice] for key, value in values.items()}),
    }


def means(values: dict[str, Tensor]) -> dict[str, Any]:
    """Return the number of steps and the mean of each value."""
    count = len(values["correct"])
    return {
        "number": count,
        **{key: value.mean().item() if count else None for key, value in values.items()},
    }


def bleu(translations: list[str], part: Part) -> dict[str, Any]:
    """Score tokenised translations as fairseq-sparse score does."""
    from sacremoses import MosesDetokenizer

    from fairseq_sparse.commands.score import score

    detokenizer = MosesDetokenizer(lang="en")
    plain = [detokenizer.detokenize(text.split()) for text in translations]
    return score(plain, [part.references])


def check_all(options: argparse.Namespace) -> dict[str, Any]:
    parts = read_parts(options)
    result: dict[str, Any] = {"corpus": "synthetic", "beam": options.beam, "parts": {}}
    for part in parts:
        ceiling = bleu([max(texts, key=texts.__getitem__) for texts in part.texts], part)
        result["bleu_signature"] = ceiling["signature"]
        result["parts"][part.name] = {
            "sentences": len(part.sources),
            "ceiling_bleu": ceiling["bleu"],
            "runs": [],
        }
    for folder in options.runs:
        translator = load_run(folder, options)
        for part in parts:
            result["parts"][part.name]["runs"].append(check(translator, part, options))
    return result


def report(name: str, part: dict[str, Any]) -> str:
    """Return the table of a part of the corpus."""
    from fairseq_sparse.tables.formats import format_table

    def both(run: dict[str, Any], key: str, form: str = "{:.2f}", factor: int = 1) -> str:
        """Format the mean over all steps and the mean over those with a choice."""
        found = [run[steps][key] for steps in ("steps", "choices")]
        return " / ".join("-" if mean is None else form.format(factor * mean) for mean in found)

    rows = [
        [
            run["variant"],
            f"{run['bleu']:.1f}",
            f"{100 * run['correct_translations']:.1f}",
            *(both(run, key, "{:.1f}", 100) for key in SHARES),
            both(run, "support"),
        ]
        for run in part["runs"]
    ]
    first = part["runs"][0]
    support = f"support size (truth: {both(first, 'correct')})"
    header = ["variant", "BLEU", "correct translations (%)", *SHARES.values(), support]
    return (
        f"Synthetic corpus, {name}: {part['sentences']:,} sentences, {first['steps']['number']:,} "
        f"steps, {first['choices']['number']:,} of them with a choice. Always giving the most "
        f"probable correct translation has BLEU {part['ceiling_bleu']:.1f}.\n\n"
        f"{format_table(header, rows)}\n"
    )


LEGEND = """\
A step is a prefix of a correct translation, given to the model; all steps have the same weight.
x / y: the mean over all steps / over those with a choice, where more than one BPE unit can follow.
Exact support: the units of nonzero probability are exactly the correct ones. Covers: they include
all correct ones. Wrong mass: probability of the incorrect units. Distance: total variation from the
true distribution. For wrong mass and distance, probabilities are scaled to sum to 1."""


def print_tables(options: argparse.Namespace) -> None:
    from fairseq_sparse.files import write_json

    try:
        result = check_all(options)
    except KeyError as error:
        raise ValueError(f"the corpus has no {error}: make it again") from error
    if options.json:
        write_json(options.json, result)
    for name, part in result["parts"].items():
        print(report(name, part))
    print(f"{LEGEND}\nBLEU: {result['bleu_signature']}")


def main(arguments: list[str] | None = None) -> int:
    return report_errors("check_support", print_tables, parse_arguments(arguments))


if __name__ == "__main__":
    sys.exit(exit_status(main))

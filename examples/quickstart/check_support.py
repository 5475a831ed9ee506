#!/usr/bin/env python3
"""Compare translations and supports of models with the truth of the synthetic corpus.

The corpus lists all correct translations of its test sentences. Each model translates the sources;
then it is given every prefix of a correct translation, and its support, the tokens of nonzero
probability, is compared with the tokens that can follow. DATA has raw/, made by make_corpus.py, and
prepared/, made by `fairseq-sparse run quickstart`; a RUN_DIR is that of a finished run.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

# A checkout works without being installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from command_line import exit_status, lines_of, positive, report_errors, script_parser  # noqa: E402

if TYPE_CHECKING:
    from torch import Tensor

    from fairseq_sparse.measure.translator import Translator

PARTS = ("test", "test_unseen_pairs")
BEAM, MAX_TOKENS = 5, 2000
SHARES = {
    "support_exact": "exact support (%)",
    "support_covers": "covers (%)",
    "wrong_mass": "wrong mass (%)",
    "distance": "distance (%)",
}
LEGEND = """\
A step is a prefix of a correct translation, given to the model; all steps have the same weight.
x / y: the mean over all steps / over those with a choice, where more than one BPE unit can follow.
Exact support: the units of nonzero probability are exactly the correct ones. Covers: they include
all correct ones. Wrong mass: probability of the incorrect units. Distance: total variation from the
true distribution. For wrong mass and distance, probabilities are scaled to sum to 1."""


class Sentence(NamedTuple):
    """A test sentence: its source, all correct translations, and the one that was drawn."""

    source: Tensor  # BPE units, EOS at the end
    targets: list[tuple[list[int], float]]  # the same of the translations, and probabilities
    texts: dict[str, float]  # tokens separated by spaces, with probabilities
    reference: str  # plain text


class Step(NamedTuple):
    """A prefix of correct translations, and the truth about the next token.

    Attributes:
        target: number of the first translation that has this prefix.
        position: length of the prefix in tokens.
        following: the correct next tokens with their probabilities, which sum to 1.
    """

    target: int
    position: int
    following: dict[int, float]


def steps_of(targets: Sequence[tuple[Sequence[int], float]]) -> list[Step]:
    """Return the inner nodes of the trie of some translations: every prefix, once.

    Args:
        targets: tokens, EOS at the end, and probability of each translation.

    Returns:
        The steps, ordered by ``target`` and then ``position``.
    """
    following: dict[tuple[int, ...], dict[int, float]] = {}
    places = {}
    for number, (tokens, probability) in enumerate(targets):
        for position, token in enumerate(tokens):
            prefix = tuple(tokens[:position])
            places.setdefault(prefix, (number, position))
            masses = following.setdefault(prefix, {})
            masses[token] = masses.get(token, 0.0) + probability
    return [
        Step(*places[prefix], {token: p / sum(masses.values()) for token, p in masses.items()})
        for prefix, masses in following.items()
    ]


def compare(log_p: Tensor, steps: Sequence[Step]) -> dict[str, Tensor]:
    """Compare the probabilities of a model with the truth, step by step.

    Args:
        log_p: the model's log-probabilities of the next token, ``[steps, V]``, -inf where the
            probability is 0. Rows that do not sum to 1 (alpha-ReLU) are scaled to do so, but a row
            without any probability stays as it is.
        steps: the truth.

    Returns:
        fp64 tensors ``[steps]``, NaN where ``log_p`` has a NaN: ``support_exact`` (1 where the
        tokens of non-zero probability are exactly the correct ones, else 0), ``support_covers`` (1
        where all correct tokens are among them), ``wrong_mass`` (probability of the other tokens),
        ``distance`` (total variation from the truth: the probability that the correct tokens lack),
        and the numbers of tokens ``support`` and ``correct``.
    """
    import torch

    entries = [(row, *item) for row, step in enumerate(steps) for item in step.following.items()]
    rows, tokens, masses = (list(column) for column in zip(*entries, strict=True))
    truth = torch.zeros_like(log_p)
    truth[rows, tokens] = torch.tensor(masses, device=log_p.device, dtype=log_p.dtype)
    correct, support = truth > 0, log_p != -torch.inf
    p = log_p.exp()
    p = p / p.sum(1, keepdim=True).clamp(min=torch.finfo(p.dtype).tiny)
    values = {
        "support_exact": (support == correct).all(1),
        "support_covers": (support | ~correct).all(1),
        "wrong_mass": p.masked_fill(correct, 0.0).sum(1),
        "distance": (truth - p).clamp(min=0.0).sum(1),
        "support": support.sum(1),
        "correct": correct.sum(1),
    }
    nan = log_p.isnan().any(1)
    return {name: value.double().masked_fill(nan, torch.nan) for name, value in values.items()}


def read_part(data: Path, name: str, count: int | None) -> list[Sentence]:
    """Read the first ``count`` sentences of a part of the corpus; None for all."""
    from fairseq.data import Dictionary
    from subword_nmt.apply_bpe import BPE

    prepared, raw = data / "prepared", data / "raw"
    german, english = (
        Dictionary.load(str(prepared / "bin" / f"dict.{side}.txt")) for side in ("de", "en")
    )
    with open(prepared / "bpe.codes", encoding="utf-8") as handle:
        bpe = BPE(handle)

    def encode(text: str, words: Dictionary) -> Tensor:
        return words.encode_line(bpe.process_line(text), add_if_not_exist=False).long()

    sentences = []
    lines = lines_of(raw / f"{name}.targets.jsonl")[:count]
    references = lines_of(raw / f"{name}.en")[:count]
    for record, reference in zip(map(json.loads, lines), references, strict=True):
        texts = {item["text"]: item["probability"] for item in record["targets"]}
        targets = [(encode(text, english).tolist(), p) for text, p in texts.items()]
        sentences.append(Sentence(encode(record["source"], german), targets, texts, reference))
    return sentences


def load_run(folder: Path, options: argparse.Namespace) -> Translator:
    """Load the model of a run under its name in tables."""
    from fairseq_sparse.files import read_json
    from fairseq_sparse.measure.translator import load_translator

    summary = read_json(folder / "summary.json")
    name = summary.get("variant_name") or summary["variant"]
    data = str(options.data / "prepared" / "bin")
    return load_translator(str(folder / "average.pt"), data, options.cpu, name)


def compare_steps(
    translator: Translator, sample: dict[str, Any], sentences: list[Sentence]
) -> Iterator[dict[str, Tensor]]:
    """Compare all steps of the correct translations of a batch with the truth, chunk by chunk."""
    import torch

    from fairseq_sparse.measure.translator import forced_steps, with_targets

    dictionary = translator.task.target_dictionary
    source = [row for row, sentence in enumerate(sentences) for _ in sentence.targets]
    repeated = {name: value[source] for name, value in sample["net_input"].items()}
    tokens = [torch.tensor(tokens) for sentence in sentences for tokens, _ in sentence.targets]
    repeated, target = with_targets(repeated, tokens, dictionary)
    steps, first = [], 0
    is_step = torch.zeros_like(target, dtype=torch.bool)
    for sentence in sentences:
        for step in steps_of(sentence.targets):
            is_step[first + step.target, step.position] = True
            steps.append(step)
        first += len(sentence.targets)
    target = target.masked_fill(~is_step, dictionary.pad())
    rest = iter(steps)
    for chunk in forced_steps(translator.models, repeated, target, dictionary.pad()):
        yield compare(chunk.log_p, list(itertools.islice(rest, len(chunk.token))))


def check(translator: Translator, part: list[Sentence]) -> dict[str, Any]:
    """Translate a part of the corpus with a model and compare its steps with the truth."""
    import torch

    from fairseq_sparse.measure.translator import search

    task = translator.task
    lengths = [len(sentence.source) for sentence in part]
    dataset = task.build_dataset_for_inference([sentence.source for sentence in part], lengths)
    batches = task.get_batch_iterator(
        dataset, max_tokens=MAX_TOKENS, disable_iterator_cache=True
    ).next_epoch_itr(shuffle=False)
    translations = [""] * len(part)
    compared: list[dict[str, Tensor]] = []
    for sample, found in search(translator, map(translator.on_device, batches), BEAM):
        numbers = sample["id"].tolist()
        for number, hypotheses in zip(numbers, found, strict=True):
            tokens = hypotheses[0]["tokens"]
            translations[number] = task.target_dictionary.string(tokens, "subword_nmt")
        compared += compare_steps(translator, sample, [part[number] for number in numbers])
    values = {key: torch.cat([chunk[key] for chunk in compared]) for key in compared[0]}
    is_choice = values["correct"] > 1
    pairs = zip(translations, part, strict=True)
    return {
        "variant": translator.name,
        "bleu": bleu(translations, part)["bleu"],
        "correct_translations": sum(text in x.texts for text, x in pairs) / len(part),
        "numbers": (len(is_choice), int(is_choice.sum())),
        **{key: (x.mean().item(), x[is_choice].mean().item()) for key, x in values.items()},
    }


def bleu(translations: list[str], part: list[Sentence]) -> dict[str, Any]:
    """Score tokenised translations as fairseq-sparse score does."""
    from sacremoses import MosesDetokenizer

    from fairseq_sparse.commands.score import score

    detokenizer = MosesDetokenizer(lang="en")
    plain = [detokenizer.detokenize(text.split()) for text in translations]
    return score(plain, [[sentence.reference for sentence in part]])


def report(name: str, sentences: int, ceiling: float, runs: list[dict[str, Any]]) -> str:
    """Return the table of a part of the corpus."""
    from fairseq_sparse.tables.formats import format_table

    def both(run: dict[str, Any], key: str, form: str = "{:.2f}", factor: int = 1) -> str:
        """Format the mean over all steps and the mean over those with a choice."""
        return " / ".join(form.format(factor * mean) for mean in run[key])

    rows = [
        [
            run["variant"],
            f"{run['bleu']:.1f}",
            f"{100 * run['correct_translations']:.1f}",
            *(both(run, key, "{:.1f}", 100) for key in SHARES),
            both(run, "support"),
        ]
        for run in runs
    ]
    steps, choices = runs[0]["numbers"]
    support = f"support size (truth: {both(runs[0], 'correct')})"
    header = ["variant", "BLEU", "correct translations (%)", *SHARES.values(), support]
    return (
        f"Synthetic corpus, {name}: {sentences:,} sentences, {steps:,} steps, {choices:,} of them "
        "with a choice. Always giving the most probable correct translation has BLEU "
        f"{ceiling:.1f}.\n\n{format_table(header, rows)}\n"
    )


def run(options: argparse.Namespace) -> None:
    parts = {name: read_part(options.data, name, options.sentences) for name in PARTS}
    translators = [load_run(folder, options) for folder in options.runs]
    for name, part in parts.items():
        ceiling = bleu([max(x.texts, key=x.texts.__getitem__) for x in part], part)
        runs = [check(translator, part) for translator in translators]
        print(report(name, len(part), ceiling["bleu"], runs))
    print(f"{LEGEND}\nBLEU: {ceiling['signature']}")


def main(arguments: list[str] | None = None) -> int:
    parser = script_parser(__doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN_DIR")
    parser.add_argument("--data", required=True, type=Path, help="with raw/ and prepared/")
    text = "only the first N of each part"
    parser.add_argument("--sentences", type=positive, metavar="N", help=text)
    parser.add_argument("--cpu", action="store_true", help="do not use a GPU")
    return report_errors("check_support", run, parser.parse_args(arguments))


if __name__ == "__main__":
    sys.exit(exit_status(main))

"""Choose from samples of each sentence the one with the highest expected utility.

Reads the detokenised hypotheses (lines `D-ID`) of one or several runs of `fairseq-generate
--sampling --beam N --nbest N`; each run, with a --seed of its own, adds N samples per sentence. The
utility of a sample is the mean of its chrF (or BLEU) with each sample as the reference, by
sacreBLEU's sentence-level score. This is minimum Bayes risk decoding. The chosen samples are
written one per line, in the order of the test set.

With --reference, the result is scored. With --baseline, the translations of another system, one per
line, both are compared by sacreBLEU's paired bootstrap.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sacrebleu.metrics import BLEU, CHRF

from fairseq_sparse.commands.common import (
    add_json,
    check_outputs,
    command_parser,
    finish,
    output_file,
    positive,
    with_progress,
)
from fairseq_sparse.commands.score import TOKENIZE, read_lines
from fairseq_sparse.files import write_json, write_text

if TYPE_CHECKING:
    from fairseq_sparse.measure.text.minimum_bayes_risk import Candidate, Utility

UTILITIES = ("chrf", "bleu")


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = command_parser("mbr", __doc__)
    parser.add_argument(
        "samples", nargs="+", type=Path, metavar="SAMPLES", help="output of fairseq-generate"
    )
    parser.add_argument(
        "--output", type=output_file, required=True, metavar="OUT", help="file for the translations"
    )
    parser.add_argument("--utility", choices=UTILITIES, default="chrf", help="(default: chrf)")
    parser.add_argument(
        "--tokenize",
        choices=BLEU.TOKENIZERS,
        default=TOKENIZE,
        help=f"sacreBLEU's tokenizer for BLEU (default: {TOKENIZE})",
    )
    parser.add_argument(
        "--utilities",
        action="store_true",
        help="print the distinct samples of each sentence, best first: U-ID, expected utility, "
        "number of times drawn, text",
    )
    parser.add_argument("--reference", type=Path, help="raw references, one per line")
    parser.add_argument(
        "--baseline", type=Path, help="translations to compare the result with, one per line"
    )
    parser.add_argument(
        "--resamples",
        type=positive,
        default=1000,
        metavar="N",
        help="number of draws of the paired bootstrap (default: 1000)",
    )
    add_json(parser)
    options = parser.parse_args(arguments)
    if options.baseline and not options.reference:
        parser.error("--baseline needs --reference")
    check_outputs(parser, options, "output", "json")
    return options


def choose(samples: list[list[str]], utility: Utility) -> list[list[Candidate]]:
    """Rank the samples of each sentence, with a progress bar."""
    from fairseq_sparse.measure.text.minimum_bayes_risk import rank

    bar = with_progress(samples, "minimum Bayes risk", unit="sentence")
    return [rank(utility, sentence) for sentence in bar]


def compare(
    systems: dict[str, list[str]], reference: list[str], tokenize: str, resamples: int
) -> dict[str, Any]:
    """Score each system by corpus chrF and BLEU; test whether two differ by more than chance."""
    from fairseq_sparse.measure.text.paired_bootstrap import paired_test

    metrics = [CHRF(), BLEU(tokenize=tokenize, force=True)]
    if len(systems) == 1:
        ((system, hypotheses),) = systems.items()
        found = [metric.corpus_score(hypotheses, [reference]) for metric in metrics]
        signatures = [str(metric.get_signature()) for metric in metrics]
        names = [score.name for score in found]
        return {
            "scores": {system: {score.name: score.score for score in found}},
            "signatures": dict(zip(names, signatures, strict=True)),
        }
    results, tests = paired_test(list(systems.values()), reference, metrics, resamples)
    return {
        "scores": {
            system: {name: result[place].score for name, result in results.items()}
            for place, system in enumerate(systems)
        },
        "p": {name: result[1].p_value for name, result in results.items()},
        "signatures": tests,
    }


def describe(scored: dict[str, Any]) -> str:
    """Return the scores as text."""
    lines = [
        f"{system}: " + ", ".join(f"{name} = {score:.2f}" for name, score in scores.items())
        for system, scores in scored["scores"].items()
    ]
    if "p" in scored:
        lines.append("p of the difference: " + _list(scored["p"], "{} {:.4f}"))
    return "\n".join([*lines, _list(scored["signatures"], "{}: {}", "\n")])


def _list(values: dict[str, Any], form: str, between: str = ", ") -> str:
    return between.join(form.format(*item) for item in values.items())


def run(options: argparse.Namespace) -> None:
    from fairseq_sparse.measure.text import minimum_bayes_risk
    from fairseq_sparse.measure.text.fairseq_output import read_samples

    samples = read_samples(options.samples)
    texts = {
        name: read_lines(path, samples, options.samples[0])
        for name in ("reference", "baseline")
        if (path := getattr(options, name))
    }
    if options.utility == "bleu":
        utility = minimum_bayes_risk.bleu(options.tokenize)
    else:
        utility = minimum_bayes_risk.chrf()
    ranked = choose(samples, utility)
    best = [candidates[0] for candidates in ranked]
    hypotheses = [candidate.text for candidate in best]
    write_text(options.output, "".join(text + "\n" for text in hypotheses))  # in case scoring fails
    mean = sum(candidate.utility for candidate in best) / len(best)
    result: dict[str, Any] = {
        "utility": options.utility,
        "signature": utility.signature,
        "expected_utility": mean,
        "sentences": [
            {
                "samples": len(drawn),
                "different": len(candidates),
                "drawn": candidates[0].count,
                "expected_utility": candidates[0].utility,
            }
            for drawn, candidates in zip(samples, ranked, strict=True)
        ],
    }
    report = [
        f"{len(best)} sentences, {sum(map(len, samples))} samples, {sum(map(len, ranked))} "
        f"different; expected {options.utility} {mean:.2f}"
    ]
    if "reference" in texts:
        systems = {"baseline": texts["baseline"]} if "baseline" in texts else {}
        systems["mbr"] = hypotheses
        scored = compare(systems, texts["reference"], options.tokenize, options.resamples)
        result |= scored
        report.append(describe(scored))
    if options.json:
        write_json(options.json, result)
    if options.utilities:
        for number, candidates in enumerate(ranked):
            for one in candidates:
                print(f"U-{number}\t{one.utility:.4f}\t{one.count}\t{one.text}")
    print("\n".join(report))


def main(arguments: list[str] | None = None) -> int:
    return finish("mbr", run, parse_arguments(arguments))

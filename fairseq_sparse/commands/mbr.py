"""Choose from samples of each sentence the one with the highest expected utility.

Reads the detokenised hypotheses (lines `D-ID`) of one or several runs of `fairseq-generate
--sampling --beam N --nbest N`; each run, with a --seed of its own, adds N samples per sentence. The
utility of a sample is the mean of its chrF (or BLEU) with each sample as the reference, by
sacreBLEU's sentence-level score. This is minimum Bayes risk decoding. The chosen samples are
written one per line, in the order of the test set.

With --reference, the result is scored. With --baseline, the translations of another system (in any
of the forms that "fairseq-sparse score" reads), both are compared by sacreBLEU's approximate
randomisation.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from fairseq_sparse.commands import common
from fairseq_sparse.commands.values import output_file
from fairseq_sparse.files import write_text

UTILITIES = ("chrf", "bleu")


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = common.command_parser("mbr", __doc__)
    add = parser.add_argument
    add("samples", nargs="+", type=Path, metavar="SAMPLES", help="output of fairseq-generate")
    text = "file for the translations"
    add("--output", type=output_file, required=True, metavar="OUT", help=text)
    add("--utility", choices=UTILITIES, default="chrf", help="(default: chrf)")
    text = "print the distinct samples of each sentence, best first: U-ID, expected utility, "
    text += "number of times drawn, text"
    add("--utilities", action="store_true", help=text)
    text = "translations to compare the result with"
    add("--baseline", type=Path, metavar="TRANSLATIONS", help=text)
    common.add_scoring(parser, required=False)
    common.add_format(parser)
    common.add_json(parser)
    options = parser.parse_args(arguments)
    for name in ("metrics", "baseline"):
        common.refuse_alone(parser, options, name, "reference")
    common.refuse_alone(parser, options, "trials", "baseline")
    scored = options.metrics if options.reference else ()
    common.check_tokenizer(parser, options, (options.utility, *scored))
    if options.utilities and options.format == "json":
        parser.error("--utilities prints lines, not --format json")
    common.check_outputs(parser, options, "output", "json")
    return options


def run(options: argparse.Namespace) -> None:
    from fairseq_sparse.measure.text import minimum_bayes_risk, scores
    from fairseq_sparse.measure.text.fairseq_output import (
        check_subwords,
        read_parallel,
        read_samples,
    )

    samples = read_samples(options.samples)

    def read(path: Path) -> list[str]:
        return read_parallel(common.find_translations(path), len(samples), options.samples[0])

    references = list(map(read, options.reference or []))
    if references:
        drawn = [text for sentence in samples for text in sentence]
        check_subwords(options.samples[0], drawn, references[0])
    systems = {"baseline": read(options.baseline)} if options.baseline else {}
    metrics = [scores.make_metric(name, options.tokenize) for name in options.metrics]
    if options.utility == "bleu":
        utility = minimum_bayes_risk.bleu(options.tokenize)
    else:
        utility = minimum_bayes_risk.chrf()
    bar = common.with_progress(samples, "minimum Bayes risk", unit="sentence")
    ranked = [minimum_bayes_risk.rank(utility, sentence) for sentence in bar]
    best = [candidates[0] for candidates in ranked]
    systems["mbr"] = [candidate.text for candidate in best]
    # First of all, in case scoring fails.
    write_text(options.output, "".join(text + "\n" for text in systems["mbr"]))
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
    counts = [len(best), sum(map(len, samples)), sum(map(len, ranked)), f"{mean:.2f}"]
    header = ["sentences", "samples", "different", f"expected {options.utility}"]
    tables, notes = [(header, [counts])], []
    if references:
        found = scores.score_systems(list(systems.values()), references, metrics, options.trials)
        result |= scores.as_json(list(systems), found)
        tables.append(scores.score_table(list(systems), found))
        notes.append(scores.signatures(found))
    if options.utilities:
        for number, candidates in enumerate(ranked):
            for one in candidates:
                print(f"U-{number}\t{one.utility:.4f}\t{one.count}\t{one.text}")
    common.print_tables(tables, result, options, notes)

"""Score translations with sacreBLEU.

TRANSLATIONS is the output of fairseq-generate, plain text with one translation per line, the folder
of a recipe's run, or - (the default) for standard input. Of fairseq-generate's output, the
detokenised lines `D-ID` are read (so generate with `--post-process subword_nmt --tokenizer moses`)
and put back in the order of the test set. If the reference is already tokenised, generate with
`--tokenizer space`, and score with `--tokenize none`.

With --baseline, p is that of sacreBLEU's approximate randomisation: a small p means that the
difference from the baseline, in either direction, is more than chance.

With --tokenized-reference, the tokens of the hypotheses (lines `H-ID`, without the marks of BPE)
are also scored against that reference, as multi-bleu.perl does: without smoothing, cased and in
lower case.

With --by-frequency, the F1 of words is shown by how often they occur in the training text (as in
compare-mt). Words are made by BLEU's tokenizer; the training text must be raw, like the reference.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fairseq_sparse.commands.common import (
    TOKENIZE,
    add_by_frequency,
    add_json,
    add_scoring,
    check_outputs,
    check_tokenizer,
    command_parser,
    find_translations,
    refuse_alone,
)
from fairseq_sparse.commands.values import output_file
from fairseq_sparse.files import lines_of, write_json, write_text
from fairseq_sparse.measure.text import TRIALS

# The output of fairseq-generate in the folder of a recipe's run.
GENERATED = "generate-test.txt"


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = command_parser("score", __doc__)
    text = "what to score (default: standard input)"
    parser.add_argument("translations", nargs="?", type=Path, metavar="TRANSLATIONS", help=text)
    add_scoring(parser)
    add_by_frequency(parser)
    add = parser.add_argument
    text = "translations of another system, in any of these forms, to test the difference from"
    add("--baseline", type=Path, metavar="TRANSLATIONS", help=text)
    text = "tokenised references, for scores of the tokens"
    add("--tokenized-reference", type=Path, metavar="FILE", help=text)
    add("--format", choices=("text", "json"), default="text", help="(default: text)")
    text = "write the translations to this file, one per line"
    add("--output", type=output_file, metavar="FILE", help=text)
    add_json(parser)
    options = parser.parse_intermixed_args(arguments)
    if options.translations is None:
        options.translations = Path("-")
    refuse_alone(parser, options, "trials", "baseline")
    check_tokenizer(parser, options, options.metrics, options.by_frequency is not None)
    check_outputs(parser, options, "output", "json")
    return options


def score(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    metrics: Sequence[str] = ("bleu", "chrf"),
    tokenize: str = TOKENIZE,
    baseline: Sequence[str] | None = None,
    trials: int = TRIALS,
) -> dict[str, Any]:
    """Compute corpus scores with sacreBLEU's defaults, as a dictionary for JSON.

    Args:
        hypotheses: the translations.
        references: one or several references, each with a text for each translation.
        metrics: ``bleu``, ``chrf`` or ``ter``.
        tokenize: BLEU's tokenizer.
        baseline: the translations of another system.
        trials: number of random exchanges in the paired test.
    """
    from fairseq_sparse.measure.text.scores import make_metric, score_systems

    systems = [hypotheses] if baseline is None else [baseline, hypotheses]
    made = [make_metric(name, tokenize) for name in metrics]
    found = dict(zip(metrics, score_systems(systems, references, made, trials), strict=True))
    result: dict[str, Any] = {}
    for name, each in found.items():
        result[name] = each.scores[-1]
        result["signature" if name == "bleu" else f"{name}_signature"] = each.signature
    if "bleu" in found:
        bleu = made[metrics.index("bleu")].corpus_score(hypotheses, references)
        result |= {"precisions": list(bleu.precisions), "brevity_penalty": bleu.bp}
        result |= {"hypothesis_length": bleu.sys_len, "reference_length": bleu.ref_len}
    result["sentences"] = len(hypotheses)
    result["empty_translations"] = sum(not text.strip() for text in hypotheses)
    if baseline is not None:
        result["baseline"] = {name: each.scores[0] for name, each in found.items()}
        result["p"] = {name: each.p[0] for name, each in found.items()}
    return result


def score_tokens(hypotheses: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
    """Compute corpus BLEU of tokens, cased and in lower case, as multi-bleu.perl does."""
    from sacrebleu.metrics import BLEU

    found: dict[str, Any] = {}
    for name, lowercase in (("tokenized", False), ("lowercased", True)):
        metric = BLEU(lowercase, tokenize="none", smooth_method="none", force=True)
        found[f"{name}_bleu"] = metric.corpus_score(hypotheses, [references]).score
        found[f"{name}_signature"] = str(metric.get_signature())
    return found


def measure_frequencies(
    training: Path, tokenize: str, references: Sequence[Sequence[str]]
) -> Callable[[Sequence[str]], list[dict[str, Any]]]:
    """Return a function that computes the F1 of a system's words by their training frequency.

    Raises:
        AnalysisError: there are several references, or the training text is empty, or alone has
            subwords.
    """
    from fairseq_sparse.errors import AnalysisError
    from fairseq_sparse.measure.text.fairseq_output import check_subwords
    from fairseq_sparse.measure.text.scores import make_metric
    from fairseq_sparse.measure.text.word_frequency import count_words, f1_by_frequency

    if len(references) > 1:
        raise AnalysisError("--by-frequency: give one --reference")
    lines = lines_of(training)
    if not lines:
        raise AnalysisError(f"--by-frequency {training} is empty")
    check_subwords(training, lines, references[0])
    split = make_metric("bleu", tokenize).tokenizer
    frequencies = count_words(split(line).split() for line in lines)
    expected = [split(text).split() for text in references[0]]
    return lambda texts: f1_by_frequency(
        [split(text).split() for text in texts], expected, frequencies
    )


def describe(result: dict[str, Any]) -> str:
    """Return scores, as :func:`score` and :func:`score_tokens` compute them, as text."""
    lines = []
    for key, label in (("bleu", "BLEU"), ("chrf", "chrF2"), ("ter", "TER")):
        if key in result:
            signature = result["signature" if key == "bleu" else f"{key}_signature"]
            versus = ""
            if "p" in result:
                versus = f", baseline {result['baseline'][key]:.2f}, p = {result['p'][key]:.2g}"
            lines.append(f"{label} = {result[key]:.2f}{versus}  {signature}")
    if "tokenized_bleu" in result:
        score, signature = result["tokenized_bleu"], result["tokenized_signature"]
        lines.append(f"BLEU of tokens = {score:.2f}  {signature}")
    return "\n".join(lines)


def run(options: argparse.Namespace) -> None:
    from fairseq_sparse.measure.text import fairseq_output, word_frequency
    from fairseq_sparse.tables.formats import format_table

    given = fairseq_output.STDIN if str(options.translations) == "-" else options.translations
    path = find_translations(given)
    lines = lines_of(path)
    hypotheses = fairseq_output.best_translations(path, lines)

    def read(other: Path) -> list[str]:
        return fairseq_output.read_parallel(find_translations(other), len(hypotheses), path)

    references = list(map(read, options.reference))
    fairseq_output.check_subwords(path, hypotheses, references[0])
    baseline = options.baseline and read(options.baseline)
    if baseline:
        fairseq_output.check_subwords(options.baseline, baseline, references[0])
    how = (options.metrics, options.tokenize, baseline, options.trials)
    result = score(hypotheses, references, *how)
    if options.tokenized_reference:
        if given.is_dir():
            path = given / GENERATED
            lines = lines_of(path)
        tokens = [texts[0] for texts in fairseq_output.sort_hypotheses(path, lines, "H")]
        reference = fairseq_output.read_parallel(options.tokenized_reference, len(tokens), path)
        result |= score_tokens(tokens, reference)
    if options.by_frequency:
        of_words = measure_frequencies(options.by_frequency, options.tokenize, references)
        result["by_frequency"] = of_words(hypotheses)
    if options.output:
        write_text(options.output, "".join(text + "\n" for text in hypotheses))
    if options.json:
        write_json(options.json, result)
    if options.format == "json":
        print(json.dumps(result, indent=1, ensure_ascii=False))
        return
    print(describe(result))
    if options.by_frequency:
        table = word_frequency.frequency_table({"translations": result["by_frequency"]})
        print("\n" + format_table(*table))

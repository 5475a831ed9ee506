"""Score the output of fairseq-generate with cased sacreBLEU, detokenised by default.

Reads the detokenised hypotheses (lines `D-ID`, so generate with `--post-process subword_nmt
--tokenizer moses`), puts them back in the order of the test set, checks that none is missing,
writes them one per line, and prints BLEU and chrF2 against the raw reference with sacreBLEU's
signatures. If the reference is already tokenised, generate with `--tokenizer space`, and score with
`--tokenize none`.

With --tokenized-reference, the tokens of the hypotheses (lines `H-ID`, without the marks of BPE)
are also scored against that reference, as multi-bleu.perl does: without smoothing, cased and in
lower case.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

from sacrebleu.metrics import BLEU, CHRF

from fairseq_sparse.commands.common import (
    check_outputs,
    command_parser,
    finish,
    output_file,
)
from fairseq_sparse.errors import AnalysisError
from fairseq_sparse.files import lines_of, write_json, write_text
from fairseq_sparse.measure.text.fairseq_output import read_hypotheses

# sacreBLEU's own default.
TOKENIZE = "13a"


def read_best(path: Path, kind: str = "D") -> list[str]:
    """Read the best hypothesis of each sentence, which comes first, from lines of kind D or H."""
    return [hypotheses[0] for hypotheses in read_hypotheses(path, kind)]


def score(
    hypotheses: list[str], references: list[str], tokenize: str = TOKENIZE
) -> dict[str, object]:
    """Compute corpus BLEU and chrF2 with sacreBLEU's defaults, except for BLEU's tokenizer, as a
    dictionary for JSON."""
    metric = BLEU(tokenize=tokenize, force=tokenize == "none")  # else it warns about tokens
    result = metric.corpus_score(hypotheses, [references])
    of_characters = CHRF()
    chrf = of_characters.corpus_score(hypotheses, [references])
    return {
        "bleu": result.score,
        "signature": str(metric.get_signature()),
        "chrf": chrf.score,
        "chrf_signature": str(of_characters.get_signature()),
        "precisions": list(result.precisions),
        "brevity_penalty": result.bp,
        "hypothesis_length": result.sys_len,
        "reference_length": result.ref_len,
        "sentences": len(hypotheses),
        "empty_translations": sum(not text.strip() for text in hypotheses),
    }


def score_tokens(hypotheses: list[str], references: list[str]) -> dict[str, object]:
    """Compute corpus BLEU of tokens, cased and in lower case, as multi-bleu.perl does."""
    found: dict[str, object] = {}
    for name, lowercase in (("tokenized", False), ("lowercased", True)):
        metric = BLEU(lowercase, tokenize="none", smooth_method="none", force=True)
        found[f"{name}_bleu"] = metric.corpus_score(hypotheses, [references]).score
        found[f"{name}_signature"] = str(metric.get_signature())
    return found


def read_lines(path: Path, hypotheses: Sequence[object], generated: Path) -> list[str]:
    """Read the lines of a file, which must have one line for each translated sentence."""
    references = lines_of(path)
    if len(hypotheses) != len(references):
        raise AnalysisError(
            f"{generated} has {len(hypotheses)} translations but {path} has {len(references)} "
            "lines: they are not of the same test set"
        )
    return references


def check_subwords(hypotheses: list[str], references: list[str], generated: Path) -> None:
    """Raise AnalysisError if only the hypotheses have marks of subwords."""
    marks = re.compile("@@( |$)|(^| )\u2581")
    if any(map(marks.search, hypotheses)) and not any(map(marks.search, references)):
        raise AnalysisError(
            f"{generated} has subwords, not words (@@ or \u2581): generate with "
            "--post-process subword_nmt or sentencepiece"
        )


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = command_parser("score", __doc__)
    parser.add_argument("--generated", type=Path, required=True, help="output of fairseq-generate")
    parser.add_argument("--reference", type=Path, required=True, help="raw text, one per line")
    parser.add_argument(
        "--tokenized-reference", type=Path, help="tokenised references, for scores of the tokens"
    )
    parser.add_argument(
        "--hypotheses", type=output_file, required=True, help="file for the translations"
    )
    parser.add_argument("--json", type=output_file, required=True, help="file for the scores")
    parser.add_argument(
        "--tokenize",
        choices=BLEU.TOKENIZERS,
        default=TOKENIZE,
        help=f"sacreBLEU's tokenizer (default: {TOKENIZE}; none: the text is tokenised already)",
    )
    options = parser.parse_args(arguments)
    check_outputs(parser, options, "hypotheses", "json")
    return options


def run(options: argparse.Namespace) -> None:
    hypotheses = read_best(options.generated)
    texts = read_lines(options.reference, hypotheses, options.generated)
    check_subwords(hypotheses, texts, options.generated)
    result = score(hypotheses, texts, options.tokenize)
    if options.tokenized_reference:
        tokens = read_best(options.generated, "H")
        references = read_lines(options.tokenized_reference, tokens, options.generated)
        result |= score_tokens(tokens, references)
    write_text(options.hypotheses, "".join(text + "\n" for text in hypotheses))
    write_json(options.json, result)
    print(f"BLEU = {result['bleu']:.2f}  {result['signature']}")
    print(f"chrF2 = {result['chrf']:.2f}  {result['chrf_signature']}")
    if options.tokenized_reference:
        print(f"BLEU of tokens = {result['tokenized_bleu']:.2f}  {result['tokenized_signature']}")


def main(arguments: list[str] | None = None) -> int:
    return finish("score", run, parse_arguments(arguments))

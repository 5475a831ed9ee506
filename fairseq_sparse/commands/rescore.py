"""Score candidates, such as the n-best lists of another decoder, and put the best first.

The candidates are lines NUMBER TAB TOKENS, where NUMBER is that of the source sentence, from 0, or
the output of fairseq-generate without --post-process, whose other lines are skipped. What is
written are lines H-NUMBER TAB SCORE TAB TOKENS and D-NUMBER TAB SCORE TAB TEXT, as fairseq-generate
writes them, so that fairseq-sparse score can read them. A candidate with a token of probability 0
has the score -inf.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from fairseq_sparse.commands.common import check_outputs, command_parser, with_progress
from fairseq_sparse.commands.models import add_tokenizer
from fairseq_sparse.commands.values import finite, output_file
from fairseq_sparse.errors import AnalysisError
from fairseq_sparse.files import lines_of, write_text

if TYPE_CHECKING:
    from fairseq_sparse.measure.rescoring import Candidate

_GENERATED = re.compile(r"H-(\d+)\t[^\t]*\t([^\t]*)")
_LISTED = re.compile(r"(\d+)\t([^\t]*)")


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = command_parser("rescore", __doc__)
    parser.add_argument("data", metavar="DATA", help="folder that fairseq-preprocess made")
    parser.add_argument("--path", required=True, metavar="CKPT", help="model; an ensemble is A:B")
    parser.add_argument(
        "--source", required=True, type=Path, metavar="FILE", help="tokens of the source sentences"
    )
    parser.add_argument("--candidates", required=True, type=Path, metavar="FILE")
    parser.add_argument("--output", type=output_file, metavar="FILE", help="(default: print)")
    text = "as in fairseq-generate (default: 1)"
    parser.add_argument("--lenpen", type=finite, default=1.0, metavar="X", help=text)
    add_tokenizer(parser)
    parser.add_argument("--cpu", action="store_true", help="do not use a GPU")
    options = parser.parse_args(arguments)
    check_outputs(parser, options, "output")
    return options


def read_candidates(path: Path, sentences: int) -> list[Candidate]:
    """Read the candidates of a file, in its order.

    Raises:
        AnalysisError: it has none, a line of another form, or a sentence that is not there.
    """
    from fairseq_sparse.measure.rescoring import Candidate
    from fairseq_sparse.measure.text.fairseq_output import check_whole

    found, lines = [], lines_of(path)
    generated = any(map(_GENERATED.fullmatch, lines))
    for place, line in enumerate(lines, start=1):
        if match := (_GENERATED if generated else _LISTED).fullmatch(line):
            check_whole(path, line)
            found.append(Candidate(int(match[1]), match[2]))
        elif line.strip() and not generated:
            raise AnalysisError(
                f"{path}, line {place}: neither NUMBER TAB TOKENS, nor output of fairseq-generate"
            )
    if not found:
        raise AnalysisError(f"{path}: there are no candidates")
    last = max(candidate.sentence for candidate in found)
    if last >= sentences:
        raise AnalysisError(f"{path}: sentence {last}, but --source has {sentences}")
    return found


def run(options: argparse.Namespace) -> None:
    from fairseq.data.data_utils import post_process

    from fairseq_sparse.commands.evaluate import find_post_process
    from fairseq_sparse.measure.rescoring import rescore
    from fairseq_sparse.measure.translator import load_translator
    from fairseq_sparse.measure.typed import check_split, text_encoder

    sources = lines_of(options.source)
    candidates = read_candidates(options.candidates, len(sources))
    translator = load_translator(options.path, options.data, options.cpu)
    task = translator.task
    check_split(options.source, sources, task.source_dictionary)
    tokens = [candidate.tokens for candidate in candidates]
    check_split(options.candidates, tokens, task.target_dictionary)
    # Sentences of one length together, so that a batch has little padding.
    candidates.sort(key=lambda part: (sources[part.sentence].count(" "), part.sentence))
    progress = with_progress(candidates, "candidates", "candidate")
    scored = list(rescore(translator, sources, progress, options.lenpen))
    scored.sort(key=lambda row: (row[1].sentence, -row[0]))
    encoder = text_encoder(task.cfg.target_lang, options.tokenizer, None)
    subwords = find_post_process(task.target_dictionary.symbols)
    text = ""
    for score, part in scored:
        raw = encoder.decode(post_process(part.tokens, subwords))
        for kind, shown in (("H", part.tokens), ("D", raw)):
            text += f"{kind}-{part.sentence}\t{score:.6f}\t{shown}\n"
    if options.output:
        write_text(options.output, text)
    else:
        sys.stdout.write(text)

#!/usr/bin/env python3
"""How often exact search proves that a translation is the best, by the number of expanded prefixes.

Sparse models allow few translations, so that a beam search can often prove that its translation is
the most probable one, and exact search (fairseq-generate --unnormalized --exact-search
--exact-search-nodes N) can prove more. For each model, the table has a row for the beam alone and
one for each N:

    proven   share of the sentences whose translation is proven to be the best
    better   share of the sentences for which exact search found a better one than the beam
    BLEU     of all translations, on the tokens or whole words (--subwords) of the data
    seconds  to translate everything, the beam search included
    nodes    prefixes expanded per sentence, 0 where the beam search gave the proof

Scores are sums of log-probabilities, unless --lenpen divides them by a power of the length, which
leaves little to prove. The weights of alpha-ReLU are divided by their sum, as by
--score-normalization sum: otherwise they give no bound.
"""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

# scripts/ is the import path of the helpers
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from command_line import (  # noqa: E402
    check_outputs,
    exit_status,
    name_models,
    numbers,
    positive,
    report_errors,
    script_parser,
    with_progress,
)
from fairseq_sparse.commands.common import (  # noqa: E402
    add_format,
    add_json,
    print_tables,
)
from fairseq_sparse.commands.models import (  # noqa: E402
    add_model_arguments,
    add_subwords,
)
from fairseq_sparse.errors import AnalysisError  # noqa: E402
from fairseq_sparse.files import write_json  # noqa: E402

if TYPE_CHECKING:
    from fairseq_sparse.measure.translator import Translator

HEADER = ("model", "search", "proven", "better", "BLEU", "seconds", "nodes")


def parse_arguments(arguments: list[str] | None = None) -> Namespace:
    parser = script_parser(__doc__)
    add_model_arguments(parser, several=True)

    def add(flag: str, default: Any, help: str, type=positive, metavar: str = "N") -> None:
        help = f"{help} (default: {default})" if default is not None else help
        parser.add_argument(flag, default=default, type=type, metavar=metavar, help=help)

    add("--nodes", "100,1000", "limits of the expanded prefixes per sentence", numbers, "N,...")
    add("--beam", 5, "beam size")
    add("--lenpen", None, "divide scores by this power of the length", float, "L")
    add("--sentences", None, "use only this many sentences, from the beginning")
    add("--max-tokens", 400, "maximum number of tokens per batch")
    add_subwords(parser)
    add_format(parser)
    add_json(parser)
    options = parser.parse_args(arguments)
    name_models(parser, options)
    check_outputs(parser, options, "json")
    return options


def measure(translator: Translator, options: Namespace, nodes: int) -> dict[str, Any]:
    """Translate the data, and return the row of a table with all numbers.

    Args:
        nodes: the limit of exact search; 0: beam search alone.
    """
    import torch
    from sacrebleu.metrics import BLEU

    from fairseq_sparse.generation import SparseSequenceGenerator
    from fairseq_sparse.generation.exact_search import ExactSequenceGenerator

    dictionary = translator.task.target_dictionary
    scores = {"normalize_scores": options.lenpen is not None, "len_penalty": options.lenpen or 0.0}
    generator = SparseSequenceGenerator(
        *(translator.models, dictionary, options.beam), nbest=1, attention=False, **scores
    )
    if nodes:
        generator = ExactSequenceGenerator(generator, nodes)

    def text(tokens: torch.Tensor, reference: bool = False) -> str:
        subwords = {"none": None}.get(options.subwords, options.subwords)
        return dictionary.string(tokens, subwords, escape_unk=reference)  # <unk> is no match

    chosen = None if options.sentences is None else range(options.sentences)
    batches = translator.batches(options.subset, options.max_tokens, chosen)
    search = f"exact, N = {nodes:,}" if nodes else f"beam {options.beam}"
    best: list[dict[str, Any]] = []
    texts: list[tuple[str, str]] = []
    start = time.perf_counter()
    with torch.no_grad():
        for sample in with_progress(batches, f"{translator.name}, {search}"):
            if sample["target"] is None:
                raise AnalysisError(f"--subset {options.subset}: there are no references")
            found = [hypotheses[0] for hypotheses in generator.generate(None, sample)]
            best += found
            references = sample["target"].masked_fill(
                sample["target"] == dictionary.pad(), dictionary.eos()
            )
            texts += [
                (text(hypothesis["tokens"]), text(reference, reference=True))
                for hypothesis, reference in zip(found, references, strict=True)
            ]
    seconds = time.perf_counter() - start
    hypotheses, references = zip(*texts, strict=True)
    bleu = BLEU(tokenize="none", force=True).corpus_score(hypotheses, [references])
    return {
        "model": translator.name,
        "search": search,
        "node_limit": nodes,
        "sentences": len(best),
        "proven": sum(each["optimal"] for each in best) / len(best),
        "bleu": bleu.score,
        "seconds": seconds,
        "nodes": sum(each.get("nodes", 0) for each in best) / len(best),
        "scores": [float(each["score"]) for each in best],
    }


def measure_all(options: Namespace) -> Iterable[dict[str, Any]]:
    """Yield the rows of the table: for each model the beam's, then those of exact search."""
    from fairseq_sparse.measure.translator import load_translator

    for path, name in zip(options.path, options.names, strict=True):
        translator = load_translator(path, options.data, options.cpu, name=name).normalised()
        measure(translator, options, 0)  # to warm up
        beam = measure(translator, options, 0)
        for nodes in (0, *options.nodes):
            result = measure(translator, options, nodes) if nodes else beam
            pairs = zip(result["scores"], beam["scores"], strict=True)
            # Each search adds up the scores in its own precision.
            better = sum(score > before + 1e-4 for score, before in pairs)
            yield {**result, "better": better / result["sentences"]}


def run(options: Namespace) -> None:
    settings = {"subset": options.subset, "beam": options.beam, "lenpen": options.lenpen}
    results, rows = [], []
    for result in measure_all(options):
        results.append(result)
        rows.append(
            (
                *(result["model"], result["search"]),
                *(f"{100 * result[name]:.1f} %" for name in ("proven", "better")),
                *(f"{result[name]:,.1f}" for name in ("bleu", "seconds", "nodes")),
            )
        )
        content = {**settings, "results": results}
        if options.json:  # at once, because the next row may take an hour
            write_json(options.json, content)
    print_tables([(HEADER, rows)], content, options)


def main(arguments: list[str] | None = None) -> int:
    return report_errors("proofs", run, parse_arguments(arguments))


if __name__ == "__main__":
    sys.exit(exit_status(main, quiet=["fairseq", "fairseq_sparse"]))

#!/usr/bin/env python3
"""Print thresholds of 1.5-entmax in untrained Transformers: Table 3 of Speeding Up Entmax.

For each vocabulary size, or each folder of prepared data, an untrained model with a 1.5-entmax
output reads one batch. The table has the mean threshold of the batch (data), the threshold by the
paper's formula for that size (formula, with the p* of Lemma 2), and the one that this package
computes from the spread of the initial output weights (weights).

The paper also tests whether untrained logits are normal. The table has the results of Shapiro-Wilk
tests of 5,000 logits at each of up to 100 target positions: the median p, and the share of
positions with p above 0.15, which is about 85 % for normal logits.

Without --data, the batch has random tokens. This makes no difference, because features are
normalised before they are multiplied with the output weights. The three embedding matrices are
separate: with one for all (--share-all-embeddings), the untrained features of all tokens point in
nearly one direction, and the mean over a batch varies between seeds almost three times as much.
"""

from __future__ import annotations

import argparse
import shlex
import statistics
import sys
from pathlib import Path
from typing import Any

# scripts/ is the import path of the helpers
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from command_line import exit_status, output_file, positive, report_errors, script_parser  # noqa: E402
from fairseq_sparse.files import write_json  # noqa: E402
from fairseq_sparse.tables.formats import format_table  # noqa: E402

ALPHA = 1.5
# The sizes of the paper's three vocabularies.
VOCABULARIES = [10_000, 40_000, 60_000]
LARGEST_SAMPLE, POSITIONS, LEVEL = 5_000, 100, 0.15
COLUMNS = {
    "name": ("data", "{}"),
    "d_model": ("d_model", "{}"),
    "d_vocab": ("d_vocab", "{:,}"),
    "p_star": ("p*", "{:.4f}"),
    "data": ("τ (data)", "{:.3f}"),
    "formula": ("τ (formula)", "{:.3f}"),
    "weights": ("τ (weights)", "{:.3f}"),
    "median_p": ("Shapiro-Wilk, median p", "{:.2f}"),
    "share_above": (f"positions with p > {LEVEL} (%)", "{:.0f}"),
}


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = script_parser(__doc__)
    parser.add_argument(
        "--vocabulary",
        type=positive,
        nargs="+",
        metavar="N",
        help="vocabulary sizes (default: 10000 40000 60000, or none with --data)",
    )
    parser.add_argument(
        "--data", type=Path, nargs="+", default=[], help="folders that fairseq-preprocess made"
    )
    parser.add_argument("--arch", default="transformer_sparse_wmt_en_de", help="architecture")
    parser.add_argument(
        "--model-flags",
        default="--output-init xavier_uniform --encoder-normalize-before "
        "--decoder-normalize-before --dropout 0.1",
        help="flags of the model, as one argument: --model-flags='...' (default: %(default)s)",
    )
    parser.add_argument(
        "--tokens", type=positive, default=1024, help="tokens per side of the batch (default: 1024)"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the random weights (default: 1)")
    parser.add_argument("--json", type=output_file, help="file for the figures")
    options = parser.parse_args(arguments)
    options.vocabulary = options.vocabulary or ([] if options.data else VOCABULARIES)
    return options


def first_batch(folder: Path, tokens: int) -> tuple[Any, dict]:
    """Return the task of prepared data, and the first batch of training.

    Raises:
        AnalysisError, ValueError: the data are missing or damaged.
    """
    from fairseq_sparse.measure.model_loading import load_subset
    from fairseq_sparse.tasks.translation_sparse import (
        TranslationSparseConfig,
        TranslationSparseTask,
    )

    # The last three are settings of other parts of fairseq, which a command line would fill in.
    config = TranslationSparseConfig(
        data=str(folder), dataset_impl=None, required_seq_len_multiple=1, train_subset="train"
    )
    try:
        task = TranslationSparseTask.setup_task(config)
    except Exception as error:  # fairseq checks nothing, so it fails in many ways
        raise ValueError(f"--data {folder}: {error}") from error
    dataset = load_subset(task, "train")
    if dataset.tgt is None:
        raise ValueError(f"--data {folder}: the training data have no {task.cfg.target_lang} side")
    try:
        batches = task.get_batch_iterator(dataset, max_tokens=tokens, seed=1)
    except AssertionError as error:  # of fairseq: a sentence is longer than a batch
        raise ValueError(f"--tokens {tokens}: {error}") from None
    batch = next(iter(batches.next_epoch_itr(shuffle=True)))
    for language, words, ids in (
        (task.cfg.source_lang, task.source_dictionary, batch["net_input"]["src_tokens"]),
        (task.cfg.target_lang, task.target_dictionary, batch["target"]),
    ):
        if ids.max() >= len(words):
            raise ValueError(
                f"--data {folder}: dict.{language}.txt has {len(words)} entries, but the training "
                "data use more: it is damaged, prepare the data again"
            )
    return task, batch


def measure(task, batch: dict, options: argparse.Namespace) -> dict[str, Any]:
    """Measure one row of the table, without its name."""
    import torch

    from fairseq_sparse.ops.tau import (
        expected_support_share,
        tau_from_formula,
        tau_from_logits,
        tau_from_weights,
    )
    from random_models import build_model

    torch.manual_seed(options.seed)
    flags = ["--output-transform", "entmax15", *shlex.split(options.model_flags)]
    model = build_model(options.arch, flags, task).train()
    with torch.no_grad():
        logits = model(**batch["net_input"])[0]
    rows = logits[batch["target"] != task.target_dictionary.pad()].float()
    weight = model.decoder.output_projection.weight
    size, width = weight.shape
    return {
        "d_model": width,
        "d_vocab": size,
        "p_star": expected_support_share(size, 2 * width / (width + size)),
        "data": float(tau_from_logits(rows, ALPHA)),
        "formula": tau_from_formula(width, size),
        "weights": tau_from_weights(weight, ALPHA),
        **test_for_normality(rows),
    }


def test_for_normality(rows) -> dict[str, float]:
    """Return the median p of Shapiro-Wilk tests of single positions, and the share above LEVEL."""
    import torch

    try:
        from scipy.stats import shapiro
    except ImportError as error:
        raise ValueError("the Shapiro-Wilk test needs scipy: pip install scipy") from error
    values = []
    for row in rows[torch.randperm(len(rows))[:POSITIONS]]:
        sample = row[torch.randperm(len(row))[:LARGEST_SAMPLE]]
        values.append(float(shapiro(sample.double().numpy()).pvalue))
    above = sum(value > LEVEL for value in values)
    return {"median_p": statistics.median(values), "share_above": 100 * above / len(values)}


def rows_of(options: argparse.Namespace) -> list[dict[str, Any]]:
    import torch

    from random_models import random_batch, translation_task

    rows = []
    for size in options.vocabulary:
        task = translation_task(size)
        torch.manual_seed(options.seed)
        batch = random_batch(task, max(1, options.tokens // 32), 32)
        rows.append({"name": "random tokens", **measure(task, batch, options)})
    for folder in options.data:
        task, batch = first_batch(folder, options.tokens)
        rows.append({"name": str(folder), **measure(task, batch, options)})
    return rows


def run(options: argparse.Namespace) -> None:
    rows = rows_of(options)
    if options.json:
        write_json(options.json, {"rows": rows})
    header = [heading for heading, _ in COLUMNS.values()]
    cells = [[form.format(row[name]) for name, (_, form) in COLUMNS.items()] for row in rows]
    print(format_table(header, cells))


def main(arguments: list[str] | None = None) -> int:
    return report_errors("thresholds", run, parse_arguments(arguments))


if __name__ == "__main__":
    sys.exit(exit_status(main, quiet=["fairseq", "fairseq_sparse"]))

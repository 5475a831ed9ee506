#!/usr/bin/env python3
"""How sparse the attention of a trained translation model is, on a prepared data set.

The model reads each source sentence and its reference (no search). For the encoder, the decoder
and cross-attention, for each layer and each head, two rates are counted: the sparsity rate, which
is the share of attention weights that are exactly 0, among the keys that a query may see; and the
null rate, which is the share of queries whose weights are all 0. The table has the mean over the
heads of a layer, and over the layers; the JSON file has the heads too.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

# A checkout works without being installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


class AnalysisError(Exception):
    """The analysis cannot be made; the message says why."""


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {value}")
    return value


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", metavar="DATA", help="folder that fairseq-preprocess made")
    parser.add_argument("--path", required=True, metavar="CKPT", help="checkpoint of the model")
    parser.add_argument("--subset", default="test", help="part of the data (default: test)")
    parser.add_argument(
        "--max-tokens", type=positive, default=4000, metavar="N", help="in a batch (default: 4000)"
    )
    parser.add_argument("--cpu", action="store_true", help="do not use a GPU")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write all numbers to this file")
    options = parser.parse_args(arguments)
    if options.json and not options.json.absolute().parent.is_dir():
        parser.error(f"--json {options.json}: there is no such folder")
    return options


def load(path: str, data: str):
    """The model of a checkpoint, and its task with other data."""
    from fairseq import checkpoint_utils

    import fairseq_sparse  # noqa: F401
    from fairseq_sparse.checkpoint_safety import load_checkpoint

    load_checkpoint(path)  # refuses what is no checkpoint, or would run code
    try:
        models, _, task = checkpoint_utils.load_model_ensemble_and_task(
            [path], arg_overrides={"data": data, "eval_bleu": False}
        )
    except Exception as error:  # fairseq checks nothing, so it fails in many ways
        raise AnalysisError(
            f"{path} could not be loaded for the data in {data}: {one_line(error)}"
        ) from error
    return models[0], task


def batches_of(task, model, subset: str, max_tokens: int) -> Iterable[dict]:
    """The batches of a subset, as many sentences in each as fit."""
    from fairseq import utils

    try:
        task.load_dataset(subset)
        return task.get_batch_iterator(
            task.dataset(subset),
            max_tokens=max_tokens,
            max_positions=utils.resolve_max_positions(task.max_positions(), model.max_positions()),
            ignore_invalid_inputs=True,
            disable_iterator_cache=True,
        ).next_epoch_itr(shuffle=False)
    except FileNotFoundError as error:
        raise AnalysisError(f"--subset {subset}: {one_line(error)}") from error
    except AssertionError as error:
        raise AnalysisError(f"--max-tokens {max_tokens}: {one_line(error)}") from error


def one_line(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else text[:300] + "..."


def table(rates: dict) -> str:
    from fairseq_sparse.analysis.reports import markdown_table

    def row(*names, part):
        return [*names, *(f"{100 * part[name]:.2f}" for name in ("sparsity", "null"))]

    means, layers = [], []
    for place, part in rates.items():
        kinds = ", ".join(dict.fromkeys(layer["attention"] for layer in part["layers"]))
        means.append(row(place, "mean", kinds, part=part))
        for number, layer in enumerate(part["layers"], start=1):
            layers.append(row(place, number, layer["attention"], part=layer))
    header = ["place", "layer", "attention", "sparsity rate (%)", "null rate (%)"]
    return markdown_table(header, means + layers)


def analyze(options: argparse.Namespace) -> dict:
    import torch
    from fairseq import utils
    from tqdm import tqdm

    model, task = load(options.path, options.data)
    from fairseq_sparse.analysis.attention_statistics import AttentionStatistics

    cuda = torch.cuda.is_available() and not options.cpu
    model = model.float().cuda() if cuda else model.float()
    statistics = AttentionStatistics(model, task.source_dictionary.pad())
    batches = batches_of(task, model, options.subset, options.max_tokens)
    for sample in tqdm(batches, desc=options.subset, unit="batch", mininterval=1):
        if sample:
            sample = utils.move_to_cuda(sample) if cuda else sample
            statistics.add_batch(sample["net_input"])
    left_out = len(task.dataset(options.subset)) - statistics.sentences
    if left_out > 0:
        print(f"left out {left_out} sentences that are too long for the model", file=sys.stderr)
    return {
        "checkpoint": options.path,
        "data": options.data,
        "subset": options.subset,
        "sentences": statistics.sentences,
        "left_out": left_out,
        "attention": statistics.rates(),
    }


def main(arguments: list[str] | None = None) -> int:
    options = parse_arguments(arguments)
    from fairseq_sparse.analysis.reports import write_json
    from fairseq_sparse.checkpoint_safety import CheckpointError

    try:
        result = analyze(options)
        if options.json:
            write_json(options.json, result)
    except (AnalysisError, CheckpointError, OSError, ValueError) as error:
        print(f"analyze_attention: error: {one_line(error)}", file=sys.stderr)
        return 1
    print(table(result["attention"]))
    print(f"\n{result['sentences']} sentences of {options.subset}, {options.path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

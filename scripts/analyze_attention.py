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
from pathlib import Path

from command_line import one_line, positive

# A checkout works without being installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


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

    from fairseq_sparse.analysis.attention_statistics import AttentionStatistics
    from fairseq_sparse.analysis.trained_models import load_batches, load_models

    (model,), task = load_models([options.path], options.data)
    cuda = torch.cuda.is_available() and not options.cpu
    model = model.cuda() if cuda else model
    statistics = AttentionStatistics(model, task.source_dictionary.pad())
    batches = load_batches(task, [model], options.subset, options.max_tokens)
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
    from fairseq_sparse.analysis.trained_models import AnalysisError
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

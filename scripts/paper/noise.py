#!/usr/bin/env python3
"""How well null attention finds bad sentence pairs, beside the model's loss and its confidence.

ReLA (section 5.2) ranks the pairs of a corpus by their null rate, and suggests it as a measure of
quality. Here a share of the pairs is made bad on purpose, in four ways of equal number:

    shuffled   the target of another pair
    source     the source of another pair in place of the target: a wrong language
    copy       the pair's own source in place of the target
    inserted   the target of another pair after its own

and all pairs are ranked, the worst first, by

    null rate    share of the queries of cross-attention whose weights are all 0, over heads and
                 layers; only of rectified attention
    loss         mean loss of the target's tokens: cross-entropy, or that of the sparse output
    confidence   mean of the largest weight of a query, divided by their sum; the lowest first

The table has the average precision with which each ranking finds each kind among the good pairs,
and that of a random order. Source and target need a joined dictionary.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

# scripts/ is the import path of the helpers
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from command_line import (  # noqa: E402
    add_max_tokens,
    check_outputs,
    exit_status,
    name_models,
    report_errors,
    script_parser,
    seed,
    with_progress,
)
from fairseq_sparse.commands.common import add_format, add_json, print_tables  # noqa: E402
from fairseq_sparse.commands.models import add_model_arguments  # noqa: E402
from fairseq_sparse.errors import AnalysisError  # noqa: E402

if TYPE_CHECKING:
    from fairseq.data import LanguagePairDataset
    from torch import Tensor

    from fairseq_sparse.measure.translator import Translator

KINDS = ("shuffled", "source", "copy", "inserted")
# Whether the worst pairs have the largest values.
MEASURES = {"null rate": True, "loss": True, "confidence": False}


def parse_arguments(arguments: list[str] | None = None) -> Namespace:
    parser = script_parser(__doc__)
    add_model_arguments(parser, several=True)
    text = "share of the pairs that are made bad (default: 20)"
    parser.add_argument("--percent", type=float, default=20, metavar="P", help=text)
    parser.add_argument(
        "--seed", type=seed, default=1, metavar="N", help="of the choice (default: 1)"
    )
    add_max_tokens(parser)
    add_format(parser)
    add_json(parser)
    options = parser.parse_args(arguments)
    name_models(parser, options)
    check_outputs(parser, options, "json")
    return options


def corrupt(
    sources: list[Tensor], targets: list[Tensor], percent: float, seed: int
) -> tuple[list[Tensor], dict[str, set[int]]]:
    """Make a share of the pairs bad; sentences end with EOS.

    Returns:
        The new targets, and for each of ``KINDS`` the numbers of its pairs.

    Raises:
        AnalysisError: as :func:`derange`.
    """
    import torch

    from fairseq_sparse.measure.attention.shuffled_references import derange

    order = derange(len(targets), seed, percent)
    bad = [number for number in range(len(targets)) if order[number] != number]
    if len(bad) < len(KINDS):
        raise AnalysisError(
            f"--percent {percent:g}: too few pairs for {len(KINDS)} kinds of bad ones"
        )
    made: dict[str, set[int]] = defaultdict(set)
    changed = list(targets)
    for position, number in enumerate(bad):
        kind, other = KINDS[position % len(KINDS)], order[number]
        made[kind].add(number)
        changed[number] = {
            "shuffled": targets[other],
            "source": sources[other],
            "copy": sources[number],
            "inserted": torch.cat([targets[number][:-1], targets[other]]),
        }[kind]
    return changed, dict(made)


def batches(data: LanguagePairDataset, max_tokens: int) -> Iterator[dict[str, Any]]:
    """Yield batches of pairs of similar length."""
    try:
        chunks = data.batch_by_size(data.ordered_indices(), max_tokens=max_tokens)
    except AssertionError as error:  # a pair is longer
        raise AnalysisError(f"--max-tokens {max_tokens}: {error}") from error
    for chunk in chunks:
        yield data.collater([data[number] for number in chunk])


def measure(translator: Translator, samples: Iterable[dict[str, Any]]) -> dict[str, dict[int, Any]]:
    """Return the measures of each pair, by its number; no null rates where weights sum to 1."""
    import torch

    from fairseq_sparse.measure.attention.attention_statistics import watch_attention
    from fairseq_sparse.measure.attention.null_ranking import check_rectified
    from fairseq_sparse.modules.output_projection import OutputLoss

    model, padding = translator.model, translator.task.target_dictionary.pad()
    rows: list[tuple[Tensor, Tensor]] = []

    def keep(place: str, layer: int, weights: Tensor, masked: Tensor) -> None:
        total = weights.sum(-1)  # [heads, batch, queries]
        null = total == 0
        largest = weights.amax(-1) / total.masked_fill(null, 1)
        rows.append((null.float().mean(0), largest.mean(0)))

    found: dict[str, dict[int, float]] = {name: {} for name in MEASURES}
    for sample in map(translator.on_device, samples):
        target, counts = sample["target"], sample["target"] != padding
        rows.clear()
        with torch.no_grad(), watch_attention(model, keep, ["cross"]):
            options = OutputLoss(target, padding, reduction="none")
            loss, _ = model(**sample["net_input"], loss=options)
        null, largest = (torch.stack(part).mean(0) for part in zip(*rows, strict=True))
        for name, values in zip(MEASURES, (null, loss.view_as(target), largest), strict=True):
            means = (values * counts).sum(1) / counts.sum(1)
            found[name].update(zip(sample["id"].tolist(), means.tolist(), strict=True))
    try:
        check_rectified(model)
    except AnalysisError:
        del found["null rate"]
    return found


def precisions(
    values: Mapping[int, float], high: bool, made: Mapping[str, set[int]]
) -> tuple[list[float], list[float]]:
    """Return the average precision for each kind among the good pairs, and for all of them; and
    those of a random order."""
    from fairseq_sparse.measure.attention.null_ranking import evaluate

    rates = {number: value if high else -value for number, value in values.items()}
    every = set().union(*made.values())
    results = [
        evaluate({n: rate for n, rate in rates.items() if n in bad or n not in every}, bad)
        for bad in (*(made[kind] for kind in KINDS), every)
    ]
    by_chance = [result["chance"]["average_precision"] for result in results]
    return [result["average_precision"] for result in results], by_chance


def run(options: Namespace) -> None:
    from fairseq_sparse.measure.model_loading import load_subset
    from fairseq_sparse.measure.translator import load_translator
    from fairseq_sparse.measure.typed import data_of

    results, rows = [], []
    for path, name in zip(options.path, options.names, strict=True):
        translator = load_translator(path, options.data, options.cpu, name=name)
        task = translator.task
        if not translator.projections:
            raise AnalysisError(f"{path}: not a model of this plugin, which computes its own loss")
        if task.source_dictionary != task.target_dictionary:
            raise AnalysisError(f"{options.data}: source and target have different dictionaries")
        own = load_subset(task, options.subset)
        if own.tgt is None:
            raise AnalysisError(f"--subset {options.subset}: there are no references")
        sources, targets = ([pair[i] for pair in own] for i in ("source", "target"))
        targets, made = corrupt(sources, targets, options.percent, options.seed)
        translator.check_lengths(sources, targets)
        data = data_of(task, sources, targets)
        samples = with_progress(list(batches(data, options.max_tokens)), name)
        rankings = {}
        for ranked_by, values in measure(translator, samples).items():
            rankings[ranked_by], chance = precisions(values, MEASURES[ranked_by], made)
        rankings["random order"] = chance  # the same for all
        for ranked_by, found in rankings.items():
            numbers = dict(zip((*KINDS, "all"), found, strict=True))
            results.append({"model": name, "ranked by": ranked_by, **numbers})
            rows.append((name, ranked_by, *(f"{value:.3f}" for value in found)))
    share = {kind: len(numbers) for kind, numbers in made.items()}
    content = {"subset": options.subset, "pairs": len(targets), "bad": share, "results": results}
    header = ("model", "ranked by", *KINDS, "all")
    note = f"average precision; {sum(share.values())} of {len(targets)} pairs are bad"
    print_tables([(header, rows)], content, options, [note])


def main(arguments: list[str] | None = None) -> int:
    return report_errors("noise", run, parse_arguments(arguments))


if __name__ == "__main__":
    sys.exit(exit_status(main, quiet=["fairseq", "fairseq_sparse"]))

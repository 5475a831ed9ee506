#!/usr/bin/env python3
"""Speed of trained models side by side: training, decoding by beam size and by source length.

All models work on the same sentences in one process, one after another in each round; the first of
--path is the baseline, and the speeds are ratios to it ("Speeding Up Entmax", Figure 4; "Sparse
Attention with Linear Units", Figure 2). A training step has the loss of the model's output and
Adam. With --stock each model is also decoded by fairseq's own generator, which may fail for sparse
models; then the table says so.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from command_line import one_line, output_file, positive

# A checkout works without being installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

LENGTH_BEAM = 5


def beams(text: str) -> list[int]:
    """Numbers and ranges, as in 1,5,10 or 1-10."""
    sizes: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        sizes += range(positive(first), positive(last or first) + 1)
    return sizes


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )

    def add(flag, default, help, type=positive):
        parser.add_argument(flag, default=default, type=type, help=f"{help} (default: {default})")

    parser.add_argument("data", metavar="DATA", help="folder that fairseq-preprocess made")
    parser.add_argument(
        "--path", required=True, nargs="+", metavar="CKPT", help="models; an ensemble is A:B"
    )
    parser.add_argument("--names", nargs="+", metavar="NAME", help="what to call them in the table")
    add("--train-batches", 0, "batches of a training step to time, 0 for none", int)
    add(
        "--train-tokens", 1024, "in a batch of training, of the first sentences of the subset train"
    )
    add("--subset", "test", "part of the data to decode", str)
    add("--sentences", 200, "of its beginning")
    add("--beams", "1-10", "beam sizes, e.g. 1-10 or 1,5,10; 0 for none", str)
    parser.add_argument(
        "--bins",
        type=int,
        default=10,
        help=f"of source length, at beam {LENGTH_BEAM} (default: 10)",
    )
    add("--batch", 32, "sentences in a batch, of similar length")
    add("--rounds", 3, "how often each is measured")
    parser.add_argument("--stock", action="store_true", help="also with fairseq's own generator")
    parser.add_argument("--threads", type=positive, help="of PyTorch (default: its own choice)")
    parser.add_argument("--cpu", action="store_true", help="do not use a GPU")
    parser.add_argument(
        "--json", type=output_file, metavar="OUT", help="write all numbers to this file"
    )
    options = parser.parse_args(arguments)
    options.names = options.names or options.path
    if len(options.names) != len(options.path):
        parser.error("--names: give as many as --path has models")
    try:
        options.beams = [] if options.beams == "0" else beams(options.beams)
    except ValueError:
        parser.error(f"--beams {options.beams}: not a list of numbers or ranges")
    for name in ("bins", "train_batches"):
        if getattr(options, name) < 0:
            flag = name.replace("_", "-")
            parser.error(f"--{flag} {getattr(options, name)}: must not be negative")
    return options


def on_device(translator, samples: list[dict]) -> list[dict]:
    from fairseq import utils

    cuda = next(translator.models[0].parameters()).is_cuda
    return [utils.move_to_cuda(sample) for sample in samples] if cuda else samples


def training_batches(translator, options: argparse.Namespace) -> list[dict]:
    """Batches of the training data, spread over the lengths."""
    from itertools import islice

    from fairseq_sparse.analysis.trained_models import load_batches

    translator.task.chosen = None
    batches = load_batches(
        translator.task, translator.models, translator.task.cfg.train_subset, options.train_tokens
    )
    every = max(1, len(batches) // options.train_batches)
    return on_device(translator, list(islice(batches, 0, every * options.train_batches, every)))


def training_job(translator, samples: list[dict]) -> Callable[[], object]:
    """Forward, backward and an update by Adam for each batch."""
    import torch
    from fairseq.criterions import CRITERION_REGISTRY

    import fairseq_sparse  # noqa: F401

    if len(translator.models) > 1:
        raise ValueError(f"--train-batches: {translator.name} is an ensemble")
    (model,) = translator.models
    transforms = [layer.transform for layer in translator.projections]
    sparse = {"softmax": "cross_entropy", "alpha_relu": "alpha_relu_loss"}
    name = sparse.get(transforms[0], "entmax_loss") if transforms else "cross_entropy"
    options = {"sentence_avg": False}
    if name != "cross_entropy":
        options["label_smoothing"] = 0.0
    criterion = CRITERION_REGISTRY[name](translator.task, **options)
    parameters = list(model.parameters())
    # A rate of 0 leaves the model as it is: an update costs the same.
    optimizer = torch.optim.Adam(parameters, lr=0.0)

    def run():
        model.train()
        for sample in samples:
            optimizer.zero_grad()
            loss, sample_size, _ = criterion(model, sample)
            (loss / sample_size).backward()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
        model.eval()

    return run


def batches_by_length(translator, options: argparse.Namespace) -> list[dict]:
    """The sentences in batches, the shortest first."""
    task = translator.task
    task.load_dataset(options.subset)
    dataset = task.dataset(options.subset)
    order = sorted(dataset.ordered_indices().tolist(), key=lambda index: dataset.size(index)[0])
    rows = [order[start : start + options.batch] for start in range(0, len(order), options.batch)]
    samples = [dataset.collater([dataset[index] for index in row]) for row in rows]
    return on_device(translator, samples)


def length_bins(translator, options: argparse.Namespace) -> list[tuple[str, list[dict]]]:
    """The sentences in bins of about equally many, by source length, each in batches."""
    bins = []
    batches = batches_by_length(translator, argparse.Namespace(**{**vars(options), "batch": 1}))
    dataset = translator.task.dataset(options.subset)
    for number in range(options.bins):
        start, end = (len(batches) * edge // options.bins for edge in (number, number + 1))
        samples = batches[start:end]
        if not samples:
            continue
        shortest, longest = (samples[at]["net_input"]["src_tokens"].size(1) for at in (0, -1))
        rows = [int(sample["id"]) for sample in samples]
        groups = [rows[at : at + options.batch] for at in range(0, len(rows), options.batch)]
        bins.append(
            (
                f"{shortest}-{longest}",
                on_device(
                    translator,
                    [dataset.collater([dataset[row] for row in group]) for group in groups],
                ),
            )
        )
    return bins


def generators(translators: list, options: argparse.Namespace, beam: int) -> dict[str, object]:
    """The generators to compare, by name."""
    from fairseq.dataclass.configs import GenerationConfig
    from fairseq.sequence_generator import SequenceGenerator

    found = {}
    for translator in translators:
        config = GenerationConfig(beam=beam)
        found[translator.name] = translator.task.build_generator(translator.models, config)
        if options.stock and type(found[translator.name]) is not SequenceGenerator:
            found[f"{translator.name}, stock search"] = SequenceGenerator(
                translator.models, translator.task.target_dictionary, beam_size=beam
            )
    return found


def decoding_jobs(found: dict, batches: list[dict]) -> dict[str, Callable[[], object]]:
    """A job for each generator that does not fail."""
    import torch

    jobs = {}
    for name, generator in found.items():

        def run(generator=generator):
            with torch.no_grad():
                for sample in batches:
                    generator.generate(None, sample)

        try:
            run()
        except (AssertionError, RuntimeError) as error:
            print(f"{name} failed: {one_line(error)}", file=sys.stderr)
        else:
            jobs[name] = run
    return jobs


def compare(
    names: Iterable[str], jobs: dict, amount: int, options: argparse.Namespace, **what: object
) -> list[dict]:
    """Time the jobs; one result for each name, without figures where there is no job."""
    import torch

    from fairseq_sparse.analysis.measuring import measure

    device = "cuda" if torch.cuda.is_available() and not options.cpu else "cpu"
    seconds = measure(jobs, options.rounds, least_seconds=0.0, device=device)
    first = seconds.get(options.names[0], [])
    results = []
    for name in names:
        result = {**what, "model": name}
        if name in seconds:
            ratios = [one / own for one, own in zip(first, seconds[name], strict=False)]
            result |= {"rate": amount / statistics.median(seconds[name]), "seconds": seconds[name]}
            if ratios:
                result |= {"speed": statistics.median(ratios), "spread": [min(ratios), max(ratios)]}
        results.append(result)
    return results


def results_of(options: argparse.Namespace) -> list[dict]:
    """One result for each part, value (beam size or length) and generator."""
    from fairseq_sparse.analysis.decoding import load_translator
    from fairseq_sparse.analysis.trained_models import AnalysisError

    chosen = range(options.sentences)
    translators = [
        load_translator(path, options.data, options.cpu, chosen, name)
        for path, name in zip(options.path, options.names, strict=True)
    ]
    try:
        together = batches_by_length(translators[0], options)
        bins = length_bins(translators[0], options)
    except FileNotFoundError as error:
        raise AnalysisError(f"--subset {options.subset}: {error}") from error
    results = []
    if options.train_batches:
        print("training", file=sys.stderr)
        samples = training_batches(translators[0], options)
        jobs = {model.name: training_job(model, samples) for model in translators}
        words = sum(sample["ntokens"] for sample in samples)
        value = f"{options.train_tokens} tokens"
        results += compare(jobs, jobs, words, options, part="training", value=value, unit="words")
    parts = [("beam", str(beam), beam, together) for beam in options.beams]
    parts += [("source length", label, LENGTH_BEAM, samples) for label, samples in bins]
    for part, value, beam, samples in parts:
        print(f"{part} {value}", file=sys.stderr)
        found = generators(translators, options, beam)
        sentences = sum(len(sample["id"]) for sample in samples)
        jobs = decoding_jobs(found, samples)
        what = {"part": part, "value": value, "beam": beam, "unit": "sentences"}
        results += compare(found, jobs, sentences, options, **what)
    return results


def table(results: list[dict]) -> str:
    from fairseq_sparse.analysis.reports import markdown_table

    rows = []
    for result in results:
        row = [result["part"], result["value"], result["model"]]
        row.append(f"{result['rate']:,.1f} {result['unit']}" if "rate" in result else "failed")
        if "speed" in result:
            low, high = result["spread"]
            row += [f"{result['speed']:.2f}", f"{low:.2f}-{high:.2f}"]
        else:
            row += ["-", "-"]
        rows.append(row)
    return markdown_table(["by", "value", "model", "in a second", "speed", "spread"], rows)


def main(arguments: list[str] | None = None) -> int:
    options = parse_arguments(arguments)
    import torch

    from fairseq_sparse.analysis.reports import describe_machine, write_json
    from fairseq_sparse.analysis.trained_models import AnalysisError
    from fairseq_sparse.checkpoint_safety import CheckpointError

    if options.threads:
        torch.set_num_threads(options.threads)
    machine = describe_machine("cuda" if torch.cuda.is_available() and not options.cpu else "cpu")
    try:
        results = results_of(options)
        if options.json:
            chosen = {name: str(value) for name, value in vars(options).items() if name != "json"}
            content = {"machine": machine, "options": chosen, "results": results}
            write_json(options.json, content)
    except (AnalysisError, CheckpointError, OSError, ValueError) as error:
        print(f"benchmark_models: error: {one_line(error)}", file=sys.stderr)
        return 1
    print(table(results))
    print(
        f"\nspeed: ratio to {options.names[0]}, median and spread of {options.rounds} rounds over "
        f"{options.sentences} sentences, batches of {options.batch}.\n{machine['hardware']}, "
        f"{machine['threads']} threads, torch {machine['torch']}, fairseq {machine['fairseq']}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Decoding speed of trained models, by beam size, batch size and source length.

All models translate the same sentences in one process, one after another in each round; the first
of --path is the baseline, and the speeds are ratios to it. A softmax model is decoded by fairseq's
own generator ("Speeding Up Entmax", Figure 4; "Sparse Attention with Linear Units", Figure 2 and
Table 2, whose ratios are for one sentence at a time: --batches 1). The length is the mean length of
the translations: longer ones take more time. With --ctranslate2, each model
is also decoded by CTranslate2, in fp32 and int8, with a softmax of its logits and as many threads
as PyTorch; if that fails, as it does with sparse attention, the table says so.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable
from functools import cached_property
from pathlib import Path

# The imported modules are in scripts/.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmark import harness
from benchmark.harness import positive
from command_line import add_paths, add_plots, exit_status, name_models, numbers, script_parser

# What CTranslate2 computes in, by --ctranslate2.
PRECISIONS = ("float32", "int8")


def beams(text: str) -> list[int]:
    """Parse numbers and ranges, as in 1,5,10 or 1-10; 0 for none."""
    if text == "0":
        return []
    sizes: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        sizes += range(positive(first), positive(last or first) + 1)
    return sizes


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__)

    def add(flag, default, help, type=positive):
        parser.add_argument(flag, default=default, type=type, help=f"{help} (default: {default})")

    parser.add_argument("data", metavar="DATA", help="folder that fairseq-preprocess made")
    add_paths(parser)
    add("--subset", "test", "part of the data to decode", str)
    add("--sentences", 200, "number of sentences, from its beginning")
    add("--beams", "1,5", "beam sizes, e.g. 1-10 or 1,5,10; 0 for none", beams)
    add("--batches", "1,32", "sentences in a batch, of similar length", numbers)
    add("--bins", 0, "equally large bins of source length, at the largest batch size", int)
    add("--bin-beam", 5, "beam size in the bins")
    add("--lenpen", 1.0, "length penalty", float)
    parser.add_argument("--ctranslate2", action="store_true", help="also with CTranslate2")
    add_plots(parser)
    harness.add_arguments(parser, rounds=3)
    options = parser.parse_args(arguments)
    name_models(parser, options)
    if options.bins < 0:
        parser.error(f"--bins {options.bins}: must not be negative")
    return options


def sorted_sentences(translator, options: argparse.Namespace) -> list[int]:
    """Return the numbers of the first sentences, the shortest first."""
    translator.task.load_dataset(options.subset)
    dataset = translator.task.dataset(options.subset)
    first = [index for index in dataset.ordered_indices().tolist() if index < options.sentences]
    return sorted(first, key=lambda index: dataset.size(index)[0])


def in_batches(translator, subset: str, order: list[int], size: int) -> list[dict]:
    """Return the sentences in batches, in their order, on the models' device."""
    from fairseq import utils

    dataset = translator.task.dataset(subset)
    rows = [order[start : start + size] for start in range(0, len(order), size)]
    samples = [dataset.collater([dataset[index] for index in row]) for row in rows]
    cuda = next(translator.models[0].parameters()).is_cuda
    return [utils.move_to_cuda(sample) for sample in samples] if cuda else samples


def length_bins(translator, options: argparse.Namespace) -> list[tuple[str, list[int]]]:
    """Return bins of source length, with their sentences, about equally many in each."""
    order = sorted_sentences(translator, options)
    dataset = translator.task.dataset(options.subset)
    bins = []
    for number in range(options.bins):
        start, end = (len(order) * edge // options.bins for edge in (number, number + 1))
        if start < end:
            shortest, longest = (dataset.size(order[at])[0] for at in (start, end - 1))
            bins.append((f"{shortest}-{longest}", order[start:end]))
    return bins


def generators(translators: list, options: argparse.Namespace, beam: int) -> dict[str, object]:
    """Return the generators to compare, by name."""
    from fairseq.dataclass.configs import GenerationConfig

    found = {}
    for translator in translators:
        config = GenerationConfig(beam=beam, lenpen=options.lenpen)
        found[translator.name] = translator.task.build_generator(translator.models, config)
        if options.ctranslate2:
            for precision in PRECISIONS:
                name = f"{translator.name}, CTranslate2 {precision}"
                found[name] = CTranslate2Generator(translator, options, beam, precision)
    return found


class CTranslate2Generator:
    """CTranslate2 with the interface of fairseq's generators.

    Args:
        translator: a model, or an ensemble.
        options: of the command line.
        beam: the beam size.
        precision: one of ``PRECISIONS``.
    """

    def __init__(self, translator, options: argparse.Namespace, beam: int, precision: str):
        self.task, self.beam, self.lenpen = translator.task, beam, options.lenpen
        self.checkpoints, self.data = translator.checkpoints, options.data
        self.device, self.precision = options.device, precision

    @cached_property
    def translator(self):
        """The converted model, made by the first batch: a failure is then that of the job."""
        import ctranslate2
        import torch

        from fairseq_sparse.checkpoints.ctranslate2 import convert_to_ctranslate2

        if len(self.checkpoints) > 1:
            raise ValueError("CTranslate2 has no ensembles")
        with tempfile.TemporaryDirectory() as folder:
            model = Path(folder) / "model"
            convert_to_ctranslate2(self.checkpoints[0], self.data, model, self.precision)
            threads = torch.get_num_threads()
            return ctranslate2.Translator(str(model), self.device, intra_threads=threads)

    def generate(self, _, sample: dict) -> list[list[dict]]:
        """Translate a batch; a hypothesis has its tokens, with EOS."""
        source, target = self.task.source_dictionary, self.task.target_dictionary
        no_words = {source.pad(), source.eos()}
        rows = [
            [source[token] for token in row if token not in no_words]
            for row in sample["net_input"]["src_tokens"].tolist()
        ]
        found = self.translator.translate_batch(
            rows, beam_size=self.beam, length_penalty=self.lenpen, max_decoding_length=200
        )
        return [
            [{"tokens": [*map(target.index, result.hypotheses[0]), target.eos()]}]
            for result in found
        ]


def decoding_job(generator, batches: list[dict]) -> Callable[[], list[int]]:
    """Make a job that translates everything and returns the lengths of the best translations."""
    import torch

    def run():
        lengths = []
        with torch.no_grad():
            for sample in batches:
                found = generator.generate(None, sample)
                lengths += [len(best[0]["tokens"]) if best else 0 for best in found]
        return lengths

    return run


def results_of(
    translators: list, order: list[int], beam: int, batch: int, options, **what: object
) -> list[dict]:
    """Measure one result for each generator."""
    batches = in_batches(translators[0], options.subset, order, batch)
    found = generators(translators, options, beam)
    jobs = {name: decoding_job(generator, batches) for name, generator in found.items()}
    what |= {"beam": beam, "batch": batch}
    results = harness.compare(jobs, options, key="model", **what)
    for result, run in zip(results, jobs.values(), strict=True):
        if "seconds" in result:
            result["rate"] = len(order) / statistics.median(result["seconds"])
            result |= {"unit": "sentences", "length": statistics.mean(run())}
    return results


def run(options: argparse.Namespace, record: harness.Record) -> int:
    """Measure, and return the exit status: 1 if fairseq itself could not decode a model."""
    from benchmark.decoding_plots import decoding_figures
    from fairseq_sparse.errors import AnalysisError, CheckpointError
    from fairseq_sparse.measure.translator import load_translator
    from fairseq_sparse.plots.pictures import require_matplotlib, save_pictures

    cpu = options.device == "cpu"
    try:
        if options.plots:
            require_matplotlib()
        translators = [
            load_translator(path, options.data, cpu, name)
            for path, name in zip(options.path, options.names, strict=True)
        ]
        order = sorted_sentences(translators[0], options)
    except FileNotFoundError as error:
        raise ValueError(f"--subset {options.subset}: {error}") from error
    except (AnalysisError, CheckpointError) as error:
        raise ValueError(str(error)) from error
    for batch in options.batches:
        for beam in options.beams:
            what = {"part": "beam", "value": str(beam)}
            record.add(results_of(translators, order, beam, batch, options, **what))
    for number, (label, part) in enumerate(length_bins(translators[0], options)):
        what = {"part": "source length", "group": number, "value": label}
        batch = max(options.batches)
        record.add(results_of(translators, part, options.bin_beam, batch, options, **what))
    results = record.content["results"]
    if options.plots:
        save_pictures(decoding_figures(results), options.plots)
    return int(any("failed" in result and result["model"] in options.names for result in results))


def table(results: list[dict]) -> str:
    from fairseq_sparse.tables.formats import format_table

    rows = []
    for result in results:
        row = [result["part"], result["value"], result["batch"], result["model"]]
        row.append(f"{result['rate']:,.1f}" if "rate" in result else "-")
        row += harness.ratio_cells(result, "speed")
        rows.append([*row, f"{result['length']:.1f}" if "length" in result else "-"])
    header = ["by", "value", "batch", "model", "sentences/s", "speed", "quartiles", "length"]
    return format_table(header, rows)


if __name__ == "__main__":
    harness.keep_freed_memory()
    options = parse_arguments(None)
    sys.exit(exit_status(lambda: harness.main("decoding", options, run, table), ["matplotlib"]))

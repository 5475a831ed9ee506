#!/usr/bin/env python3
"""Alignment error rates of trained models on a manual gold set: ReLA's Table 5 and Fig. 4.

GOLD is the German-English set of RWTH Aachen: the archive DeEnGoldAlignment.tar.gz, or its folder
DeEn with the files de, en and alignmentDeEn.talp. It is available for non-commercial use after
filling in a form, so no program can fetch it:

  https://www-i6.informatik.rwth-aachen.de/goldAlignment/

Its sentences are tokenised and split like the training data in the folder PREPARED, which the stage
`prepare` of the recipes makes (DATA_DIR/prepared), and binarised with its dictionaries. Each model
reads source and reference, in either direction. The weights are merged into the words of the gold
set, and each target word is linked with the source word of the largest weight, if that is above 0.
Normal attention is that of the step that predicts a word; shifted attention is that of the step
after it, so that the first decoding step is left out.

The first table has AoL, the error rate of layer attention (the mean of the heads), and AoH, that of
the best head of each layer, averaged over the layers; the second table and the picture show each
layer. Models with the same NAME are seeds of one model: their means and standard
deviations are shown.

The folder OUT receives bin/ (the set as fairseq reads it), alignment_error_rate.json, and
alignment_error_rate.png and .svg.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from command_line import (
    add_max_tokens,
    add_paths,
    exit_status,
    load_one_model,
    name_models,
    read_text,
    report_errors,
    script_parser,
    with_progress,
    write_text,
)
from fairseq_sparse.measure.alignment import ALIGNMENT_KINDS

if TYPE_CHECKING:
    from fairseq_sparse.measure.alignment.word_alignment import Words
    from gold_alignment import GoldPairs

SUBSET = "test"
# The error rates of each kind of attention: the key in the results and the name in ReLA.
RATES = {"aol": "AoL", "aoh": "AoH"}
# The keys of the same rates in the results of a layer.
OF_LAYER = {"aol": "average", "aoh": "best"}

Sides = list[list["Words"]]


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__)
    parser.add_argument("gold", metavar="GOLD", type=Path, help="archive or folder")
    parser.add_argument(
        "--prepared", type=Path, required=True, metavar="PREPARED", help="DATA_DIR/prepared"
    )
    add_paths(parser)
    parser.add_argument("--output", type=Path, required=True, metavar="OUT", help="folder to fill")
    parser.add_argument("--cpu", action="store_true", help="do not use a GPU")
    add_max_tokens(parser)
    options = parser.parse_args(arguments)
    name_models(parser, options)
    options.subset, options.data = SUBSET, str(options.output / "bin")
    return options


def find_gold(options: argparse.Namespace) -> Path:
    """Return the folder of the gold set, unpacking the archive if necessary."""
    from fairseq_sparse.recipes.tables import GOLD
    from gold_alignment import HOME, unpack

    archive, folder = GOLD
    if options.gold.is_dir():
        inside = options.gold / folder
        return inside if inside.is_dir() else options.gold
    if options.gold.is_file():
        return unpack(options.gold, options.output / "gold")
    raise ValueError(
        f"{options.gold}: no such file; get {archive} at {HOME}, which asks for your name"
    )


@dataclass(frozen=True)
class Preparation:
    """How the data in a folder were prepared.

    Attributes:
        languages: source and target.
        tokenized: those whose text was tokenised already.
        codes: the file of the merges of each language.
    """

    languages: tuple[str, str]
    tokenized: list[str]
    codes: dict[str, Path]


def preparation(folder: Path) -> Preparation:
    """Read how the data in a folder were prepared, from the record of the stage."""
    from fairseq_sparse.files import read_json

    path = folder.parent / "stages" / "prepare.json"
    settings = read_json(path).get("settings", {})
    if settings.get("kind") != "parallel" or not settings.get("bpe_merges"):
        raise ValueError(f"{path}: these are not the settings of text in BPE units")
    languages = settings["source"], settings["target"]
    tokenized = [language for language, kind in settings["tokens"].items() if kind == "space"]
    end = ".{}" if settings.get("separate_bpe") else ""
    codes = {language: folder / f"bpe.codes{end.format(language)}" for language in languages}
    return Preparation(languages, tokenized, codes)


def load_encoder(language: str, made: Preparation) -> Callable[[str], str]:
    """Return a function that splits text as the training data in a language were split."""
    from fairseq_sparse.measure.typed import text_encoder

    codes = made.codes[language]
    if not read_text(codes).startswith("#version"):
        raise ValueError(f"{codes}: these are no merges of subword-nmt")
    try:
        return text_encoder(
            language, "space" if language in made.tokenized else "moses", codes
        ).encode
    except SystemExit as error:  # a bad line, which has been printed
        raise ValueError(f"{codes} is damaged") from error


def split_words(pairs: GoldPairs, made: Preparation, output: Path) -> Sides:
    """Write the pieces of the sentences to OUT/pieces.LANG, and return the words of each side."""
    from gold_alignment import segment

    result = []
    for language, sentences in zip(made.languages, (pairs.source, pairs.target), strict=True):
        encode = load_encoder(language, made)
        split = [segment(words, encode) for words in sentences]
        text = "".join(" ".join(pieces) + "\n" for pieces, _ in split)
        write_text(output / f"pieces.{language}", text)
        result.append([words for _, words in split])
    return result


def binarise(made: Preparation, options: argparse.Namespace) -> None:
    """Make OUT/bin of the pieces, with the dictionaries of the training data."""
    from fairseq.options import get_preprocessing_parser
    from fairseq_cli import preprocess

    source, target = made.languages
    dictionaries = [options.prepared / "bin" / f"dict.{lang}.txt" for lang in made.languages]
    for path in dictionaries:
        read_text(path)  # check here, because fairseq's errors vary
    arguments = ["--source-lang", source, "--target-lang", target]
    arguments += ["--srcdict", str(dictionaries[0]), "--tgtdict", str(dictionaries[1])]
    arguments += ["--testpref", str(options.output / "pieces"), "--destdir", options.data]
    logging.getLogger("fairseq_cli.preprocess").setLevel(logging.WARNING)
    preprocess.main(get_preprocessing_parser().parse_args(arguments))


def measure(path: str, name: str, pairs: GoldPairs, words: Sides, options) -> dict[str, Any]:
    """Measure the error rates of a model by kind of attention, layer and head."""
    from gold_alignment import score_model

    translator = load_one_model(path, options, name=name)
    batches = with_progress(translator.batches(SUBSET, options.max_tokens), name)
    return {"checkpoint": path, **score_model(translator, batches, pairs, *words)}


def average_seeds(results: list[dict[str, Any]], names: list[str]) -> dict[str, dict[str, Any]]:
    """Average the rates of models with the same name; "seeds" has the rates of each model."""
    from fairseq_sparse.measure.attention.attention_seeds import group_by_name, mean_of

    return {
        name: {
            **mean_of([{kind: x[kind] for kind in ALIGNMENT_KINDS} for x in group]),
            "seeds": group,
        }
        for name, group in group_by_name(results, names).items()
    }


def tables(models: dict[str, dict[str, Any]]) -> str:
    """Return Table 5, and the same by layer."""
    from fairseq_sparse.tables.attention import with_deviation
    from fairseq_sparse.tables.formats import format_table

    def cell(part: dict[str, Any], name: str) -> str:
        return with_deviation(part, name, 2, 100)

    columns = [(kind, key) for kind in ALIGNMENT_KINDS for key in RATES]
    titles = [f"{kind}, {RATES[key]}" for kind, key in columns]
    rows = [
        [name, *(cell(model[kind], key) for kind, key in columns)] for name, model in models.items()
    ]
    by_layer = [
        [name, layer["layer"]]
        + [cell(model[kind]["layers"][place], OF_LAYER[key]) for kind, key in columns]
        for name, model in models.items()
        for place, layer in enumerate(model["normal"]["layers"])
    ]
    first = format_table(["model", *titles], rows)
    second = format_table(["model", "layer", *titles], by_layer)
    return f"{first}\n\nAlignment error rate (%), mean over the layers (ReLA, Table 5)\n\n{second}"


def compare(options: argparse.Namespace) -> str:
    """Write all files, and return the text to print."""
    from fairseq_sparse.files import write_json
    from fairseq_sparse.plots.attention_curves import draw_alignment_error
    from fairseq_sparse.plots.pictures import require_matplotlib, save_figure
    from gold_alignment import read_pairs

    require_matplotlib()
    made = preparation(options.prepared)
    options.output.mkdir(parents=True, exist_ok=True)
    gold = find_gold(options)
    pairs = read_pairs(gold, *made.languages)
    words = split_words(pairs, made, options.output)
    binarise(made, options)
    results = [
        measure(path, name, pairs, words, options)
        for path, name in zip(options.path, options.names, strict=True)
    ]
    models = average_seeds(results, options.names)
    sure = sum(len(links.sure) for links in pairs.links)
    possible = sum(len(links.possible) for links in pairs.links) - sure
    counts = {"sentences": len(pairs.links), "sure": sure, "possible": possible}
    write_json(
        options.output / "alignment_error_rate.json",
        {"gold": {"path": str(gold), **counts}, "models": models},
    )
    figure = draw_alignment_error(models)
    pictures = [options.output / f"alignment_error_rate.{kind}" for kind in ("png", "svg")]
    for path in pictures:
        save_figure(figure, path)
    summary = f"{len(pairs.links)} sentences, {sure} sure and {possible} possible links of {gold}"
    return "\n\n".join([tables(models), summary, "\n".join(map(str, pictures))])


def main(arguments: list[str] | None = None) -> int:
    options = parse_arguments(arguments)
    return report_errors("gold_alignment_table", lambda: print(compare(options)))


if __name__ == "__main__":
    sys.exit(exit_status(main, quiet=["fairseq", "matplotlib"]))

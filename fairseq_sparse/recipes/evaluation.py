"""The stages after the training: decoding and scoring, alignments, statistics."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fairseq_sparse.errors import AnalysisError
from fairseq_sparse.files import read_json, read_text, write_json, write_text
from fairseq_sparse.measure.cache import measurement_file
from fairseq_sparse.measure.machine import describe_environment
from fairseq_sparse.recipes.corpora.clean import LINE_BREAK
from fairseq_sparse.recipes.plan import (
    USER_DIR,
    Argument,
    Command,
    Stage,
    as_arguments,
    as_settings,
)
from fairseq_sparse.recipes.preparation import all_references, binary_files, bpe_codes
from fairseq_sparse.recipes.recipe import Flags, Recipe
from fairseq_sparse.recipes.training import begin
from fairseq_sparse.tables.results import RESULTS

# The measures logged by fairseq-eval-lm, the samples printed by fairseq-interactive, and the token
# for a line break.
_MEASURES = re.compile(r"\bmeasures \| (\{.*\})")
_SAMPLE = re.compile(r"^D-\d+\t\S+\t(.*)$", re.MULTILINE)
_LINE_BREAK = re.compile(rf" *{LINE_BREAK} *")


def _fairseq(recipe: Recipe, program: str, *more: Argument) -> list[Argument]:
    """Return a command of fairseq on the averaged model, without its further flags."""
    path = () if "--path" in more else ("--path", recipe.run_dir / "average.pt")
    return [program, recipe.binary, "--user-dir", USER_DIR, *path, *more, *recipe.device]


def generate(recipe: Recipe, models: Sequence[Path] = ()) -> Stage:
    """Return the stage that decodes and scores the test set, or measures a language model.

    Checkpoints other than the run's own, ``models``, decode together; not language models.
    """
    if recipe.corpus.kind == "text":
        return _evaluate(recipe)
    run, corpus, decoding = recipe.run_dir, recipe.corpus, recipe.decoding
    models = models or [run / "average.pt"]
    to_text: Flags = {"post-process": "sentencepiece"}
    if corpus.kind == "parallel":
        to_text = {"post-process": "subword_nmt", "tokenizer": corpus.tokenizer(corpus.target)}
    flags = {**recipe.task, **to_text, **decoding.flags}
    commands: list[Command] = []
    references: list[Path] = []
    tests = {"test": "test", **({"long": "test1"} if corpus.long_test else {})}
    for name, subset in tests.items():
        output, found = run / f"generate-{name}.txt", _references(recipe, name)
        commands.append(_decode(recipe, models, flags, subset, output))
        commands.append(_score(recipe, name, output, found))
        references += [path for paths in found.values() for path in paths]
    return Stage(
        name="generate",
        folder=run,
        settings=as_settings(flags) | as_settings(decoding.score_flags, "score "),
        inputs=(*models, *binary_files(recipe, *tests.values()), *references),
        outputs=tuple(path for command in commands for path in command.made),
        commands=tuple(commands),
        before=begin(recipe, run / "summary.json"),
    )


def _decode(
    recipe: Recipe, models: Sequence[Path], flags: Flags, subset: str, output: Path
) -> Command:
    path = models[0] if len(models) == 1 else ":".join(map(str, models))
    argv = _fairseq(recipe, "fairseq-generate", "--path", path, "--gen-subset", subset)
    # Other processes, which --num-workers 0 rules out, would write into the output.
    argv += ["--log-format", "simple", "--num-workers", "0", *as_arguments(flags)]
    return Command(tuple(argv), stdout=output, with_errors=True)


def _references(recipe: Recipe, test: str) -> dict[str, list[Path]]:
    """Return the flags of the scorer that name references, with their files."""
    folder = recipe.prepared
    if recipe.corpus.kind == "inflection":
        return {"--reference": [folder / "text" / "test.tsv"]}
    name = f"{test}.{recipe.corpus.target}"
    return {
        "--reference": all_references(recipe.corpus, folder / "text" / name),
        "--tokenized-reference": [folder / "tokenized" / name],
    }


def _score(
    recipe: Recipe, test: str, generated: Path, references: dict[str, list[Path]]
) -> Command:
    """Return the command that scores what was decoded of a test set."""
    run, suffix = recipe.run_dir, "" if test == "test" else f"-{test}"
    program, flag = "score", "--output"
    outputs = (run / f"hyp{suffix}.detok.txt", run / f"bleu{suffix}.json")
    if recipe.decoding.score == "accuracy":
        program, flag = "score-inflection", "--guesses"
        outputs = (run / "guesses", run / "accuracy.json")
    argv: list[Argument] = ["fairseq-sparse", program, generated]
    for name, paths in references.items():
        argv += [name, *paths]
    argv += [flag, outputs[0], "--json", outputs[1], *as_arguments(recipe.decoding.score_flags)]
    return Command(tuple(argv), outputs=outputs)


def _evaluate(recipe: Recipe) -> Stage:
    """Return the stage that measures a language model and samples from its distribution."""
    run, corpus, decoding = recipe.run_dir, recipe.corpus, recipe.decoding
    evaluate = {**recipe.task, **decoding.evaluate}
    sample = {**recipe.task, "tokenizer": corpus.tokenizer(corpus.source), "seed": recipe.seed}
    if corpus.bpe_merges:
        sample["bpe"] = "subword_nmt"
    sample |= decoding.flags
    prompts, samples = run / "prompts.txt", run / "samples-raw.txt"
    commands, outputs = [], []
    for subset in ("valid", "test"):
        argv = _fairseq(recipe, "fairseq-eval-lm", "--gen-subset", subset, "--num-workers", "0")
        argv += ["--log-format", "simple", *as_arguments(evaluate)]
        outputs.append(run / f"evaluate-{subset}.txt")
        commands.append(Command(tuple(argv), stdout=outputs[-1], with_errors=True))
    commands.append(Command(("printf", r"%s\n", *decoding.prompts), stdout=prompts))
    argv = _fairseq(recipe, "fairseq-interactive", "--buffer-size", str(len(decoding.prompts)))
    argv += as_arguments(sample)
    if corpus.bpe_merges:
        argv += ["--bpe-codes", bpe_codes(corpus, recipe.prepared, corpus.source)]
    commands.append(Command(tuple(argv), stdin=(prompts,), stdout=samples))

    def after() -> None:
        write_json(run / "measures.json", summarize_text(run))

    return Stage(
        name="generate",
        folder=run,
        settings=as_settings(evaluate)
        | as_settings(sample, "sample ")
        | {"prompts": list(decoding.prompts)},
        inputs=(run / "average.pt", *binary_files(recipe, "valid", "test")),
        outputs=(*outputs, samples, run / "samples.txt", run / "measures.json"),
        commands=tuple(commands),
        before=begin(recipe, run / "summary.json"),
        after=after,
    )


def summarize_text(run: Path) -> dict[str, Any]:
    """Collect the measures of a language model, and write its samples as readable text."""
    summary = {}
    for subset in ("valid", "test"):
        path = run / f"evaluate-{subset}.txt"
        found = _MEASURES.findall(read_text(path))
        if not found:
            raise AnalysisError(f"{path} has no measures")
        summary[subset] = json.loads(found[-1])
    samples = _SAMPLE.findall(read_text(run / "samples-raw.txt"))
    texts = [_LINE_BREAK.sub("\n", text.strip()) for text in samples]
    write_text(run / "samples.txt", "\n\n".join(texts) + "\n")
    return summary


def align(recipe: Recipe) -> Stage:
    run, corpus = recipe.run_dir, recipe.corpus
    alignments = run / "alignments"
    # Without outputs, so that it always runs: it goes on with the parts that are there.
    argv: list[Argument] = ["fairseq-sparse", "align", recipe.binary]
    argv += ["--path", run / "average.pt", "--subset", "test", "--output-folder", alignments]
    argv += ["--max-tokens", str(recipe.decoding.max_tokens), *recipe.device]
    commands = [Command(tuple(argv))]
    gold: tuple[Path, ...] = ()
    outputs = [alignments, alignments / "manifest.json"]
    if corpus.gold_alignment:
        names = (corpus.gold_alignment, *(f"{corpus.gold_words}.{x}" for x in corpus.sides))
        gold = tuple(recipe.raw / name for name in names)
        rates = run / "alignment.json"
        argv = ["fairseq-sparse", "analyze", "alignment", gold[0], alignments]
        commands.append(Command((*argv, "--words", *gold[1:], "--json", rates), outputs=(rates,)))
        outputs.append(rates)
    return Stage(
        name="align",
        folder=run,
        settings={},
        inputs=(run / "average.pt", *binary_files(recipe, "test"), *gold),
        outputs=tuple(outputs),
        commands=tuple(commands),
        before=begin(recipe, run / "summary.json"),
    )


def analyze(recipe: Recipe) -> Stage:
    run, corpus = recipe.run_dir, recipe.corpus
    commands: list[Command] = []
    report = run / "search-valid.jsonl"
    settings: dict[str, object] = {}
    inputs = [run / "average.pt", recipe.score_file, run / "train.json"]
    if corpus.kind != "text":
        validation = recipe.decoding.validation
        subsets = ["test", *(["valid"] if validation else [])]
        words = corpus.kind == "parallel" and corpus.bpe_merges and not validation
        subwords = "subword_nmt" if words else "none"
        settings = {"subwords": subwords, "validation": validation}
        inputs += binary_files(recipe, *subsets)
        for subset in subsets:
            commands += _statistics(recipe, subset, subwords)
        if validation:
            commands.append(_certify(recipe, report))
            settings |= as_settings(recipe.decoding.flags, "search ")
        if corpus.gold_alignment:
            inputs.append(run / "alignment.json")

    outputs = [run / "summary.json", *(path for command in commands for path in command.made)]
    outputs += [report] if recipe.decoding.validation else []

    def after() -> None:
        write_json(run / "summary.json", summarize(recipe))

    return Stage(
        name="analyze",
        folder=run,
        settings=settings,
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        commands=tuple(commands),
        before=begin(recipe),
        after=after,
    )


def _statistics(recipe: Recipe, subset: str, subwords: str) -> Iterable[Command]:
    """Yield the commands that measure output and attention on the references of a subset."""
    limit = ["--max-tokens", str(recipe.decoding.max_tokens)]
    model = recipe.run_dir / "average.pt"
    argv = _fairseq(recipe, "fairseq-validate", "--valid-subset", subset, *limit)
    argv += ["--distributed-world-size", "1", "--log-format", "json"]
    argv += as_arguments(recipe.task)
    validated = recipe.run_dir / f"validate-{subset}.txt"
    yield Command(tuple(argv), stdout=validated, with_errors=True)
    for name, of, flag in (
        ("support", "output", ["--no-search"]),
        ("attention", "attention", ["--subwords", subwords]),
    ):
        argv = ["fairseq-sparse", "analyze", name, recipe.binary, "--path", model]
        argv += ["--subset", subset, *flag, *limit, *recipe.device]
        # The command keeps what it measures in this file.
        yield Command(tuple(argv), outputs=(measurement_file(model, of, subset),))


def _certify(recipe: Recipe, report: Path) -> Command:
    """Return the command that records what beam search proves on the validation set."""
    flags = {**recipe.task, **recipe.decoding.flags}
    # The whole beam, so that the report can say whether it has all translations.
    flags["nbest"] = flags.get("beam", 5)
    argv = _fairseq(recipe, "fairseq-generate", "--gen-subset", "valid", "--quiet")
    argv += ["--log-format", "simple", *as_arguments(flags), "--search-report", report]
    return Command(tuple(argv))


def names_of(recipe: Recipe) -> dict[str, Any]:
    """Return the fields of a recipe by which tables know its runs."""
    return {
        "dataset": recipe.dataset,
        "dataset_note": recipe.note,
        "variant": recipe.variant,
        "variant_name": recipe.label,
        "settings": recipe.settings,
        "config": recipe.config,
        "seed": recipe.seed,
        "model": asdict(recipe.model),
    }


def summarize(recipe: Recipe) -> dict[str, Any]:
    """Return everything that a results table needs of a run.

    Raises:
        AnalysisError, OSError, ValueError: a result is missing, or its file damaged.
    """
    run, summary = recipe.run_dir, names_of(recipe)
    measures = run / "measures.json"
    if measures.is_file():  # a language model
        summary |= read_json(measures)
    else:
        for read in RESULTS:
            summary |= read(run)
    return {**summary, "training": read_json(run / "train.json"), **describe_environment()}

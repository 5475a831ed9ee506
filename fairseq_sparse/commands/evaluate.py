"""Decode, score, validate and analyse a checkpoint in one go, and print its row of results.

RUN is a --save-dir of fairseq-train, the folder of a recipe's run, or a checkpoint. What is
measured goes into the folder, where table results and report read it; of a recipe's run, whose own
results stay as they are, and of a checkpoint, into a folder named after the checkpoint (a for a.pt,
a-results for a). A second call measures only what has changed. The row is about the test set: of
another part, the score is printed, and is in bleu-PART.json.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable
from pathlib import Path

from fairseq_sparse.commands.common import TOKENIZE, add_tokenize, command_parser, refuse_alone
from fairseq_sparse.commands.models import add_tokenizer
from fairseq_sparse.commands.values import positive
from fairseq_sparse.errors import AnalysisError
from fairseq_sparse.files import lines_of, read_json
from fairseq_sparse.measure.alignment import SUBWORDS
from fairseq_sparse.recipes import records
from fairseq_sparse.recipes.data import is_unspaced
from fairseq_sparse.recipes.plan import USER_DIR, Argument, Command, Plan, Stage


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = command_parser("evaluate", __doc__)
    parser.add_argument("run", metavar="RUN", type=Path)
    parser.add_argument(
        "data", metavar="DATA", type=Path, help="folder that fairseq-preprocess made"
    )
    parser.add_argument("--subset", default="test", help="part of the data (default: test)")
    text = "raw text; without it there is no BLEU"
    parser.add_argument("--reference", type=Path, metavar="FILE", help=text)
    parser.add_argument("--beam", type=positive, default=5, metavar="N", help="(default: 5)")
    text = "how subwords become words (default: by the marks in the dictionary)"
    parser.add_argument("--post-process", choices=SUBWORDS, help=text)
    add_tokenizer(parser)
    add_tokenize(parser)
    parser.add_argument("--cpu", action="store_true", help="do not use a GPU")
    options = parser.parse_args(arguments)
    refuse_alone(parser, options, "tokenize", "reference")
    return options


def find_languages(data: Path, subset: str) -> tuple[str, str]:
    """Return the languages of a part of the data, by the names of its files."""
    name = re.compile(rf"{re.escape(subset)}\.([^.]+)-([^.]+)\.\1\.(?:bin|idx)")
    for path in sorted(data.glob(f"{subset}.*")):
        if found := name.fullmatch(path.name):
            return found[1], found[2]
    raise AnalysisError(
        f"{data}: no {subset}.SOURCE-TARGET.SOURCE.bin, which fairseq-preprocess makes"
    )


def find_post_process(entries: Iterable[str]) -> str:
    """Return how words are split, by the marks of most of a dictionary's marked entries.

    Text from the web has single words with the marks of the other kind.
    """
    entries = list(entries)
    pieces = sum(entry.startswith("\u2581") for entry in entries)
    parts = sum(entry.endswith("@@") for entry in entries)
    if parts > pieces:
        return "subword_nmt"
    return "sentencepiece" if pieces else "none"


def read_dictionary(data: Path, language: str) -> list[str]:
    """Return the entries of the dictionary that fairseq-preprocess made for a language."""
    path = data / f"dict.{language}.txt"
    if not path.is_file():
        raise AnalysisError(f"{data}: no {path.name}, which fairseq-preprocess makes")
    return [line.split(" ")[0] for line in lines_of(path)]


def results_folder(run: Path, checkpoint: Path) -> Path:
    """Return the folder for the results; they never replace those of a recipe."""
    if run.is_file():
        return run.with_suffix("") if run.suffix else run.with_name(f"{run.name}-results")
    return run / checkpoint.stem if (run / "run.json").exists() else run


def score_files(subset: str) -> tuple[str, str]:
    """Return the names of the files of translations and score; without a part, the test set's."""
    part = "" if subset == "test" else f"-{subset}"
    return f"hyp{part}.detok.txt", f"bleu{part}.json"


def plan(options: argparse.Namespace, checkpoint: Path, folder: Path) -> Plan:
    """Return the plan: fairseq-generate, fairseq-validate, the score, and the analyses."""
    from fairseq_sparse.tables.results import attention_file

    data, subset = options.data.absolute(), options.subset
    source, target = find_languages(data, subset)
    if options.reference and options.tokenize == TOKENIZE and is_unspaced(target):
        raise AnalysisError(
            f"{target} is written without spaces, which {TOKENIZE} needs to find words: give "
            "--tokenize, such as ja-mecab, zh or char; or none if the reference is "
            "tokenised, with --tokenizer space"
        )
    post_process = options.post_process or find_post_process(read_dictionary(data, target))
    text = ["--tokenizer", options.tokenizer, "--source-lang", source, "--target-lang", target]
    if post_process != "none":
        text += ["--post-process", post_process]
    device = ["--cpu"] if options.cpu else []
    common = (data, "--user-dir", USER_DIR, "--task", "translation_sparse", "--path", checkpoint)
    common += ("--max-tokens", "4000", "--num-workers", "0", *device)
    generated, validated = folder / f"generate-{subset}.txt", folder / f"validate-{subset}.txt"
    search = ("--gen-subset", subset, "--beam", str(options.beam), "--log-format", "simple")
    rest = ("--valid-subset", subset, "--required-batch-size-multiple", "1", "--log-format", "json")
    decoding = (
        Command(("fairseq-generate", *common, *search, *text), stdout=generated, with_errors=True),
        Command(("fairseq-validate", *common, *rest), stdout=validated, with_errors=True),
    )
    inputs = (checkpoint, *sorted(data.glob(f"{subset}.*")))
    settings = {"beam": options.beam, "text": text}
    references = (options.reference.absolute(),) if options.reference else ()
    scores = tuple(folder / name for name in score_files(subset))
    argv = ("fairseq-sparse", "score", generated, "--reference", *references)
    argv += ("--tokenize", options.tokenize, "--output", scores[0], "--json", scores[1])
    scored = (generated, *references)
    how, scoring = {"tokenize": options.tokenize}, Command(argv, outputs=scores)
    score = Stage(f"score-{subset}", folder, how, scored, scores, (scoring,))

    def before() -> None:
        """Remove the scores of an earlier call, which are of other translations."""
        if records.path_of(score).exists() and not records.foreign(score):
            for path in scores:
                records.remove(path)

    name, outputs = f"evaluate-{subset}", (generated, validated)
    decode = Stage(name, folder, settings, inputs, outputs, decoding, before=before)

    def analysis(kind: str, *flags: Argument, outputs: tuple[Path, ...] = ()) -> Command:
        argv = ("fairseq-sparse", "analyze", kind, data, "--path", checkpoint, "--subset", subset)
        return Command((*argv, *device, *flags), outputs=outputs)

    attention: tuple[Argument, ...] = ("--subwords", post_process)
    measured: tuple[Path, ...] = ()
    if folder.resolve() != checkpoint.parent:  # away from its measurements, a table reads this file
        measured = (folder / attention_file(subset),)
        attention += ("--json", *measured)
    analyses = (
        analysis("attention", *attention, outputs=measured),
        analysis("support", "--no-search"),
    )
    analyze = Stage(f"analyze-{subset}", folder, settings, inputs, (), analyses)
    stages = (decode, *([score] if references else []), analyze)
    return Plan(f"evaluation of {checkpoint.name} on {subset}", stages)


def run(options: argparse.Namespace) -> None:
    from fairseq_sparse.commands import score, table_results
    from fairseq_sparse.measure.run_folders import find_checkpoint
    from fairseq_sparse.recipes import engine

    if options.reference and not options.reference.is_file():
        raise AnalysisError(f"--reference {options.reference}: there is no such file")
    checkpoint = find_checkpoint(options.run)
    folder = results_folder(options.run, checkpoint)
    folder.mkdir(exist_ok=True)
    made = plan(options, checkpoint, folder.absolute())
    records.refuse_foreign(made.stages)
    # The analyses always run, and read what they have measured before unless it was deleted.
    analyze = made.stages[-1]
    for path in (*records.made(analyze), records.path_of(analyze)):
        records.remove(path)
    engine.run(made)
    if options.subset == "test":
        # Beside a single checkpoint, the results would not count.
        table_results.run(table_results.parse_arguments([str(folder)]))
    elif options.reference:
        print(score.describe(read_json(folder / score_files(options.subset)[1])))

"""Table of the scripts: how to make good input for each, and what it reads and writes."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Union

import gold_alignment_table
import make_corpus
from fairseq_sparse.commands import (
    cli,
)
from script_input import (
    DRAW_PAIRS,
    MAKE_SHEETS,
    generated,
    gold_set,
    in_folder,
    inflection,
    judged_pairs,
    links,
    model_and_data,
    nothing,
    parallel,
    ranked_pairs,
    run_with_model,
    sentences,
    sheets,
    speeds,
    tagged,
    two_checkpoints,
)


@dataclass(frozen=True)
class Script:
    """A script on good input, in a folder of its own.

    Attributes:
        main: its function ``main``, or the name of a command of fairseq-sparse.
        arguments: its command line; ``{}`` is the folder.
        make: writes the input into the folder, given the folder that has model and data.
        texts: the text files that it reads.
        counted: the files in which no line may be missing or added.
        json: the JSON files that it reads.
        binary: other files that it reads.
        says: words that a message may have in place of a file's name.
        optional: the input files that it can do without.
        written: the files that it writes.
        chosen: the written files that a flag names.
        keeps: globs of files that an interrupted run may leave for the next one.
    """

    main: Union[Callable, str]
    arguments: str
    make: Callable[[Path, Path], None]
    texts: tuple[str, ...] = ()
    counted: tuple[str, ...] = ()
    json: tuple[str, ...] = ()
    binary: tuple[str, ...] = ()
    says: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    written: tuple[str, ...] = ()
    chosen: tuple[str, ...] = ()
    keeps: tuple[str, ...] = ()

    @property
    def called(self) -> str:
        """The name with which its messages begin."""
        return f"fairseq-sparse {self.main}" if self.is_command else self.main.__module__

    @property
    def is_command(self) -> bool:
        return isinstance(self.main, str)

    def command(self, folder: Path) -> list[str]:
        return in_folder(self.arguments, folder)

    def run(self, folder: Path) -> int:
        """Run it in this process, and return its exit status."""
        if self.is_command:
            return cli.run(self.main, self.command(folder))
        return self.main(self.command(folder))


DATA = ("bin/dict.de.txt", "bin/dict.en.txt")
KEPT = ("measurements-model/*", "measurements-model")
MODEL = ("model.pt", "bin/test.de-en.de.idx", "bin/test.de-en.en.bin")
ON_MODEL = "{}/bin --path {}/model.pt --cpu"

SCRIPTS = {
    "analyze attention": Script(
        "analyze attention",
        f"{ON_MODEL} --json {{}}/out/a.json --by-previous 2 --tags {{}}/tags.txt",
        tagged,
        texts=(*DATA, "tags.txt"),
        counted=("tags.txt",),
        binary=MODEL,
        written=("out/a.json",),
        chosen=("out/a.json",),
        keeps=KEPT,
    ),
    "analyze empty": Script(
        "analyze empty",
        f"{ON_MODEL} --sentences 2 --json {{}}/out/a.json",
        model_and_data,
        texts=DATA,
        binary=MODEL[:2],  # it needs no references
        written=("out/a.json",),
        chosen=("out/a.json",),
    ),
    "analyze support": Script(
        "analyze support",
        f"{ON_MODEL} --sentences 2 --beams 1 --log {{}}/log --json {{}}/out/a.json",
        lambda folder, common: (
            model_and_data(folder, common),
            shutil.copy(common / "log", folder / "log"),
        ),
        binary=("log",),  # of a killed training, perhaps
        written=("out/a.json",),
        chosen=("out/a.json",),
    ),
    "analyze alternatives": Script(
        "analyze alternatives",
        f"{ON_MODEL} --sentence 1 --json {{}}/out/a.json",
        model_and_data,
        written=("out/a.json",),
        chosen=("out/a.json",),
    ),
    "draw tree": Script(
        "draw tree",
        f"{ON_MODEL} --sentence 1 --nodes 9 --json {{}}/out/a.json",
        model_and_data,
        written=("out/a.json",),
        chosen=("out/a.json",),
    ),
    "analyze samples": Script(
        "analyze samples",
        "{}/generated.txt --text {}/reference.txt --json {}/out/a.json",
        generated,
        texts=("generated.txt", "reference.txt"),
        written=("out/a.json",),
        chosen=("out/a.json",),
    ),
    "average": Script(
        "average",
        "--inputs {}/checkpoint1.pt {}/checkpoint2.pt --output {}/out/mean.pt",
        two_checkpoints,
        binary=("checkpoint1.pt", "checkpoint2.pt"),
        written=("out/mean.pt",),
    ),
    "compare": Script(
        "compare",
        "one={}/one.txt two={}/two.txt --source {}/source.txt --reference {}/reference.txt "
        "--sentences 3 --trials 5 --json {}/out/a.json",
        sentences,
        texts=("source.txt", "reference.txt", "one.txt", "two.txt"),
        counted=("source.txt", "reference.txt", "one.txt", "two.txt"),
        written=("out/a.json",),
        chosen=("out/a.json",),
    ),
    "corpus clean": Script(
        "corpus clean",
        "--input {} --output-folder {}/out --languages de en",
        parallel,
        texts=("train.de", "valid.en", "test.en"),
        counted=("train.en", "valid.de", "test.de"),
        written=("out/train.en", "out/test.de"),
        keeps=("out/*",),
    ),
    "corpus extract": Script(
        "corpus extract",
        "--raw {} --output-folder {}/out --languages de en "
        "--take train text train.de train.en --take test text test.de test.en",
        parallel,
        binary=("train.de", "test.en"),  # lines that are not UTF-8 are read as Latin-1
        counted=("train.de", "test.en"),
        written=("out/train.de",),
        keeps=("out/*",),
    ),
    "corpus inflection": Script(
        "corpus inflection",
        "--raw {} --setting low --output-folder {}/out",
        inflection,
        says=("LANG-train-low",),
        texts=("turkish-train-low", "turkish-dev", "turkish-test"),
        written=("out/characters/test.form", "out/text/test.tsv"),
    ),
    "draw attention": Script(
        "draw attention",
        f"{ON_MODEL} --sentence 1 --output {{}}/out/a.svg",
        model_and_data,
        texts=DATA,
        binary=MODEL,
        written=("out/a.svg",),
        chosen=("out/a.svg",),
    ),
    "align": Script(
        "align",
        f"{ON_MODEL} --output-folder {{}}/out/links",
        model_and_data,
        texts=DATA,
        binary=MODEL,
        written=("out/links/source.txt", "out/links/manifest.json"),
        keeps=("out/links/parts/*", "out/links/*.partial"),
    ),
    "gold_alignment_table": Script(
        gold_alignment_table.main,
        "{}/DeEn --prepared {}/prepared --path {}/model.pt --cpu --output {}/out",
        gold_set,
        texts=("DeEn/alignmentDeEn.talp", "prepared/bpe.codes")
        + tuple(f"prepared/{path}" for path in DATA),
        json=("stages/prepare.json",),
        counted=("DeEn/de", "DeEn/en", "DeEn/alignmentDeEn.talp"),
        binary=("model.pt", "DeEn/de", "DeEn/en"),
        written=("out/alignment_error_rate.json", "out/alignment_error_rate.png"),
        keeps=("out/*",),
    ),
    "sheets make": Script(
        "sheets make",
        MAKE_SHEETS,
        sentences,
        texts=("source.txt", "reference.txt", "one.txt", "two.txt"),
        counted=("source.txt", "reference.txt", "one.txt", "two.txt"),
        written=("out/key.json", "out/annotator_1.csv"),
    ),
    "make_corpus": Script(
        make_corpus.main,
        "{}/out --train 600 --valid 3 --test 3 --held-out 1",
        nothing,
        written=("out/train.de",),
    ),
    "mbr": Script(
        "mbr",
        "{}/generated.txt --reference {}/reference.txt --output {}/out/h.txt --json {}/out/a.json",
        generated,
        texts=("generated.txt", "reference.txt"),
        counted=("reference.txt",),
        written=("out/h.txt", "out/a.json"),
        chosen=("out/h.txt", "out/a.json"),
    ),
    "analyze nulls": Script(
        "analyze nulls",
        f"{ON_MODEL} --bad {{}}/bad.txt --output {{}}/out/a.tsv --json {{}}/out/a.json",
        lambda folder, common: (
            model_and_data(folder, common),
            (folder / "bad.txt").write_text("0\n1\n" * 15),
        ),
        texts=(*DATA, "bad.txt"),
        counted=("bad.txt",),
        binary=MODEL,
        written=("out/a.tsv", "out/a.json"),
        chosen=("out/a.tsv", "out/a.json"),
    ),
    "report": Script(
        "report",
        "{}/run --data {}/bin --cpu --sentences 2 --output {}/out/a.html",
        run_with_model,
        texts=("run/logs/train.log",),
        json=("run/summary.json", "run/alignment.json"),
        binary=("run/average.pt",),
        optional=("run/logs/train.log", "run/summary.json", "run/alignment.json"),
        written=("out/a.html",),
        chosen=("out/a.html",),
        keeps=("run/measurements/*", "run/measurements"),
    ),
    "table results": Script(
        "table results",
        "{}/run --speeds {}/speeds.json",
        speeds,
        json=("run/summary.json", "speeds.json"),
    ),
    "sheets draw-pairs": Script(
        "sheets draw-pairs",
        DRAW_PAIRS,
        ranked_pairs,
        texts=("pairs.tsv",),
        written=("out/key.json", "out/sheet.csv"),
    ),
    "sheets score-pairs": Script(
        "sheets score-pairs",
        "{}/key.json {}/sheet.csv --json {}/out/a.json",
        judged_pairs,
        texts=("sheet.csv",),
        counted=("sheet.csv",),
        json=("key.json",),
        written=("out/a.json",),
        chosen=("out/a.json",),
    ),
    "analyze alignment": Script(
        "analyze alignment",
        "{}/gold.txt {}/links.txt --json {}/out/a.json",
        links,
        texts=("gold.txt", "links.txt"),
        counted=("gold.txt", "links.txt"),
        written=("out/a.json",),
        chosen=("out/a.json",),
    ),
    "sheets score": Script(
        "sheets score",
        "{}/key.json {}/annotator_1.csv {}/annotator_2.csv --json {}/out/a.json",
        sheets,
        texts=("annotator_1.csv", "annotator_2.csv"),
        counted=("annotator_1.csv", "annotator_2.csv"),
        json=("key.json",),
        written=("out/a.json",),
        chosen=("out/a.json",),
    ),
    "score-inflection": Script(
        "score-inflection",
        "{}/generated.txt --reference {}/test.tsv --guesses {}/out/guesses --json {}/out/a.json",
        generated,
        texts=("generated.txt", "test.tsv"),
        counted=("test.tsv",),
        written=("out/a.json", "out/guesses/turkish-out"),
        chosen=("out/a.json",),
    ),
    "score": Script(
        "score",
        "{}/generated.txt --reference {}/reference.txt --output {}/out/h.txt --json {}/out/a.json",
        generated,
        texts=("generated.txt", "reference.txt"),
        counted=("generated.txt", "reference.txt"),
        written=("out/h.txt", "out/a.json"),
        chosen=("out/h.txt", "out/a.json"),
    ),
}

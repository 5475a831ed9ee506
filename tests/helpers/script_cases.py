"""Each script with good input, as a table: what makes it, what the script reads and writes."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import batch_size
import checkpoints
import gold_alignment_table
import make_corpus
import prepare_inflection
import prepare_text
import report_runs
import reproduce_table
import score_inflection
import summarize_run
import summarize_sweep
import unpack_corpus
from fairseq_sparse.commands import (
    align,
    analyze_alignment,
    analyze_attention,
    analyze_nulls,
    analyze_output,
    analyze_samples,
    average,
    compare,
    draw_attention,
    draw_mappings,
    mbr,
    report,
    score,
    sheets_make,
    sheets_pairs,
    sheets_score,
    table_results,
    table_sizes,
    table_thresholds,
)

LINES = 6


@dataclass(frozen=True)
class Script:
    """A script on good input, in a folder of its own.

    Attributes:
        main: its ``main``.
        arguments: what it is given; ``{}`` is the folder.
        make: writes the input into the folder, given the folder that has model and data.
        texts: the files of text that it reads.
        counted: those of which no line may be lost.
        json: the files of JSON that it reads.
        binary: other files that it reads.
        says: what a message may say in place of a file's name.
        optional: those of all these that it can do without.
        written: the files that it writes.
        chosen: those of them that a flag names.
        keeps: what an interrupted run may leave for the next one, as globs.
    """

    main: Callable
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
        """What its messages begin with."""
        module = self.main.__module__
        command = module.removeprefix("fairseq_sparse.commands.")
        return module if command == module else f"fairseq-sparse {command.replace('_', ' ')}"

    def command(self, folder: Path) -> list[str]:
        return [part.replace("{}", str(folder)) for part in self.arguments.split()]


def model_and_data(folder: Path, common: Path) -> None:
    shutil.copytree(common / "bin", folder / "bin")
    shutil.copy(common / "model.pt", folder / "model.pt")
    (folder / "out").mkdir()


def gold_set(folder: Path, common: Path) -> None:
    """The test set in the layout of a gold set, as if it had been split into BPE units."""
    model_and_data(folder, common)
    shutil.move(folder / "bin", folder / "prepared" / "bin")
    (folder / "prepared" / "settings").write_text("languages de en\nbpe_merges 1\n")
    (folder / "prepared" / "bpe.codes").write_text("#version: 0.2\nw 1</w>\n")
    (folder / "DeEn").mkdir()
    for language in ("de", "en"):
        shutil.copy(common / f"test.{language}", folder / "DeEn" / language)
    lines = (common / "test.de").read_text("utf-8").count("\n")
    (folder / "DeEn" / "alignmentDeEn.talp").write_text("1-1 2p2\n" * lines)


def tagged(folder: Path, common: Path) -> None:
    model_and_data(folder, common)
    shutil.copy(common / "test.en", folder / "tags.txt")  # as many tags as words


def parallel(folder: Path, common: Path) -> None:
    (folder / "out").mkdir()
    for split in ("train", "valid", "test"):
        for language in ("de", "en"):
            text = "".join(f"Über {language} {n} läuft .\n" for n in range(2 * LINES))
            (folder / f"{split}.{language}").write_text(text, "utf-8")


def inflection(folder: Path, common: Path) -> None:
    (folder / "out").mkdir()
    for part in ("train-low", "dev", "test"):
        (folder / f"turkish-{part}").write_text("ev\tevler\tN;PL\nüç\tüçler\tN;PL\n", "utf-8")


def sentences(folder: Path, common: Path) -> None:
    (folder / "out").mkdir()
    for name in ("source", "reference", "one", "two"):
        lines = [f"{name} für {n}\n" for n in range(LINES)]
        (folder / f"{name}.txt").write_text("".join(lines), "utf-8")


def sheets(folder: Path, common: Path) -> None:
    sentences(folder, common)
    case = SCRIPTS["make_annotation_sheets"]
    sheets_make.main(case.command(folder))
    for name in ("key.json", "annotator_1.csv", "annotator_2.csv"):
        shutil.move(folder / "out" / name, folder / name)
    for path in folder.glob("*.csv"):
        header, *rows = csv.reader(path.read_text("utf-8-sig").splitlines())
        with open(path, "w", encoding="utf-8", newline="") as handle:
            rows = [[*row[:3], "3", *row[4:]] for row in rows]
            csv.writer(handle, lineterminator="\n").writerows([header, *rows])


def ranked_pairs(folder: Path, common: Path) -> None:
    (folder / "out").mkdir()
    lines = ["rank\tsentence\tnull_rate\tsource\ttarget"]
    lines += [f"{n}\t{n}\t0.{9 - n}\tfür {n}\tfor {n}" for n in range(1, 9)]
    (folder / "pairs.tsv").write_text("\n".join(lines) + "\n", "utf-8")


def judged_pairs(folder: Path, common: Path) -> None:
    ranked_pairs(folder, common)
    sheets_pairs.main(SCRIPTS["sample_ranked_pairs draw"].command(folder))
    for name in ("key.json", "sheet.csv"):
        shutil.move(folder / "out" / name, folder / name)
    header, *rows = csv.reader((folder / "sheet.csv").read_text("utf-8-sig").splitlines())
    with open(folder / "sheet.csv", "w", encoding="utf-8", newline="") as handle:
        rows = [[*row[:3], "yes", *row[4:]] for row in rows]
        csv.writer(handle, lineterminator="\n").writerows([header, *rows])


def generated(folder: Path, common: Path) -> None:
    (folder / "out").mkdir()
    items = [("turkish", f"ev{n}", "N;PL", f"évler{n}") for n in range(LINES)]
    texts = {
        "generated.txt": "".join(
            f"T-{n}\t{item[3]}\nH-{n}\t-0.1\t{item[3]}\nD-{n}\t-0.1\t{item[3]}\n"
            for n, item in enumerate(items)
        ),
        "test.tsv": "".join("\t".join(item) + "\n" for item in items),
        "reference.txt": "".join(f"{item[3]}\n" for item in items),
    }
    for name, text in texts.items():
        (folder / name).write_text(text, "utf-8")


def links(folder: Path, common: Path) -> None:
    (folder / "out").mkdir()
    for name in ("gold.txt", "links.txt"):
        (folder / name).write_text("0-0 1-1\n" * LINES)


def finished_run(folder: Path, common: Path) -> None:
    """What the stages of a recipe leave, but for the model."""
    (folder / "logs").mkdir(parents=True)
    numbers = {"epoch": 1, "train_loss": 2, "train_wps": 9, "train_train_wall": 5}
    numbers = {name: str(value) for name, value in {**numbers, "train_num_updates": 7}.items()}
    log = f"x | INFO | train | {json.dumps(numbers)}\n"
    (folder / "logs" / "2_train.log").write_text(log)
    test = json.dumps({"test_loss": "2.5", "test_nonzeros": "7"})
    (folder / "validate-test.txt").write_text(f"x | INFO | test | {test}\n")
    speed = "Translated 10 sentences (90 tokens) in 1.0s (10.0 sentences/s, 90 tokens/s)\n"
    (folder / "generate-test.txt").write_text(speed)
    bleu = {"bleu": 35.125, "signature": "a|b", "empty_translations": 0}
    rates = {place: {"sparsity": 0.5, "null": 0.0, "layers": []} for place in ("encoder", "cross")}
    for name, content in (
        ("bleu", bleu),
        ("attention", {"attention": rates}),
        ("train", report_runs.SUMMARY["training"]),
        ("summary", report_runs.SUMMARY),
    ):
        (folder / f"{name}.json").write_text(json.dumps(content))


def sweep(folder: Path, common: Path) -> None:
    finished_run(folder / "output-1.5-attention-1" / "seed-1", common)


def plan(folder: Path, common: Path) -> None:
    (folder / "out").mkdir()
    finished_run(folder / "run", common)
    row = ["1", "wmt14_en_fr", "rela_g", "-", "-", str(folder / "data"), str(folder / "run")]
    (folder / "plan.txt").write_text("\t".join(row) + "\n")


def speeds(folder: Path, common: Path) -> None:
    finished_run(folder / "run", common)
    (folder / "speeds.json").write_text(json.dumps({"results": []}))


def run_with_model(folder: Path, common: Path) -> None:
    model_and_data(folder, common)
    finished_run(folder / "run", common)
    shutil.copy(common / "model.pt", folder / "run" / "average.pt")
    (folder / "run" / "alignment.json").write_text(json.dumps(report_runs.ALIGNMENT))


def two_checkpoints(folder: Path, common: Path) -> None:
    (folder / "out").mkdir()
    checkpoints.write(folder, [checkpoints.make_state(0.0), checkpoints.make_state(1.0)])


def nothing(folder: Path, common: Path) -> None:
    (folder / "out").mkdir()


DATA = ("bin/dict.de.txt", "bin/dict.en.txt")
MODEL = ("model.pt", "bin/test.de-en.de.idx", "bin/test.de-en.en.bin")
ON_MODEL = "{}/bin --path {}/model.pt --cpu"
SUMMED = ("bleu.json", "attention.json", "train.json")

SCRIPTS = {
    "analyze_attention": Script(
        analyze_attention.main,
        f"{ON_MODEL} --json {{}}/out/a.json --by-previous 2 --tags {{}}/tags.txt",
        tagged,
        texts=(*DATA, "tags.txt"),
        counted=("tags.txt",),
        binary=MODEL,
        written=("out/a.json",),
        chosen=("out/a.json",),
    ),
    "analyze_output empty": Script(
        analyze_output.main,
        f"empty {ON_MODEL} --sentences 2 --json {{}}/out/a.json",
        model_and_data,
        texts=DATA,
        binary=MODEL[:2],  # it needs no references
        written=("out/a.json",),
        chosen=("out/a.json",),
    ),
    "analyze_output support": Script(
        analyze_output.main,
        f"support {ON_MODEL} --sentences 2 --beams 1 --log {{}}/log --json {{}}/out/a.json",
        lambda folder, common: (
            model_and_data(folder, common),
            shutil.copy(common / "log", folder / "log"),
        ),
        texts=("log",),
        written=("out/a.json",),
        chosen=("out/a.json",),
    ),
    "analyze_output alternatives": Script(
        analyze_output.main,
        f"alternatives {ON_MODEL} --sentence 1 --json {{}}/out/a.json",
        model_and_data,
        written=("out/a.json",),
        chosen=("out/a.json",),
    ),
    "analyze_output tree": Script(
        analyze_output.main,
        f"tree {ON_MODEL} --sentence 1 --nodes 9 --json {{}}/out/a.json",
        model_and_data,
        written=("out/a.json",),
        chosen=("out/a.json",),
    ),
    "analyze samples": Script(
        analyze_samples.main,
        "{}/generated.txt --text {}/reference.txt --json {}/out/a.json",
        generated,
        texts=("generated.txt", "reference.txt"),
        written=("out/a.json",),
        chosen=("out/a.json",),
    ),
    "average_checkpoints": Script(
        average.main,
        "--inputs {}/checkpoint1.pt {}/checkpoint2.pt --output {}/out/mean.pt",
        two_checkpoints,
        binary=("checkpoint1.pt", "checkpoint2.pt"),
        written=("out/mean.pt",),
    ),
    "batch_size": Script(
        batch_size.main,
        "{}/bin --source-lang de --target-lang en --target-tokens 200 --device-tokens 100",
        lambda folder, common: shutil.copytree(common / "bin", folder / "bin"),
        binary=("bin/train.de-en.de.idx", "bin/train.de-en.en.idx"),
    ),
    "compare_translations": Script(
        compare.main,
        "one={}/one.txt two={}/two.txt --source {}/source.txt --reference {}/reference.txt "
        "--json {}/out/a.json",
        sentences,
        texts=("source.txt", "reference.txt", "one.txt", "two.txt"),
        counted=("source.txt", "reference.txt", "one.txt", "two.txt"),
        written=("out/a.json",),
        chosen=("out/a.json",),
    ),
    "draw_attention": Script(
        draw_attention.main,
        f"{ON_MODEL} --sentence 1 --output {{}}/out/a.svg",
        model_and_data,
        texts=DATA,
        binary=MODEL,
        written=("out/a.svg",),
        chosen=("out/a.svg",),
    ),
    "draw_mappings": Script(
        draw_mappings.main,
        "entmax --output {}/out/a.png {}/out/a.svg",
        nothing,
        written=("out/a.png", "out/a.svg"),
    ),
    "extract_alignments": Script(
        align.main,
        f"{ON_MODEL} --output {{}}/out/links",
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
        texts=("DeEn/alignmentDeEn.talp", "prepared/settings", "prepared/bpe.codes")
        + tuple(f"prepared/{path}" for path in DATA),
        counted=("DeEn/de", "DeEn/en", "DeEn/alignmentDeEn.talp"),
        binary=("model.pt", "DeEn/de", "DeEn/en"),
        written=("out/alignment_error_rate.json", "out/alignment_error_rate.png"),
        keeps=("out/*",),
    ),
    "make_annotation_sheets": Script(
        sheets_make.main,
        "one={}/one.txt two={}/two.txt --source {}/source.txt --reference {}/reference.txt "
        "--output {}/out --sentences 4 --shared 2",
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
        mbr.main,
        "{}/generated.txt --reference {}/reference.txt --output {}/out/h.txt --json {}/out/a.json",
        generated,
        texts=("generated.txt", "reference.txt"),
        counted=("reference.txt",),
        written=("out/h.txt", "out/a.json"),
        chosen=("out/h.txt", "out/a.json"),
    ),
    "model_size": Script(
        table_sizes.main,
        "--arch transformer_sparse_tiny --source-vocabulary 9 --target-vocabulary 9 "
        "--kinds rela_g --json {}/out/a.json",
        nothing,
        written=("out/a.json",),
        chosen=("out/a.json",),
    ),
    "prepare_inflection": Script(
        prepare_inflection.main,
        "--data {} --setting low --output {}/out",
        inflection,
        says=("LANG-train-low",),
        texts=("turkish-train-low", "turkish-dev", "turkish-test"),
        written=("out/characters/test.form", "out/reference/test.tsv"),
    ),
    "prepare_text": Script(
        prepare_text.main,
        "--source-lang de --target-lang en --train {}/train --valid {}/valid --test {}/test "
        "--bpe-merges 5 --output {}/out --workers 1",
        parallel,
        texts=("train.de", "valid.en", "test.en"),
        counted=("train.en", "valid.de", "test.de"),
        written=("out/bpe/test.en", "out/bpe.codes", "out/reference/test.de"),
        keeps=("out/*",),
    ),
    "rank_by_null_attention": Script(
        analyze_nulls.main,
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
        report.main,
        "{}/run --data {}/bin --cpu --sentences 2 --output {}/out/a.html",
        run_with_model,
        texts=("run/logs/2_train.log",),
        json=("run/summary.json", "run/alignment.json"),
        binary=("run/average.pt",),
        optional=("run/logs/2_train.log", "run/summary.json", "run/alignment.json"),
        written=("out/a.html",),
        chosen=("out/a.html",),
        keeps=("run/report/*", "run/report"),
    ),
    "reproduce_table": Script(
        reproduce_table.main,
        "{}/plan.txt --paper speeding_up_entmax --title T --columns bleu --output {}/out/table",
        plan,
        texts=("plan.txt",),
        json=("run/summary.json",),
        says=("no run of",),
        written=("out/table.md", "out/table.tex", "out/table.json"),
    ),
    "results_table": Script(
        table_results.main,
        "{}/run --speeds {}/speeds.json",
        speeds,
        json=("run/summary.json", "speeds.json"),
    ),
    "sample_ranked_pairs draw": Script(
        sheets_pairs.main,
        "draw {}/pairs.tsv --output {}/out --pairs 2 --ends 3",
        ranked_pairs,
        texts=("pairs.tsv",),
        written=("out/key.json", "out/sheet.csv"),
    ),
    "sample_ranked_pairs score": Script(
        sheets_pairs.main,
        "score {}/key.json {}/sheet.csv --json {}/out/a.json",
        judged_pairs,
        texts=("sheet.csv",),
        counted=("sheet.csv",),
        json=("key.json",),
        written=("out/a.json",),
        chosen=("out/a.json",),
    ),
    "score_alignments": Script(
        analyze_alignment.main,
        "{}/gold.txt {}/links.txt --json {}/out/a.json",
        links,
        texts=("gold.txt", "links.txt"),
        counted=("gold.txt", "links.txt"),
        written=("out/a.json",),
        chosen=("out/a.json",),
    ),
    "score_annotation_sheets": Script(
        sheets_score.main,
        "{}/key.json {}/annotator_1.csv {}/annotator_2.csv --json {}/out/a.json",
        sheets,
        texts=("annotator_1.csv", "annotator_2.csv"),
        counted=("annotator_1.csv", "annotator_2.csv"),
        json=("key.json",),
        written=("out/a.json",),
        chosen=("out/a.json",),
    ),
    "score_inflection": Script(
        score_inflection.main,
        "--generated {}/generated.txt --reference {}/test.tsv --guesses {}/out/guesses "
        "--json {}/out/a.json",
        generated,
        texts=("generated.txt", "test.tsv"),
        counted=("test.tsv",),
        written=("out/a.json", "out/guesses/turkish-out"),
        chosen=("out/a.json",),
    ),
    "score_translation": Script(
        score.main,
        "--generated {}/generated.txt --reference {}/reference.txt "
        "--hypotheses {}/out/h.txt --json {}/out/a.json",
        generated,
        texts=("generated.txt", "reference.txt"),
        counted=("generated.txt", "reference.txt"),
        written=("out/h.txt", "out/a.json"),
        chosen=("out/h.txt", "out/a.json"),
    ),
    "summarize_run train": Script(
        summarize_run.main,
        "train {}",
        finished_run,
        binary=("logs/2_train.log",),
        written=("train.json",),
    ),
    "summarize_run all": Script(
        summarize_run.main,
        "all {}",
        finished_run,
        texts=("validate-test.txt", "generate-test.txt"),
        json=SUMMED,
        written=("summary.json",),
    ),
    "summarize_run ensemble": Script(
        summarize_run.main,
        "ensemble {}",
        finished_run,
        texts=("generate-test.txt",),
        json=("bleu.json",),
        written=("summary.json",),
    ),
    "summarize_sweep": Script(
        summarize_sweep.main,
        "{}",
        sweep,
        json=("output-1.5-attention-1/seed-1/summary.json",),
        says=("no finished run",),
        written=("sweep.md", "sweep.json"),
    ),
    "threshold_table": Script(
        table_thresholds.main,
        "--data {}/bin --arch transformer_sparse_tiny --tokens 100 --json {}/out/a.json",
        lambda folder, common: (
            shutil.copytree(common / "bin", folder / "bin"),
            (folder / "out").mkdir(),
        ),
        texts=DATA,
        binary=("bin/train.de-en.de.idx", "bin/train.de-en.en.bin"),
        written=("out/a.json",),
        chosen=("out/a.json",),
    ),
    "unpack_corpus": Script(
        unpack_corpus.main,
        "--source-lang de --target-lang en --raw {} --output {}/out "
        "--take train text train.de train.en --take test text test.de test.en",
        parallel,
        binary=("train.de", "test.en"),  # what is not UTF-8 is read as Latin-1
        counted=("train.de", "test.en"),
        written=("out/train.de",),
        keeps=("out/*",),
    ),
}

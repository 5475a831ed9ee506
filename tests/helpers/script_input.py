"""Good input for the scripts: each function writes that of some scripts into its first folder.

The second folder, shared by all, has a model, its data and their text.
"""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import checkpoints
import report_runs
from fairseq_sparse.commands import cli

LINES = 6
MAKE_SHEETS = (
    "one={}/one.txt two={}/two.txt --source {}/source.txt --reference {}/reference.txt "
    "--output-folder {}/out --sentences 4 --shared 2"
)
DRAW_PAIRS = "{}/pairs.tsv --output-folder {}/out --pairs 2 --pool 3"


def in_folder(arguments: str, folder: Path) -> list[str]:
    """Return arguments as a list, with the folder in place of each ``{}``."""
    return [part.replace("{}", str(folder)) for part in arguments.split()]


def model_and_data(folder: Path, common: Path) -> None:
    shutil.copytree(common / "bin", folder / "bin")
    shutil.copy(common / "model.pt", folder / "model.pt")
    (folder / "out").mkdir()


def gold_set(folder: Path, common: Path) -> None:
    """Write the test set in the layout of a gold set, as if it had been split by BPE."""
    model_and_data(folder, common)
    shutil.move(folder / "bin", folder / "prepared" / "bin")
    record_preparation(folder, "de", "en", bpe_merges=1)
    (folder / "prepared" / "bpe.codes").write_text("#version: 0.2\nw 1</w>\n")
    (folder / "DeEn").mkdir()
    for language in ("de", "en"):
        shutil.copy(common / f"test.{language}", folder / "DeEn" / language)
    lines = (common / "test.de").read_text("utf-8").count("\n")
    (folder / "DeEn" / "alignmentDeEn.talp").write_text("1-1 2p2\n" * lines)


def record_preparation(data: Path, source: str, target: str, **settings: object) -> None:
    """Write the part of the record of the stage prepare that says how text was split."""
    tokens = {source: "moses", target: "moses"}
    names = {"kind": "parallel", "source": source, "target": target, "tokens": tokens}
    (data / "stages").mkdir()
    text = json.dumps({"settings": {**names, **settings}})
    (data / "stages" / "prepare.json").write_text(text)


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
    cli.run("sheets make", in_folder(MAKE_SHEETS, folder))
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
    cli.run("sheets draw-pairs", in_folder(DRAW_PAIRS, folder))
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
    """Write what the stages of a recipe leave, except the model."""
    (folder / "logs").mkdir(parents=True)
    (folder / "run.json").write_text("{}")
    numbers = {"epoch": 1, "train_loss": 2, "train_wps": 9, "train_train_wall": 5}
    numbers = {name: str(value) for name, value in {**numbers, "train_num_updates": 7}.items()}
    log = f"x | INFO | train | {json.dumps(numbers)}\n"
    (folder / "logs" / "train.log").write_text(log)
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


def speeds(folder: Path, common: Path) -> None:
    finished_run(folder / "run", common)
    (folder / "speeds.json").write_text(json.dumps({"benchmark": "decoding", "results": []}))


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

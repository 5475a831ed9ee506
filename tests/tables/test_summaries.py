"""Summaries of runs, and the tables that fairseq-sparse table results makes of them."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

import toy
from benchmark import training_step
from fairseq_sparse.commands import cli
from fairseq_sparse.commands.table_results import model_name
from fairseq_sparse.errors import AnalysisError
from fairseq_sparse.files import sha256_of, write_json
from fairseq_sparse.measure.cache import FORMAT, measurement_file
from fairseq_sparse.measure.machine import describe_environment
from fairseq_sparse.measure.training_log import read_log
from fairseq_sparse.recipes.evaluation import summarize
from fairseq_sparse.recipes.recipe import Options
from fairseq_sparse.recipes.resolve import resolve
from fairseq_sparse.tables.columns import conditions
from fairseq_sparse.tables.results import summarize_training
from fairseq_sparse.tables.summaries import missing_parts, read_run


def line(tag: str, loose: bool = False, **numbers: object) -> str:
    """Return a line of fairseq's JSON log; `loose`: as when logging was set up early."""
    if tag != "train_inner":
        numbers = {f"{tag}_{name}" if name != "epoch" else name: numbers[name] for name in numbers}
    text = json.dumps({name: str(value) for name, value in numbers.items()})
    return f"INFO:{tag}:{text}" if loose else f"2024-01-01 00:00:00 | INFO | {tag} | {text}"


def epoch(number: int, seconds: float, loss: float = 2.0, **valid: object) -> list[str]:
    end = {"epoch": number, "loss": loss, "nonzeros": 90.5, "wps": 1, "watt_hours": number / 8}
    return [
        line("train_inner", epoch=number, wps=1000 * number**2, num_updates=10 * number - 5),
        line("valid", epoch=number, loss=loss + 1, gold_zero=8, tau=1.4, **valid),
        line("train", **end, num_updates=10 * number, train_wall=seconds),
    ]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    run = tmp_path / "ein Lauf"
    (run / "logs").mkdir(parents=True)
    size = "| INFO | fairseq_cli.train | num. shared model params: 1,234 (num. trained: 1,230)"
    log = [size]
    log += [*epoch(1, 60), *epoch(2, 70), "Killed", *epoch(2, 80, 1.5), *epoch(3, 90, 1.25)]
    log += ["epoch 003:  1 / 3 loss=3.75, ppl=13"]  # cut off, in fairseq's format "simple"
    (run / "logs" / "train.log").write_text("\n".join(log) + "\n", encoding="utf-8")
    return run


def trained(run: Path, best: str = "") -> dict:
    """Summarize a training, and write ``train.json``."""
    summary = summarize_training(read_log(run / "logs" / "train.log"), best)
    write_json(run / "train.json", summary)
    return summary


def table_results(*arguments: object) -> subprocess.CompletedProcess[str]:
    return toy.command("table results", *arguments, check=False, together=True)


def test_training_counts_each_epoch_once(run: Path) -> None:
    summary = trained(run)
    assert (summary["epochs"], summary["updates"]) == (3, 30)
    assert summary["seconds"] == 60 + 80 + 90
    assert (summary["watt_hours"], summary["parameters"]) == (3 / 8, 1230)
    assert summary["words_per_second"] == 4000  # the median; the mean is 4500
    assert summary["train"] == {"loss": 1.25, "nonzeros": 90.5}
    assert summary["valid"] == {"loss": 2.25, "gold_zero": 8, "tau": 1.4}
    assert {"python", "torch", "fairseq", "sacrebleu"} <= set(describe_environment()["versions"])


@pytest.mark.slow_except("1")
@pytest.mark.parametrize("epochs", [1, 3])
def test_a_training_killed_after_its_last_checkpoint_is_counted_whole(run: Path, epochs) -> None:
    """fairseq logs the end of an epoch only after it has saved the checkpoint."""
    lines = []
    for number in range(1, epochs + 1):
        lines += epoch(number, 60, num_updates=10 * number)
    # The time of the updates since the last finished epoch is that of these lines.
    ended = {"epoch": epochs, "num_updates": 10 * epochs, "wps": 1, "train_wall": 45}
    lines.insert(-1, line("train_inner", **ended))
    log = run / "logs" / "train.log"
    log.write_text("\n".join(lines[:-1]) + "\n", encoding="utf-8")
    summary = trained(run)
    assert (summary["epochs"], summary["updates"]) == (epochs, 10 * epochs)
    assert summary["seconds"] == 60 * (epochs - 1) + 45


def test_the_validation_is_that_of_the_checkpoint_that_is_used(run: Path) -> None:
    """fairseq keeps the latest of equals, and logs the best so far from the second time on."""
    scores = [50.0, 60.0, 60.0, 55.0]
    lines = [
        text
        for number, accuracy in enumerate(scores, start=1)
        for text in epoch(
            number,
            60,
            loss=number,
            accuracy=accuracy,
            num_updates=10 * number,
            **({"best_accuracy": max(scores[:number])} if number > 1 else {}),
        )
    ]
    (run / "logs" / "train.log").write_text("\n".join(lines) + "\n", encoding="utf-8")
    for best, epochs in ("", 4), ("accuracy", 3):
        summary = trained(run, best)
        assert (summary["valid"]["loss"], summary["updates"]) == (epochs + 1, 40)
    # A folder of fairseq-train has no recipe that names the metric.
    (run / "logs" / "train.log").rename(run / "train.log")
    (run / "run.json").unlink(missing_ok=True)
    for model, epochs in ("checkpoint_last.pt", 4), ("checkpoint_best.pt", 3):
        (run / model).touch()
        assert read_run(run)[0]["training"]["valid"]["loss"] == epochs + 1


def test_a_training_begun_anew_counts_without_its_first_try(run: Path) -> None:
    first, second = (
        [text for n in range(1, epochs + 1) for text in epoch(n, seconds, num_updates=10 * n)]
        for epochs, seconds in ((5, 360), (2, 60))
    )
    log = run / "logs" / "train.log"
    log.write_text("\n".join(second) + "\n", encoding="utf-8")
    alone = trained(run)
    log.write_text("\n".join(first + second) + "\n", encoding="utf-8")
    assert trained(run) == alone and alone["epochs"] == 2


@pytest.mark.slow_except("False")
@pytest.mark.parametrize("loose", [False, True])
def test_everything_in_one_table(loose: bool, run: Path) -> None:
    trained(run)
    recipe = resolve("quickstart", "entmax15", Options(run_dir=run))
    with pytest.raises(AnalysisError, match="bleu.json"):
        summarize(recipe)
    statistics = line("test", loose, loss=2.5, nonzeros=97.25, prob_sum=1.375, gold_zero=8.125)
    (run / "validate-test.txt").write_text(statistics + "\n")
    (run / "bleu.json").write_text('{"bleu": 35.125, "signature": "a|b", "empty_translations": 2}')
    (run / "bleu-long.json").write_text('{"bleu": 20.5, "sentences": 41}')
    (run / "generate-test.txt").write_text(
        "INFO:x:Translated 1,000 sentences (14,000 tokens) in 12.5s (80.04 sentences/s, 9 tokens/s)"
    )
    rates = {"encoder": (0.5, 0), "decoder": (0.125, 0), "cross": (0.75, 0.25)}
    places = {place: {"sparsity": a, "null": b, "layers": []} for place, (a, b) in rates.items()}
    (run / "attention.json").write_text(json.dumps({"attention": places}))  # of older recipes
    if loose:
        kept = measurement_file(run / "average.pt", "attention", "test")
        kept.parent.mkdir()
        (run / "attention.json").rename(kept)
        kept.write_text(json.dumps({"made_from": {}, "result": json.loads(kept.read_text())}))
    alignment = {
        kind: {"layers": [{"average": rate} for rate in rates], "aol": sum(rates) / 2}
        for kind, rates in (("normal", (0.5, 0.375)), ("shifted", (0.25, 0.75)))
    }
    (run / "alignment.json").write_text(json.dumps({"folders": [alignment]}))
    summary = summarize(recipe)
    assert summary["model"]["output_alpha"] == 1.5 and summary["seed"] == 1
    write_json(run / "summary.json", summary)
    shutil.copytree(run, run.with_name("again"))
    table = table_results(run, run.with_name("again"), run / "unfinished")
    assert table.returncode == 1  # a run was left out
    rows = rows_of(table.stdout)
    assert rows[0][0] == "run" and {row[0] for row in rows[2:]} == {run.name, "again"}
    assert len(rows) == 4 and len({len(row) for row in rows}) == 1
    cells = dict(zip(rows[0], rows[2], strict=True))
    assert (cells["BLEU"], cells["nonzeros"], cells["Σp"]) == ("35.12", "97.2", "1.375")
    assert (cells["training (min)"], cells["updates"]) == ("3.8", "30")
    assert not {"accuracy (%)", "words/s"} & cells.keys()  # not in the log; on request
    assert cells["zeros in attention (%)"] == "50.0 / 12.5 / 75.0"
    assert cells["null attention (%)"] == "0.0 / 0.0 / 25.0"
    assert "sacreBLEU: a|b" in table.stdout
    chosen = table_results(run, "--columns", "variant,aer,aol,long_bleu")
    assert rows_of(chosen.stdout)[2][1:] == ["0.250", "0.438", "20.50"]
    assert f"left out {run / 'unfinished'}" in table.stdout


def rows_of(text: str) -> list[list[str]]:
    rows = [line[1:-1].split(" | ") for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows]


def test_chosen_columns_and_speeds(tmp_path: Path) -> None:
    runs = []
    for variant, speed in (("softmax", 2000), ("entmax15", 1500)):
        summary = {"variant": variant, "bleu": {"bleu": 30}, "generation": {}}
        summary["training"] = {"words_per_second": speed}
        runs.append(tmp_path / variant)
        runs[-1].mkdir()
        (runs[-1] / "summary.json").write_text(json.dumps(summary))
    columns = ["--columns", "variant,words_per_second,sentences_per_second"]
    table = table_results(*runs, *columns, "--baseline", "softmax")
    assert rows_of(table.stdout)[2:] == [
        ["softmax", "2,000 (1.00)", "-"],
        ["entmax15", "1,500 (0.75)", "-"],
    ]
    results = [
        {"part": "training", "model": "softmax", "rate": 2000, "speed": 1},
        {"part": "training", "model": "entmax15", "rate": 1800, "speed": 0.95},
        {"part": "beam", "model": "entmax15", "rate": 3.42, "speed": 1.25},
        {"part": "beam", "model": "softmax"},  # failed
    ]
    measured = {"benchmark": "training_step", "results": results}
    (tmp_path / "speeds.json").write_text(json.dumps(measured))
    losses = {"benchmark": "losses", "results": [{"name": "entmax15_loss"}]}
    (tmp_path / "losses.json").write_text(json.dumps(losses))
    more = [*results, {"part": "beam", "model": "entmax15", "rate": 90, "speed": 1.5}]
    (tmp_path / "two.json").write_text(json.dumps(measured | {"results": more}))
    table = table_results(*runs, *columns, "--speeds", tmp_path / "speeds.json")
    assert rows_of(table.stdout)[3] == ["entmax15", "1,800 (0.95)", "3.4 (1.25)"]
    speeds = ["--speeds", tmp_path / "speeds.json"]
    table = table_results(*runs, *columns, "--baseline", "entmax15", *speeds)
    assert rows_of(table.stdout)[2:] == [
        ["softmax", "2,000 (1.05)", "-"],
        ["entmax15", "1,800 (1.00)", "3.4 (1.00)"],
    ]
    for file, result in (("one", results[0]), ("other", results[1])):
        content = json.dumps(measured | {"results": [result]})
        (tmp_path / f"{file}.json").write_text(content)
    speeds = ["--speeds", tmp_path / "other.json", "--format", "json"]
    printed = table_results(*runs, *columns, *speeds).stdout
    found = json.loads(printed[printed.index("{") :])
    assert [run["words_per_second"] for run in found["runs"]] == [2000, 1800]
    assert "from the logs" in found["conditions"]["speeds"]  # of the first run
    speeds = ["--speeds", tmp_path / "one.json", tmp_path / "other.json"]
    table = table_results(*runs, *columns, "--baseline", "softmax", *speeds)
    assert [row[1] for row in rows_of(table.stdout)[2:]] == ["2,000 (1.00)", "1,800"]
    for flags in (
        ("--columns", "no_such"),
        ("--baseline", "sparsemax"),
        ("--speeds", tmp_path / "none.json"),
        ("--speeds", tmp_path / "two.json"),
        ("--speeds", tmp_path / "losses.json"),
    ):
        result = table_results(*runs, *flags)
        assert result.returncode in (1, 2)
        assert str(flags[1]) in result.stdout or flags[0] in result.stdout


def test_scores_are_those_of_the_task(tmp_path: Path) -> None:
    scores = {
        "translation": {"bleu": {"bleu": 30, "empty_translations": 1}},
        "inflection": {"inflection": {"accuracy": 87.5, "edit_distance": 0.25}},
    }
    for name, score in scores.items():
        (tmp_path / name).mkdir()
        summary = {"variant": "entmax", "variant_name": f"the {name}", **score}
        (tmp_path / name / "summary.json").write_text(json.dumps(summary))
    for name, shown in (
        ("translation", {"BLEU": "30.00", "empty": "1"}),
        ("inflection", {"word accuracy (%)": "87.50", "edit distance": "0.25"}),
    ):
        rows = rows_of(table_results(tmp_path / name).stdout)
        cells = dict(zip(rows[0], rows[2], strict=True))
        assert cells["variant"] == f"the {name}"
        known = {"BLEU", "empty", "word accuracy (%)", "edit distance"} & set(cells)
        assert {heading: cells[heading] for heading in known} == shown
    both = rows_of(table_results(*(tmp_path / name for name in scores)).stdout)
    cells = dict(zip(both[0], both[3], strict=True))
    assert (cells["BLEU"], cells["word accuracy (%)"]) == ("-", "87.50")


def test_a_model_has_the_speed_of_one_with_the_same_attention_everywhere() -> None:
    for model, name in (
        ({}, "softmax"),
        ({"attention": "rela_g"}, "softmax+rela_g"),
        ({"attention": "softmax", "attention_enc": "", "attention_cross": "softmax"}, "softmax"),
        ({"attention_cross": "entmax15"}, "softmax+softmax/softmax/entmax15"),
    ):
        assert model_name({"run": "a", "variant": "softmax", "model": model}) == name


def test_a_model_does_not_have_the_speed_of_another_alpha_tau_or_algorithm() -> None:
    for variant, flags, name in (
        ("entmax15", {"output-transform": "entmax15", "label-smoothing": 0}, "entmax15"),
        ("entmax15", {"output-algorithm": "sort"}, "entmax15 output_algorithm=sort"),
        ("entmax", {"output-alpha": 1.3}, "entmax output_alpha=1.3"),
        ("alpha_relu", {"output-tau": "data"}, "alpha_relu output_tau=data"),
    ):
        summary = {"run": "a", "variant": variant, "model": {"flags": flags}}
        assert model_name(summary) == name
        training_step.recipe_of(name, "quickstart")


def test_runs_that_are_not_finished_are_refused(run: Path) -> None:
    (run / "logs" / "train.log").write_text("nothing\n")
    with pytest.raises(AnalysisError, match="train.log"):
        trained(run)
    result = table_results(run)
    assert result.returncode == 1 and str(run) in result.stdout


@pytest.fixture
def plain(run: Path, tmp_path: Path) -> Path:
    """A folder of fairseq-train, with its log beside the checkpoint and a score."""
    plain = tmp_path / "save-dir"
    plain.mkdir()
    (plain / "checkpoint_best.pt").write_bytes(b"")
    (run / "logs" / "train.log").rename(plain / "train.log")
    (plain / "bleu.json").write_text('{"bleu": 35.125, "empty_translations": 2}')
    return plain


@pytest.mark.slow
def test_table_of_plain_trainings_says_what_is_missing(plain: Path, tmp_path: Path) -> None:
    log = plain / "train.log"
    result = table_results(plain, plain / "checkpoint_best.pt", "--log", log, log)
    assert result.returncode == 0, result.stdout
    rows = [line for line in rows_of(result.stdout) if len(line) > 1]
    first, second = (dict(zip(rows[0], row, strict=True)) for row in rows[2:])
    assert (first["variant"], first["BLEU"], first["updates"]) == ("save-dir", "35.12", "30")
    checkpoint = ("save-dir/checkpoint_best.pt", "-", "30")  # the BLEU may be another file's
    assert (second["variant"], second["BLEU"], second["updates"]) == checkpoint
    assert table_results(plain, "--log", log, log).returncode == 2
    (tmp_path / "empty.log").write_text("nothing")
    result = table_results(plain, "--log", tmp_path / "empty.log")
    assert result.returncode == 1 and "empty.log" in result.stdout


def test_one_summary_of_a_plain_training_is_for_all(plain: Path) -> None:
    (plain / "generate-test.txt").write_text("H-0\t-0.5\ta b\n")  # stderr was not redirected
    summary, records = read_run(plain)
    assert (summary["run"], summary["bleu"]["bleu"]) == ("save-dir", 35.125)
    assert summary["training"] == summarize_training(records) and "generation" not in summary
    messages = missing_parts([summary, summary | {"dataset": "of a recipe", "run": "other"}])
    named = ("generate-test.txt", "validate-test.txt", "analyze attention")
    for name, message in zip(named, messages, strict=True):
        assert name in message and "(save-dir)" in message
    alone, _ = read_run(plain / "checkpoint_best.pt", plain / "train.log")
    assert alone.keys() == {"run", "training"}
    assert len(missing_parts([summary, alone])) == 4
    for name, result in (
        ("output", {"nonzeros": {"mean": 2.5}, "prob_sum": {"mean": 1.5}, "gold_zero": 0.25}),
        ("attention", {"attention": {"cross": {"null": 0.5}}}),
    ):
        path = measurement_file(plain / "checkpoint_best.pt", name, "test")
        path.parent.mkdir(exist_ok=True)
        digest = sha256_of(plain / "checkpoint_best.pt")
        made_from = {"checkpoint": digest, "format": FORMAT, "subwords": "subword_nmt"}
        write_json(path, {"made_from": made_from, "result": result})
    summary, _ = read_run(plain)
    assert summary["test"] == {"nonzeros": 2.5, "prob_sum": 1.5, "gold_zero": 25}
    assert summary["attention"] == {"cross": {"null": 0.5}}
    assert ("attention measured between", "words") in conditions([summary])
    assert len(missing_parts([summary])) == 1
    for changed, there in (({"subwords": "none"}, True), ({"format": FORMAT - 1}, False)):
        write_json(path, {"made_from": made_from | changed, "result": result})
        summary, _ = read_run(plain)
        assert ("attention" in summary) == there
        assert (("attention measured between", "tokens") in conditions([summary])) == there
    path.write_text('{"made_from"')  # damaged
    assert "attention" not in read_run(plain)[0] and "test" in read_run(plain)[0]
    (plain / "checkpoint_best.pt").write_bytes(b"trained further")
    assert not {"attention", "test"} & read_run(plain)[0].keys()


def test_an_evaluation_of_an_earlier_checkpoint_is_left_out(plain: Path) -> None:
    model = plain / "checkpoint_best.pt"
    record = plain / "stages" / "evaluate-test.json"
    record.parent.mkdir()
    write_json(record, {"inputs": {model.name: {"sha256": sha256_of(model)}}})
    (plain / "validate-test.txt").write_text('x | INFO | test | {"test_nonzeros": "2.5"}')
    current, _ = read_run(plain)
    assert {"bleu", "training", "test"} <= current.keys()
    model.write_bytes(b"trained further")
    summary, _ = read_run(plain)
    assert {"bleu", "test"}.isdisjoint(summary)
    assert summary["training"] == current["training"]
    assert any("earlier checkpoint" in message for message in missing_parts([summary]))
    model.rename(plain / "average.pt")  # preferred, and not what was evaluated
    assert "bleu" not in read_run(plain)[0]
    content = json.loads(record.read_text()) | {"outputs": {"bleu.json": "of another file"}}
    record.write_text(json.dumps(content))  # made again since
    assert "bleu" in read_run(plain)[0]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *(("alignment.json", text) for text in ("{}", '{"folders": [3]}', '{"folders": [{}]}')),
        ("attention.json", '{"attention": [1]}'),
        ("attention.json", '{"attention": {"cross": 3}}'),
        *(("search-valid.jsonl", text) for text in ("[]", '{"exact": true}')),
        ("bleu.json", '{"bleu": "35"}'),
    ],
)
def test_a_damaged_result_of_a_plain_training_is_left_out(
    plain: Path, name: str, text: str
) -> None:
    expected, _ = read_run(plain)
    (plain / name).write_text(text)
    if name == "bleu.json":
        del expected["bleu"]
    assert read_run(plain)[0] == expected


@pytest.mark.parametrize(
    "text",
    ["{}", '{"rows": []}', '{"rows": [{}]}', '{"rows": [{"scores": "p", "empty_is_best": "3"}]}'],
)
def test_a_damaged_result_beside_a_summary_is_named(tmp_path: Path, text: str) -> None:
    write_json(tmp_path / "summary.json", {"variant": "softmax"})
    (tmp_path / "empty.json").write_text(text)
    with pytest.raises(ValueError, match="empty.json"):
        read_run(tmp_path)


def test_every_form_of_the_table_has_the_same_cells(plain: Path, capsys) -> None:
    printed = {}
    for style in ("md", "tsv", "latex", "json"):
        assert cli.run("table results", [str(plain), "--format", style]) == 0
        printed[style] = capsys.readouterr().out
    (numbers,) = json.loads(printed["json"])["runs"]
    assert (numbers["bleu"], numbers["updates"]) == (35.125, 30)
    header, cells = (line.split("\t") for line in printed["tsv"].strip().split("\n"))
    assert [header, cells] == rows_of(printed["md"])[::2]
    assert all(cell in printed["latex"] for cell in cells)


def test_a_training_that_still_improved_is_named(run: Path, capsys) -> None:
    said = "still improving at the end of training: ein Lauf (loss)"
    for losses, improving in (
        ([4, 3, 2], True),
        ([4, 2, 3], False),
        ([4, 2, 2], False),
        ([4], False),
        ([*range(40, 22, -1), 1, 2], True),  # of 20, the last two are the last tenth
        ([*range(40, 23, -1), 1, 2, 2], False),
    ):
        lines = [
            line("valid", epoch=n, loss=loss, num_updates=n, **best)
            for n, loss in enumerate(losses, start=1)
            for best in [{"best_loss": min(losses[:n])} if n > 1 else {}]
        ]
        (run / "logs" / "train.log").write_text("\n".join(lines) + "\n", encoding="utf-8")
        assert (trained(run)["improving"] == "loss") == improving
        assert cli.run("table results", [str(run)]) == 0
        assert (said in capsys.readouterr().out) == improving
    # A published run has the validations alone, and perhaps a summary from before.
    (run / "logs" / "train.log").unlink()
    (run / "training.tsv").write_text(
        "epoch\tloss\tnum_updates\tbest_loss\n1\t3\t1\t\n2\t2\t2\t2\n"
    )
    (run / "summary.json").write_text('{"dataset": "toy", "training": {"updates": 2}}')
    assert cli.run("table results", [str(run)]) == 0
    assert said in capsys.readouterr().out
    # Time and speed, which it does not have, are not 0.
    (run / "summary.json").unlink()
    training = read_run(run)[0]["training"]
    assert training["updates"] == 2 and not {"seconds", "words_per_second"} & training.keys()


def test_a_variant_has_the_same_name_in_json(tmp_path: Path, capsys) -> None:
    summary = {"run": "a", "variant": "entmax", "variant_name": "entmax: output 1.2"}
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    arguments = [str(tmp_path), "--columns", "variant", "--format", "json"]
    assert cli.run("table results", arguments) == 0
    (numbers,) = json.loads(capsys.readouterr().out)["runs"]
    assert numbers["variant"] == "entmax: output 1.2"

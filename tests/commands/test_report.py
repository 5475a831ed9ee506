"""fairseq-sparse report on a sparse model and on fairseq's own."""

import hashlib
import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
from markupsafe import escape

import report_runs
import toy
from bad_input import assert_refused
from fairseq_sparse.commands import cli
from fairseq_sparse.commands.report import hints
from fairseq_sparse.measure.run_folders import Run

SIZES = ("layers=1", "embed-dim=32", "ffn-embed-dim=32", "attention-heads=2")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return report_runs.train_runs(tmp_path_factory.mktemp("mein Bericht"))[1]


def call(*arguments: object) -> int:
    return cli.run("report", [*map(str, arguments), "--cpu"])


def files(folders: list[Path]) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for run in folders for path in run.glob("measurements/*")}


@pytest.mark.parametrize("text", ["{}", '{"folders": [3]}'])
def test_damaged_error_rates_are_refused_before_anything_is_measured(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "checkpoint_best.pt").touch()
    (tmp_path / "alignment.json").write_text(text)
    output = tmp_path / "report.html"
    assert_refused(capsys, "alignment.json", call, tmp_path, "--output", output)


def test_page(folders: list[Path], tmp_path: Path) -> None:
    output = tmp_path / "Bericht.html"
    assert call(*folders, "--output", output, "--sentences", 4) == 0
    page = output.read_text(encoding="utf-8")
    (results,) = re.findall(
        r'<th scope="row">sparse &lt;i&gt;</th>(<td>.*<td>37.9</td>.*)</tr>', page
    )
    for cell in ("37.9", "rela_g", "12.50", "2.5", "50.0", "25.0", "1,234"):
        assert f"<td>{cell}</td>" in results
    assert "tok:13a|&lt;v&gt;" in page
    assert "<td>25.00</td><td>50.00</td>" in page  # alignment error rates
    sparse, stock = (run / "measurements" for run in folders)
    rates, shuffled = (
        json.loads((sparse / f"{name}-test.json").read_text(encoding="utf-8"))["result"][name]
        for name in ("attention", "shuffled")
    )
    assert not (stock / "shuffled-test.json").exists()  # it always attends to something
    assert rates["encoder"]["null"] == shuffled["encoder"]["null"]
    assert rates["cross"]["nonzeros"] != shuffled["cross"]["nonzeros"]
    sparse, stock = report_runs.data_in(page)["models"]
    assert [part["number"] for part in sparse["sentences"]] == [0, 1, 2, 3]
    assert (sparse["output"], stock["output"]) == ("entmax15", "softmax")
    assert sparse["places"]["encoder"] == {
        "kinds": ["rela_g_leaky_relu"] * 2,
        "layers": 2,
        "heads": 2,
        "sums_to_one": [False, False],
    }


def test_attention_is_measured_between_words(folders: list[Path], tmp_path: Path) -> None:
    """The recipe's record of the subwords is used, and a flag goes before it."""
    run, page, found = tmp_path / "run", tmp_path / "page.html", tmp_path / "attention.json"
    shutil.copytree(folders[0], run)
    shutil.rmtree(run / "measurements", ignore_errors=True)
    (run / "stages").mkdir()
    record = {"settings": {"subwords": "sentencepiece", "validation": False}}
    (run / "stages" / "analyze.json").write_text(json.dumps(record))
    data = folders[0].parent / "bin"
    for flags, subwords, units in (
        ((), "sentencepiece", "words"),
        (("--subwords", "none"), "none", "tokens"),
    ):
        assert call(run, "--output", page, "--sentences", 1, *flags) == 0
        options = ("--path", run / "average.pt", "--subwords", subwords, "--json", found, "--cpu")
        assert cli.run("analyze attention", [str(data), *map(str, options)]) == 0
        written = json.loads((run / "measurements" / "attention-test.json").read_text())["result"]
        assert written["attention"] == json.loads(found.read_text())["attention"]
        assert written["subwords"] == subwords
        assert f"between {units}" in page.read_text(encoding="utf-8")


@pytest.mark.slow
def test_page_of_a_run_that_the_recipe_made(tmp_path: Path, capfd) -> None:
    run = tmp_path / "ein Lauf"
    corpus = "quickstart/make_corpus.py,--train,3000,--valid,30,--test,20,--held-out,6"
    settings = [f"corpus.made_by={corpus}"]
    settings += [f"{side}coder-{name}" for side in ("en", "de") for name in SIZES]
    toy.command(
        "run",
        *("quickstart", "alpha_relu+rela_g", "--cpu", "--epochs", 1, "--average", 1),
        *("--bpe-merges", 100, "--data-dir", tmp_path / "data", "--run-dir", run),
        *(word for setting in settings for word in ("--set", setting)),
    )
    output = tmp_path / "page.html"
    assert call(run, "--output", output, "--sentences", 2) == 0, capfd.readouterr().err
    page = output.read_text(encoding="utf-8")
    summary = json.loads((run / "summary.json").read_text())
    aligned = json.loads((run / "alignment.json").read_text())["folders"][0]
    for number in (summary["bleu"]["bleu"], 100 * aligned["normal"]["aoh"]):
        assert f"<td>{number:.2f}</td>" in page


def test_second_page_measures_nothing_again(folders: list[Path], tmp_path: Path, capfd) -> None:
    pages = [tmp_path / "one.html", tmp_path / "two.html"]
    assert call(*folders, "--output", pages[0], "--sentences", 4) == 0
    before = files(folders)
    assert len(before) == 6 + 5
    capfd.readouterr()
    assert call(*folders, "--output", pages[1], "--sentences", 4) == 0
    assert files(folders) == before
    assert "batch" not in capfd.readouterr().err
    assert pages[0].read_text() == pages[1].read_text()


def test_page_of_plain_trainings(folders: list[Path], tmp_path: Path) -> None:
    plain = tmp_path / "save-dir"
    plain.mkdir()
    for name in ("checkpoint_best.pt", "checkpoint_last.pt", "checkpoint3.pt"):
        shutil.copy(folders[1] / "average.pt", plain / name)
    log = folders[1] / "logs" / "train.log"
    page = tmp_path / "page.html"
    arguments = ("--sentences", 1, "--output", page)
    assert call(plain, plain / "checkpoint3.pt", "--log", log, log, *arguments) == 0
    text = page.read_text(encoding="utf-8")
    assert "save-dir/checkpoint3.pt" in text
    assert "No training log" not in text and "<figcaption>Training: loss" in text
    kept = {path.name for path in plain.iterdir() if path.is_dir()}
    assert kept == {"measurements-checkpoint_best", "measurements-checkpoint3"}
    assert call(plain, *arguments) == 0
    text = page.read_text(encoding="utf-8")
    assert "No training log" in text
    hint = shlex.join(["fairseq-sparse", "report", str(plain), "--log", "TRAIN.log"])
    assert f"<pre>{escape(hint)} --output report.html</pre>" in text
    # the folder may have other models: nothing of it is said to be of the checkpoint
    alone = hints(Run("a", plain / "checkpoint3.pt", plain / "checkpoint3.pt"), "data", "test", "")
    assert str(plain / "checkpoint3.pt") in alone["records"][0] and not alone["alignment"]
    (align, _) = hints(Run("a", plain / "x.pt", plain), "data", "valid", "none")["alignment"]
    assert "--subset valid --subwords none" in align


def test_errors_take_one_line(folders: list[Path], tmp_path: Path, capfd) -> None:
    data, no_log = folders[0].parent / "bin", tmp_path / "no log"
    no_log.write_text("dataset x\n")
    (dictionary,) = data.glob("dict.*de*")
    own, other = tmp_path / "own", tmp_path / "other"
    for run, digest in ((own, hashlib.sha256(dictionary.read_bytes()).hexdigest()), (other, "0")):
        shutil.copytree(folders[1], run)
        (run / "stages").mkdir()
        record = {"inputs": {dictionary.name: {"sha256": digest}, "gone": {"sha256": "1"}}}
        (run / "stages" / "train.json").write_text(json.dumps(record))
    assert call(own, "--data", data, "--output", tmp_path / "own.html") == 0
    capfd.readouterr()
    (tmp_path / "empty").mkdir()
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "average.pt").write_bytes(b"no checkpoint")
    output = tmp_path / "page.html"
    for arguments, named in [
        ([own, other], other),
        ([other, "--data", data], other),
        ([folders[0], folders[0]], folders[0]),
        ([tmp_path / "empty"], "average.pt"),
        ([folders[0], "--log", own / "logs" / "train.log", output.parent], "2 logs"),
        ([folders[0], "--log", no_log], no_log),
        ([broken], broken),
        ([folders[0], "--data", tmp_path / "none"], tmp_path / "none"),
    ]:
        assert_refused(capfd, named, call, *arguments, "--output", output)
        assert not output.exists()

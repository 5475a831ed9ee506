"""fairseq-sparse run, from raw text to a score, on a miniature of a data set."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import miniatures
from commands import parameters
from fairseq_sparse.commands import cli
from installed import path_with_commands

DATASET = "multi30k_de_en"
SIZES = {"layers": 1, "embed-dim": 16, "ffn-embed-dim": 16, "attention-heads": 2}
TINY = [
    word
    for side in ("encoder", "decoder")
    for name, value in SIZES.items()
    for word in ("--set", f"{side}-{name}={value}")
]
TINY += "--bpe-merges 30 --batch 300 --epochs 2 --average 1 --set lr=1e-2".split()
TINY += "--set warmup-updates=4 --set log-interval=1 --set generate.max-len-b=20".split()


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("raw") / "Rohdaten für, tests"
    folder.mkdir()
    miniatures.build(DATASET, folder)
    return folder


def call(folder: Path, raw: Path, *more: object, variant: str = "alpha_relu") -> int:
    """Run a recipe whose folders are in ``folder``."""
    places = ("--raw-dir", raw, "--data-dir", folder / "data", "--run-dir", folder / "run")
    words = (DATASET, variant, "--cpu", *TINY, *places, *more)
    return cli.run("run", [str(word) for word in words])


@pytest.fixture(scope="module")
def finished(raw: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "Läufe hier"
    assert call(folder, raw) == 0
    return folder


@pytest.fixture
def copy(finished: Path, tmp_path: Path) -> Path:
    return shutil.copytree(finished, tmp_path / "copy")


def test_from_raw_text_to_a_score(finished: Path) -> None:
    folder = finished / "run"
    translations = (folder / "hyp.detok.txt").read_text(encoding="utf-8").splitlines()
    summary = json.loads((folder / "summary.json").read_text())
    assert len(translations) == summary["bleu"]["sentences"] == 3
    assert summary["bleu"] == json.loads((folder / "bleu.json").read_text())
    assert summary["training"]["epochs"] == 2
    assert summary["training"]["words_per_second"] > 0
    assert summary["generation"].keys() == {"sentences_per_second", "optimal"}
    assert summary["test"]["tau"] == pytest.approx(summary["training"]["valid"]["tau"])
    recipe = json.loads((folder / "run.json").read_text())
    assert (recipe["dataset"], recipe["variant"], recipe["seed"]) == (DATASET, "alpha_relu", 1)
    assert summary["model"]["output"] == recipe["model"]["output"] == "alpha_relu"


@pytest.mark.slow
def test_the_printed_script_does_the_same(
    finished: Path, raw: Path, tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call(tmp_path, raw, "--print") == 0
    (tmp_path / "script.sh").write_text(capsys.readouterr().out, encoding="utf-8")
    names = ("fairseq-sparse", "fairseq-preprocess", "fairseq-train", "fairseq-generate")
    names += ("fairseq-validate", "sacremoses", "subword-nmt")
    path = path_with_commands(tmp_path / "bin", *names)
    variables = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"}
    (tmp_path / "empty").mkdir()
    script = ["bash", str(tmp_path / "script.sh")]
    subprocess.run(script, cwd=tmp_path / "empty", env=variables, check=True)
    made = tmp_path / "empty"
    expected = [finished / "run" / name for name in ("hyp.detok.txt", "bleu.json")]
    expected += (finished / "run" / "alignments").glob("*.pharaoh")
    expected += (finished / "data" / "prepared" / "bin").glob("*.bin")
    assert len(expected) > 10
    for path in expected:
        assert (made / path.relative_to(finished)).read_bytes() == path.read_bytes(), path


def test_a_second_start_does_nothing(copy: Path, raw: Path, capfd) -> None:
    files = [path for path in copy.rglob("*") if path.is_file() and path.parent.name != "stages"]
    before = [path.stat().st_mtime_ns for path in files]
    assert call(copy, raw) == 0
    assert capfd.readouterr().err.count("done already") == 6
    assert [path.stat().st_mtime_ns for path in files] == before


def test_what_was_deleted_is_made_again(copy: Path, raw: Path, capfd) -> None:
    score = (copy / "run" / "bleu.json").read_bytes()
    (copy / "run" / "bleu.json").unlink()
    assert call(copy, raw) == 0
    assert (copy / "run" / "bleu.json").read_bytes() == score
    assert "[align] done already" in capfd.readouterr().err
    # A training without its summary is one that was interrupted at its end.
    (copy / "run" / "train.json").unlink()
    assert call(copy, raw, "--stages", "train") == 0
    assert json.loads((copy / "run" / "train.json").read_text())["epochs"] == 2
    assert "Loaded checkpoint" in (copy / "run" / "logs" / "train.log").read_text()


def test_a_change_of_settings_is_named(copy: Path, raw: Path, capfd) -> None:
    for changed, stage, setting in (
        (("--bpe-merges", 20), "prepare", "bpe_merges: was 30, now 20"),
        (("--batch", 200), "train", "batch: was 300, now 200"),
        (("--set", "dropout=0.5"), "train", "--dropout: was 0.2, now 0.5"),
    ):
        average = (copy / "run" / "average.pt").read_bytes()
        assert call(copy, raw, *changed, "--stages", stage) == 1
        assert setting in capfd.readouterr().err
        assert call(copy, raw, *changed, "--stages", stage, "--dry-run") == 0
        assert setting in capfd.readouterr().out
        assert (copy / "run" / "average.pt").read_bytes() == average
    assert call(copy, raw, "--set", "generate.beam=2", "--stages", "generate") == 0
    assert "--beam: was 5, now 2" in capfd.readouterr().err
    assert not (copy / "run" / "summary.json").exists()  # of the earlier translations


def test_more_epochs_resume_a_finished_training(
    copy: Path, raw: Path, tmp_path: Path, capfd
) -> None:
    """It ends as one that had as many epochs from the start."""
    train = ("--stages", "prepare-train", "--epochs", 3)
    assert call(copy, raw, *train, "--dry-run") == 0
    assert "would resume" in capfd.readouterr().out
    for folder in (copy, tmp_path):
        assert call(folder, raw, *train) == 0
    last = "run/checkpoints/checkpoint_last.pt"
    expected, found = parameters(tmp_path / last), parameters(copy / last)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert json.loads((copy / "run" / "train.json").read_text())["epochs"] == 3
    # What was measured of the model with fewer epochs is not mixed with what is measured now.
    (copy / "run" / "empty.json").write_text("{}")
    for stages in ("generate", "analyze"):
        assert call(copy, raw, "--stages", stages, "--epochs", 3) == 1
        assert "--stages average" in capfd.readouterr().err
    assert call(copy, raw, "--stages", "train,generate-analyze", "--epochs", 4) == 1
    assert "average" in capfd.readouterr().err
    assert json.loads((copy / "run" / "train.json").read_text())["epochs"] == 3
    assert call(copy, raw, "--stages", "average", "--epochs", 3) == 0
    for name in ("empty.json", "bleu.json", "summary.json"):
        assert not (copy / "run" / name).exists()


def test_a_dry_run_changes_nothing(tmp_path: Path, raw: Path, capsys) -> None:
    assert call(tmp_path / "new", raw, "--dry-run", "--stages", "prepare-average") == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]] == [
        "prepare",
        "train",
        "average",
    ]
    assert not (tmp_path / "new").exists()


def test_stages_say_what_they_need(tmp_path: Path, raw: Path, capfd) -> None:
    for stage, needed in (("train", "train.de-en.de.bin"), ("average", "train.json")):
        assert call(tmp_path, raw, "--stages", stage) == 1
        assert needed in capfd.readouterr().err


def test_data_prepared_in_another_way_are_refused(copy: Path, raw: Path, capfd) -> None:
    for stage in ("train", "generate"):
        assert call(copy, raw, "--bpe-merges", 20, "--stages", stage) == 1
        assert "bpe_merges: was 30, now 20" in capfd.readouterr().err


def test_an_unfinished_training_is_not_measured(copy: Path, raw: Path, capfd) -> None:
    record = copy / "run" / "stages" / "train.json"
    record.write_text(record.read_text().replace('"finished"', '"interrupted"'))
    summary = (copy / "run" / "summary.json").read_bytes()
    for stages in ("average-analyze", "generate", "analyze"):
        assert call(copy, raw, "--stages", stages) == 1
        assert "--stages train" in capfd.readouterr().err
    assert (copy / "run" / "summary.json").read_bytes() == summary


def test_an_unfinished_decoding_is_not_analysed(copy: Path, raw: Path, capfd) -> None:
    summary = copy / "run" / "summary.json"
    summary.unlink()
    for name in ("average", "generate"):
        record = copy / "run" / "stages" / f"{name}.json"
        finished = record.read_text()
        record.write_text(finished.replace('"finished"', '"interrupted"'))
        assert call(copy, raw, "--stages", "analyze") == 1
        assert f"--stages {name}" in capfd.readouterr().err
        assert not summary.exists()
        record.write_text(finished)
    assert call(copy, raw, "--stages", "analyze") == 0


def test_analyses_are_not_put_beside_translations_of_other_settings(
    copy: Path, raw: Path, capfd
) -> None:
    beam = ("--set", "generate.beam=1")
    assert call(copy, raw, "--stages", "generate", *beam) == 0
    described = (copy / "run" / "run.json").read_bytes()
    for stage in ("align", "analyze"):
        assert call(copy, raw, "--stages", stage) == 1
        assert "--beam" in capfd.readouterr().err
    assert (copy / "run" / "run.json").read_bytes() == described
    assert call(copy, raw, "--stages", "analyze", *beam) == 0


def test_a_model_of_other_data_is_refused(copy: Path, raw: Path, capfd) -> None:
    (copy / "data" / "prepared" / "bin" / "dict.en.txt").write_text("other 1\n")
    for stage in ("generate", "align", "analyze"):
        assert call(copy, raw, "--stages", stage) == 1
        message = capfd.readouterr().err
        assert str(copy / "run") in message and "dict.en.txt" in message
    assert (copy / "run" / "summary.json").exists()


def test_several_seeds_are_several_runs(
    finished: Path, raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [DATASET, "softmax+rela_g", "--cpu", *TINY, "--raw-dir", str(raw)]
    words += ["--data-dir", str(finished / "data"), "--seed", "1,2", "--stages", "prepare-train"]
    assert cli.run("run", words) == 0
    folders = sorted((tmp_path / "runs" / DATASET).iterdir())
    recipes = [json.loads((folder / "run.json").read_text()) for folder in folders]
    assert [recipe["seed"] for recipe in recipes] == [1, 2]
    assert all(recipe["model"]["attention"] == "rela_g" for recipe in recipes)
    assert all((folder / "train.json").is_file() for folder in folders)


def test_a_script_of_several_models_prepares_their_data_once(capsys) -> None:
    for variants in (["softmax"], ["softmax", "entmax15"]):
        assert cli.run("run", ["quickstart", *variants, "--cpu", "--print"]) == 0
        script = capsys.readouterr().out
        assert script.count("fairseq-preprocess") == 1
        assert script.count("fairseq-train") == len(variants)


def test_finetuning_begins_with_a_trained_model(
    finished: Path, raw: Path, tmp_path: Path, capfd
) -> None:
    run_dir, data = tmp_path / "run", ("--data-dir", finished / "data")
    more = "--set warmup-init-lr=0 --set lr=1e-12 --stages train-average".split()
    begin = ("--finetune", finished / "run", "--run-dir", run_dir)
    assert call(tmp_path, raw, *data, *begin, *more, variant="entmax15") == 0
    flags = json.loads((run_dir / "run.json").read_text())["training"]["flags"]
    assert (flags["lr"], flags["dropout"], flags["warmup-updates"]) == ("1e-12", 0.1, "4")
    base, found = (parameters(folder / "average.pt") for folder in (finished / "run", run_dir))
    for name, value in found.items():
        torch.testing.assert_close(value, base[name])
    # a baseline that has been trained again is another one
    copy = tmp_path / "base.pt"
    shutil.copy(finished / "run" / "average.pt", copy)
    begin = ("--finetune", copy, "--run-dir", tmp_path / "second")
    assert call(tmp_path, raw, *data, *begin, *more, variant="entmax15") == 0
    state = torch.load(copy, weights_only=False)
    next(iter(state["model"].values())).mul_(2)
    torch.save(state, copy)
    assert call(tmp_path, raw, *data, *begin, *more, variant="entmax15") == 1
    assert copy.name in capfd.readouterr().err


def test_finetuning_needs_the_dictionaries_of_the_model(
    finished: Path, raw: Path, tmp_path: Path, capfd
) -> None:
    base, record = tmp_path / "base", "stages/train.json"
    (base / "stages").mkdir(parents=True)
    shutil.copy(finished / "run" / "average.pt", base)
    content = json.loads((finished / "run" / record).read_text())
    name = next(name for name in content["inputs"] if name.startswith("dict."))
    content["inputs"][name]["sha256"] = "0" * 64
    (base / record).write_text(json.dumps(content))
    begin = ("--finetune", base, "--data-dir", finished / "data", "--run-dir", tmp_path / "run")
    assert call(tmp_path, raw, *begin, "--stages", "prepare-train", variant="entmax15") == 1
    assert f"another {name}" in capfd.readouterr().err
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_own_text_needs_no_entry(tmp_path: Path, monkeypatch, capfd) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    for split, count in (("train", 60), ("test", 5)):
        for language, words in (("ja", "彼 は 犬 が 好き だ"), ("en", "he likes the dog , n't")):
            lines = [" ".join(words.split()[i % 3 :]) + "\n" for i in range(count)]
            (tmp_path / "mine" / f"{split}.{language}").write_text("".join(lines), "utf-8")
    words = "--data mine --source-lang ja --target-lang en softmax --cpu --stages prepare".split()
    words += ["--tokenized", "ja,en", "--bpe-merges", "30"]
    assert cli.run("run", words) == 0
    prepared = tmp_path / "data" / "mine" / "prepared"
    counts = {
        split: len((prepared / "tokenized" / f"{split}.en").read_text().splitlines())
        for split in ("train", "valid", "test")
    }
    assert counts == {"train": 57, "valid": 3, "test": 5}
    test = (tmp_path / "mine" / "test.en").read_text()
    assert (prepared / "tokenized" / "test.en").read_text() == test
    (tmp_path / "mine" / "train.ja").write_text("else\n" * 60)
    assert cli.run("run", words) == 1
    assert "input train.ja has changed" in capfd.readouterr().err


def own_text(folder: Path, **more: str) -> None:
    """Write 60 pairs for training, and 5 for testing, after which ``more`` is one of each side."""
    folder.mkdir()
    for split, count in (("train", 60), ("test", 5)):
        for language, words in (("de", "er mag den Hund"), ("en", "he likes the dog")):
            lines = [" ".join(words.split()[i % 3 :]) + "\n" for i in range(count)]
            lines += [more[language] + "\n"] if more and split == "test" else []
            (folder / f"{split}.{language}").write_text("".join(lines), "utf-8")


def test_a_sentence_too_long_is_refused_before_training(tmp_path: Path, monkeypatch, capfd) -> None:
    monkeypatch.chdir(tmp_path)
    own_text(tmp_path / "mine", de=1100 * "Hund ", en="dog")
    words = "--data mine --source-lang de --target-lang en softmax --cpu".split()
    words += ["--stages", "prepare-train", "--bpe-merges", "30"]
    assert cli.run("run", words) == 1
    assert "sentence 6" in capfd.readouterr().err
    assert not (tmp_path / "runs" / "mine" / "softmax-cpu" / "checkpoints").exists()


def test_another_model_does_not_take_the_name_of_a_trained_one(
    finished: Path, raw: Path, tmp_path: Path, capfd
) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished / "run", run)
    before = (run / "run.json").read_text()
    more = ("--data-dir", finished / "data", "--run-dir", run, "--stages", "generate-analyze")
    for change in (("--seed", "7"), ("--set", "lr=0.5")):
        assert call(tmp_path, raw, *more, *change) == 1
        assert "stage train" in capfd.readouterr().err
    assert call(tmp_path, raw, *more, variant="entmax15+rela_g") == 1
    assert (run / "run.json").read_text() == before
    # what keeps checkpoints, and where the text is decoded, changes no training
    assert call(tmp_path, raw, *more, "--set", "generate.beam=2") == 0


@pytest.mark.slow
def test_a_killed_training_goes_on_where_it_was(
    finished: Path, raw: Path, tmp_path: Path, capfd
) -> None:
    """It has dropout, and ends with the parameters of an undisturbed one."""
    more = ["--stages", "prepare-train", "--epochs", "30", "--data-dir", str(finished / "data")]
    for name in ("undisturbed", "killed"):
        folder = tmp_path / name
        words = [DATASET, "alpha_relu", "--cpu", *TINY, "--raw-dir", str(raw), *more]
        words += ["--run-dir", str(folder)]
        if name == "killed":
            command = [sys.executable, "-m", "fairseq_sparse", "run", *words]
            log = folder / "logs" / "train.log"
            with subprocess.Popen(command) as process:
                while not log.exists() or '"epoch": 4' not in log.read_text():
                    time.sleep(0.05)
                    assert process.poll() is None
                process.kill()
            assert not (folder / "train.json").exists()
        assert cli.run("run", words) == 0
    log = (tmp_path / "killed" / "logs" / "train.log").read_text()
    assert "Loaded checkpoint" in log and log.count('"train_epoch": 1,') <= 1
    whole, again = tmp_path / "undisturbed", tmp_path / "killed"
    updates = [json.loads((run / "train.json").read_text())["updates"] for run in (whole, again)]
    assert updates[0] == updates[1]
    last = "checkpoints/checkpoint_last.pt"
    expected, found = parameters(whole / last), parameters(again / last)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


# Arguments, and what the message must name.


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        (["--set", "learning-rate=3"], "fairseq-train: unrecognized arguments: --learning-rate"),
        (["--set", "clip-norm=strong"], "--clip-norm"),
        (["--set", "lr-scheduler=none"], "--lr-scheduler"),
        (["--set", "generate.beams=3"], "fairseq-generate: unrecognized arguments: --beams"),
        (["--output-algorithm", "guess"], "--output-algorithm"),
        (["--set", "lr=0,001"], "fairseq-train"),
        (["--seed", "1,2", "--set", "learning-rate=3"], "--learning-rate"),
    ],
)
def test_flags_that_fairseq_does_not_know_are_refused_first(
    given: list[str],
    fault: str,
    tmp_path: Path,
    raw: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [DATASET, "alpha_relu", "--cpu", *TINY, "--raw-dir", str(raw), *given]
    assert cli.run("run", words) == 1
    said = capfd.readouterr().err
    assert fault in said and "Traceback" not in said
    assert not list(tmp_path.rglob("prepared"))


def test_the_list_names_everything(capsys) -> None:
    assert cli.run("run", ["--list"]) == 0
    listed = capsys.readouterr().out
    assert {"multi30k_de_en", "wikitext103", "entmax15", "rela_g", "sue"} <= set(listed.split())
    assert "  Multi30k: descriptions of images, 29,000 pairs\n" in listed

"""The inflection recipe, from the shared task's files to accuracies, and ensembles."""

from __future__ import annotations

import functools
import hashlib
import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from fairseq import options

import recipes
from file_server import serve
from toy import USER_DIR

DATASET = "sigmorphon2018_medium_part"
# Flags given last win: a model and a training that take seconds.
TINY = (
    "--encoder-embed-dim 16 --encoder-hidden-size 16 --decoder-embed-dim 16 "
    "--decoder-hidden-size 16 --decoder-out-embed-dim 16 --dropout 0 --lr 3e-2 --num-workers 0"
)
STEMS = [a + b + c for a in ("ba", "şi", "ne", "mu") for b in "krl" for c in ("am", "o", "iş")]


def items(language: str) -> list[tuple[str, str, str]]:
    """Return (lemma, form, tags) of words that take a suffix, with a space in one language."""
    space = " " if language == "turkish" else ""
    return [
        (stem, stem + suffix, tags)
        for stem in STEMS
        for suffix, tags in (("", "N;SG"), (f"{space}ler", "N;PL"))
    ]


@pytest.fixture(scope="module")
def raw(tmp_path_factory) -> Path:
    """Write files as in the shared task's repository, into a folder with an awkward name."""
    folder = tmp_path_factory.mktemp("raw") / "Rohdaten für, tests"
    for language, part in (("turkish", "all"), ("old-english", "surprise")):
        own = folder / "task1" / part
        own.mkdir(parents=True)
        lines = ["\t".join(item) + "\n" for item in items(language)]
        for name, chosen in (("train-medium", lines), ("dev", lines[::5]), ("test", lines[::6])):
            (own / f"{language}-{name}").write_text("".join(chosen), encoding="utf-8")
    return folder


def run(*arguments: object, script: str = "run.sh", **variables: object):
    defaults = {"TRAIN_FLAGS": TINY, "MAX_EPOCH": 3, "GENERATE_FLAGS": "--max-len-b 30"}
    return recipes.run(script, *arguments, **(defaults | variables))


@pytest.fixture(scope="module")
def data(raw: Path, tmp_path_factory) -> Path:
    """A --data-dir in which the data are prepared."""
    folder = tmp_path_factory.mktemp("data") / "Daten für, uns"
    options = ("--cpu", "--data-dir", folder, "--run-dir", folder / "run", "--stages", "prepare")
    run(DATASET, "softmax", *options, RAW_DIR=raw)
    return folder


@pytest.fixture(scope="module")
def finished(raw: Path, data: Path, tmp_path_factory) -> Callable[[str], tuple[Path, str]]:
    """Return a function from a variant to its --run-dir after all stages and the output."""

    @functools.cache
    def finish(variant: str) -> tuple[Path, str]:
        folder = tmp_path_factory.mktemp(variant) / "Läufe hier"
        options = (DATASET, variant, "--cpu", "--data-dir", data, "--run-dir", folder)
        return folder, run(*options, RAW_DIR=raw, ATTENTION_ALPHA="1.2").stdout

    return finish


def guesses(folder: Path) -> dict[str, list[list[str]]]:
    return {
        path.name.removesuffix("-out"): [
            line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()
        ]
        for path in sorted((folder / "guesses").iterdir())
    }


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["softmax", "entmax"])
def test_from_files_to_accuracy(variant: str, finished, raw: Path) -> None:
    folder, output = finished(variant)
    found = guesses(folder)
    assert set(found) == {"turkish", "old-english"}
    score = json.loads((folder / "accuracy.json").read_text())
    for language, own in found.items():
        test = items(language)[::6]
        assert [(lemma, tags) for lemma, _, tags in own] == [(item[0], item[2]) for item in test]
        right = sum(line[1] == item[1] for line, item in zip(own, test, strict=True))
        assert score["languages"][language]["accuracy"] == pytest.approx(100 * right / len(test))
    assert "[align] nothing to do" in output

    summary = json.loads((folder / "summary.json").read_text())
    assert summary["inflection"] == score and "bleu" not in summary
    assert {"sentence_accuracy", "nonzeros"} <= set(summary["test"])
    assert list(summary["attention"]) == ["cross"]
    # As in the paper, sparsity and certificates of the search are of the validation set.
    valid, items_of_valid = summary["valid"], 2 * len(items("turkish")[::5])
    assert valid["search"]["sentences"] == items_of_valid
    assert valid["attention"]["cross"]["nonzeros"] > 0 < valid["nonzeros"]
    report = [json.loads(line) for line in (folder / "search-valid.jsonl").open()]
    one = sum(line["exact"] and line["hypotheses"] == 1 for line in report)
    assert valid["search"]["single"] == one / items_of_valid <= valid["search"]["exact"]
    assert valid["search"]["exact"] <= valid["search"]["optimal"] <= 1
    if variant == "softmax":
        assert valid["search"]["exact"] == 0
    assert "| word accuracy (%) |" in output and "BLEU" not in output
    if variant == "entmax":
        assert "| entmax: output 1.5, attention 1.2 |" in output
        settings = (folder / "settings" / "train").read_text().splitlines()
        assert {"--output-transform entmax15", "--attention-alpha 1.2"} <= set(settings)


def test_the_best_checkpoint_is_used(finished) -> None:
    folder, _ = finished("entmax")
    names = sorted(path.name for path in (folder / "checkpoints").iterdir())
    assert names == ["checkpoint_best.pt", "checkpoint_last.pt"]
    best, used = (
        torch.load(folder / name, map_location="cpu", weights_only=False)["model"]
        for name in ("checkpoints/checkpoint_best.pt", "average.pt")
    )
    assert best.keys() == used.keys()
    assert all(torch.equal(best[name], used[name]) for name in best)


@pytest.mark.slow
def test_batch_of_sentences_does_not_depend_on_devices(
    raw: Path, data: Path, tmp_path: Path
) -> None:
    options = (DATASET, "entmax15", "--cpu", "--data-dir", data, "--run-dir", tmp_path)
    options += ("--stages", "train")
    result = run(*options, RAW_DIR=raw, MAX_EPOCH=1, DEVICE_SENTENCES=40)
    assert "64 sentences = 1 device(s) x 32 sentences x 2" in result.stdout
    again = run(*options, RAW_DIR=raw, MAX_EPOCH=1)
    assert "done already" in again.stdout
    other = run(*options, RAW_DIR=raw, MAX_EPOCH=1, BATCH_SENTENCES=16, check=False)
    assert other.returncode != 0 and "was: batch_sentences 64" in other.stdout


@pytest.mark.slow
def test_ensemble(finished, data: Path, tmp_path: Path) -> None:
    """A model with itself guesses as it does alone; with another, the name lists both."""
    (first, _), (second, _) = finished("entmax"), finished("softmax")
    options = ("--cpu", "--data-dir", data, "--run-dir")
    copy = shutil.copytree(first, tmp_path / "copy")
    run(first, copy, *options, tmp_path / "same", script="ensemble.sh")
    assert guesses(tmp_path / "same") == guesses(first)
    both = run(first, second, *options, tmp_path / "both", script="ensemble.sh")
    name = "ensemble of 2: entmax: output 1.5, attention 1.2 + softmax"
    assert f"| {name} |" in both.stdout
    summary = json.loads((tmp_path / "both" / "summary.json").read_text())
    assert summary["inflection"] == json.loads((tmp_path / "both/accuracy.json").read_text())


def test_what_is_no_ensemble_is_refused(finished, raw: Path, data: Path, tmp_path: Path) -> None:
    folder, _ = finished("entmax")
    moved = tmp_path / "other data"
    shutil.copytree(folder, moved)
    (moved / "settings" / "train").write_text("data 0\n")
    (tmp_path / "empty").mkdir()
    new = ("--run-dir", tmp_path / "new")
    for arguments in (
        (folder, *new),
        (folder, moved),
        (folder, tmp_path / "empty", *new),
        (folder, folder, "--run-dir", folder),
        (folder, folder, *new),
        (folder, moved, *new, "--data-dir", data, "--cpu"),
    ):
        assert run(*arguments, script="ensemble.sh", check=False).returncode in (1, 2)
        assert not (tmp_path / "new" / "summary.json").exists()


@pytest.fixture
def server(raw: Path) -> Iterator[str]:
    """Serve the files by HTTP from this machine; yield the address."""
    with serve(raw / "task1") as address:
        yield address


@pytest.mark.slow
def test_languages_narrow_what_is_fetched(raw: Path, server: str, tmp_path: Path) -> None:
    sums = tmp_path / "sums"
    paths = sorted((raw / "task1").glob("*/*"))
    sums.write_text(
        "".join(
            f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.parent.name}/{path.name}\n"
            for path in paths
        )
    )
    options = ("--cpu", "--stages", "1", "--run-dir", tmp_path / "run")
    for languages, count in (("old-english", 3), ("all", 6), ("turkish, old-english", 6)):
        own = tmp_path / str(languages)
        arguments = (DATASET, "softmax", *options, "--data-dir", own)
        run(*arguments, BASE_URL=server, CHECKSUMS=sums, LANGUAGES=languages)
        fetched = sorted(path for path in (own / "raw").glob("*/*") if path.is_file())
        assert len(fetched) == count
        words = (own / "prepared" / "reference" / "test.tsv").read_text(encoding="utf-8")
        assert {line.split("\t")[0] for line in words.splitlines()} == {
            path.name.removesuffix("-dev") for path in fetched if path.name.endswith("-dev")
        }


def flags_of(variant: str, dataset: str = DATASET, config: str = "cpu", **variables: str):
    """Return the recipe's flags for ``fairseq-train``, parsed."""
    names = {"DATASET": dataset, "VARIANT": variant, "SETTINGS": "", "CONFIG": config}
    names |= {"DATA_DIR": "data", "RUN_DIR": "run", "PATH": "/usr/bin:/bin", **variables}
    script = f"source '{recipes.EXAMPLES}/stages/common.sh'; load_recipe; "
    script += """printf '%s\\n' "${DATASET_FLAGS[@]}" "${VARIANT_FLAGS[@]}" """
    result = subprocess.run(["bash", "-c", script], env=names, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    parser = options.get_training_parser("translation_sparse")
    flags = ["data", "--user-dir", USER_DIR, *result.stdout.splitlines()]
    return options.parse_args_and_arch(parser, flags)


@pytest.mark.parametrize("output", ["softmax", "entmax15", "sparsemax"])
@pytest.mark.parametrize("attention", ["softmax", "entmax15", "sparsemax"])
def test_the_grid_of_table_1_differs_in_the_two_kinds_alone(output: str, attention: str) -> None:
    alphas = {"softmax": "1", "entmax15": "1.5", "sparsemax": "2"}
    args = flags_of("entmax", OUTPUT_ALPHA=alphas[output], ATTENTION_ALPHA=alphas[attention])
    assert (args.output_transform, args.attention) == (output, attention)
    baseline = flags_of("softmax")
    different = {name for name, value in vars(args).items() if getattr(baseline, name) != value}
    assert different <= {"output_transform", "attention"}


@pytest.mark.parametrize("config", ["cpu", "gpu"])
def test_hyperparameters_of_the_paper(config: str) -> None:
    medium = flags_of("entmax", config=config, OUTPUT_ALPHA="1.25")
    assert (medium.arch, medium.dropout, medium.lr) == ("lstm_sparse_morph", 0.3, [1e-3])
    assert (medium.output_transform, medium.output_alpha) == ("entmax", 1.25)
    assert (medium.lr_scheduler, medium.lr_shrink) == ("reduce_lr_on_valid_loss", 0.5)
    assert medium.best_checkpoint_metric == "sentence_accuracy"
    high = flags_of(
        "entmax", dataset="sigmorphon2018_high_part", config=config, OUTPUT_ALPHA="1.25"
    )
    different = {name for name, value in vars(high).items() if getattr(medium, name) != value}
    assert different <= {"max_epoch", "validate_interval"}
    assert (medium.validate_interval, high.validate_interval) == (10, 1)
    assert (medium.lr_compare_with, medium.attention_bias) == ("previous", True)
    whole = flags_of("entmax", dataset="sigmorphon2018_medium", config=config, OUTPUT_ALPHA="1.25")
    assert vars(whole) == vars(medium)


def test_not_all_languages_are_not_the_paper_s_data(raw: Path, tmp_path: Path) -> None:
    options = ("--cpu", "--data-dir", tmp_path / "data", "--run-dir", tmp_path, "--stages", "1")
    whole = DATASET.removesuffix("_part")
    few = run(whole, "softmax", *options, RAW_DIR=raw, check=False)
    assert few.returncode != 0 and not (tmp_path / "data" / "prepared").exists()
    assert DATASET in few.stdout
    named = run(whole, "softmax", *options, RAW_DIR=raw, LANGUAGES="turkish", check=False)
    assert named.returncode != 0 and DATASET in named.stdout

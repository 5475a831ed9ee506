"""The recipes from raw text to a score, on a miniature data set in the layout of Multi30k."""

from __future__ import annotations

import concurrent.futures
import fcntl
import functools
import gzip
import hashlib
import json
import os
import platform
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import recipes
from commands import parameters
from fairseq_sparse.analysis.samples.generate_output import read_samples
from file_server import serve

DATASET = "multi30k_de_en"

NOUNS = ["Hund dog", "Mann man", "Frau woman", "Ball ball", "Straße street", "Tür door"]
VERBS = ["sieht sees", "trägt carries", "hält holds", "wirft throws"]
ADJECTIVES = ["großer big", "kleiner small", "roter red", "alter old"]


def sentence_pair(random_state: random.Random) -> tuple[str, str]:
    """A German and an English sentence with the same words, capitals and a full stop."""
    kinds = (ADJECTIVES, NOUNS, VERBS, ADJECTIVES, NOUNS)
    words = [random_state.choice(kind).split() for kind in kinds]
    german, english = (" ".join(side) for side in zip(*words, strict=True))
    return f"Ein {german}.", f"A {english}."


def options_of(variant: str, data_dir: Path, run_dir: Path) -> tuple[object, ...]:
    return (DATASET, variant, "--cpu", "--data-dir", data_dir, "--run-dir", run_dir)


def write_gzip(path: Path, lines: list[str]) -> None:
    with gzip.GzipFile(path, "wb", mtime=0) as handle:
        handle.write("".join(line + "\n" for line in lines).encode())


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write archives with their original names into a folder with an awkward name."""
    folder = tmp_path_factory.mktemp("raw") / "Rohdaten für, tests"
    folder.mkdir()
    random_state = random.Random(1)
    for split, count in (("train", 300), ("val", 20), ("test_2016_flickr", 20)):
        pairs = [sentence_pair(random_state) for _ in range(count)]
        if split == "train":
            pairs[7] = ("", "Nothing on the other side.")
        for side, language in enumerate(("de", "en")):
            write_gzip(folder / f"{split}.{language}.gz", [pair[side] for pair in pairs])
    return folder


@pytest.fixture
def server(raw: Path) -> Iterator[str]:
    """Serve the raw archives by HTTP from this machine; yield the address."""
    with serve(raw) as address:
        yield address


# Flags given last win: a model and a training that take seconds.
TINY = (
    "--encoder-layers 1 --encoder-embed-dim 32 --encoder-ffn-embed-dim 32 "
    "--encoder-attention-heads 2 --decoder-layers 1 --decoder-embed-dim 32 "
    "--decoder-ffn-embed-dim 32 --decoder-attention-heads 2 --dropout 0 "
    "--max-epoch 3 --lr 1e-2 --warmup-updates 10 --log-interval 2"
)

run = functools.partial(
    recipes.run,
    "run.sh",
    BPE_MERGES=60,
    BATCH_TOKENS=512,
    TRAIN_FLAGS=TINY,
    AVERAGE_LAST=2,
    GENERATE_FLAGS="--max-len-b 20",
)


@pytest.fixture(scope="module")
def prepared(raw: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A --data-dir in which the data are prepared."""
    data = tmp_path_factory.mktemp("data") / "Daten für, uns"
    options = options_of("softmax", data, data / "run")
    result = run(*options, "--stages", "prepare", RAW_DIR=raw)
    assert "left out 1 pairs" in result.stdout
    return data


def read_gzip(path: Path) -> list[str]:
    return gzip.decompress(path.read_bytes()).decode().splitlines()


def count_done(output: str) -> int:
    return output.count("] done already")


@pytest.fixture(scope="module")
def finished(raw: Path, prepared: Path, tmp_path_factory) -> Callable[[str], tuple[Path, str]]:
    """Return a function from a variant to its --run-dir after all stages and the output."""

    @functools.cache
    def finish(variant: str) -> tuple[Path, str]:
        folder = tmp_path_factory.mktemp(variant) / "Läufe hier"
        options = options_of(variant, prepared, folder)
        return folder, run(*options, RAW_DIR=raw).stdout

    return finish


@pytest.mark.slow_except("alpha_relu")
@pytest.mark.parametrize("variant", ["softmax", "alpha_relu"])
def test_from_raw_text_to_score(variant: str, finished, raw: Path, prepared: Path) -> None:
    folder, output = finished(variant)
    references = read_gzip(raw / "test_2016_flickr.en.gz")
    hypotheses = (folder / "hyp.detok.txt").read_text(encoding="utf-8").splitlines()
    score = json.loads((folder / "bleu.json").read_text())
    assert len(hypotheses) == len(references) == score["sentences"]
    assert not any("@@" in line or " ." in line for line in hypotheses)
    assert "tok:13a" in score["signature"] and "case:mixed" in score["signature"]
    assert f"BLEU = {score['bleu']:.2f}" in output

    summary = json.loads((folder / "summary.json").read_text())
    assert summary["bleu"] == score
    assert summary["variant"] == variant
    assert summary["training"]["epochs"] == 3
    assert summary["training"]["words_per_second"] > 0
    assert summary["generation"]["sentences_per_second"] > 0
    assert ("optimal" in summary["generation"]) == (variant == "alpha_relu")
    vocabulary = len((prepared / "prepared/bin/dict.en.txt").read_text().splitlines()) + 4
    if variant == "softmax":
        assert summary["test"]["nonzeros"] == pytest.approx(vocabulary, abs=8)
        assert summary["test"]["prob_sum"] == pytest.approx(1, abs=1e-3)
        assert summary["test"]["gold_zero"] == 0
    else:
        assert 0 < summary["test"]["nonzeros"] < vocabulary
        assert summary["test"]["tau"] == pytest.approx(summary["training"]["valid"]["tau"])


@pytest.mark.slow
def test_minimum_bayes_risk_against_beam_search(finished, prepared: Path, tmp_path: Path) -> None:
    for variant in ("softmax", "alpha_relu"):
        shutil.copytree(finished(variant)[0], tmp_path / variant)
    out = tmp_path / "Tabelle, hier"
    arguments = (tmp_path / "softmax", tmp_path / "alpha_relu", "--out", out, "--samples", 4)
    mbr = functools.partial(
        recipes.run, "mbr.sh", BPE_MERGES=60, BATCH_TOKENS=512, TRAIN_FLAGS=TINY
    )
    printed = mbr(*arguments, "--data-dir", prepared).stdout
    names = [f"{name}-{way}" for name in arguments[:2] for way in ("sampled", "epsilon", "nucleus")]
    names = [Path(name).name for name in names]
    table = (out / "table.txt").read_text()
    for system in ("beam/softmax", "beam/alpha_relu", *(f"mbr-chrf/{name}" for name in names)):
        assert len((out / system).read_text().splitlines()) == 20
        assert system in table
    assert table in printed
    drawn = read_samples([out / "samples" / "softmax-sampled" / "generate-test.txt"])
    chosen = (out / "mbr-chrf" / "softmax-sampled").read_text().splitlines()
    assert all(len(texts) == 4 for texts in drawn)
    assert all(text in texts for text, texts in zip(chosen, drawn, strict=True))
    # As after a clock was set back, and then other samples that look older.
    chosen = out / "mbr-chrf" / "softmax-sampled"
    before = chosen.read_text()
    chosen.write_text("kept\n" * 20)
    os.utime(chosen, (1, 1))
    assert mbr(*arguments, "--data-dir", prepared).stdout.count("] done already") == 12
    assert chosen.read_text() == "kept\n" * 20
    samples = out / "samples" / "softmax-sampled" / "generate-test.txt"
    samples.write_text(samples.read_text() + "\n")
    os.utime(samples, (0, 0))
    assert mbr(*arguments, "--data-dir", prepared).stdout.count("] done already") == 11
    assert chosen.read_text() == before
    (tmp_path / "other").mkdir()
    shutil.copytree(tmp_path / "softmax", tmp_path / "other" / "softmax")
    twice = (tmp_path / "softmax", tmp_path / "other" / "softmax", "--out", out, "--samples", 4)
    refused = mbr(*twice, "--data-dir", prepared, check=False)
    assert refused.returncode == 1 and "softmax" in refused.stdout


def test_done_is_skipped_and_deleted_is_made_again(
    finished, raw: Path, prepared: Path, tmp_path: Path
) -> None:
    shutil.copytree(finished("alpha_relu")[0], tmp_path, dirs_exist_ok=True)
    options = options_of("alpha_relu", prepared, tmp_path)
    names = ("train.json", "average.pt", "bleu.json", "alignments/manifest.json", "summary.json")
    times = [(tmp_path / name).stat().st_mtime_ns for name in names]
    second = run(*options, RAW_DIR=raw)
    assert count_done(second.stdout) == 6
    assert [(tmp_path / name).stat().st_mtime_ns for name in names] == times

    score = (tmp_path / "bleu.json").read_text()
    (tmp_path / "bleu.json").unlink()
    third = run(*options, RAW_DIR=raw)
    assert (tmp_path / "bleu.json").read_text() == score
    assert count_done(third.stdout) == 4  # not the stage analyze, which summarizes the results

    # The summary has the error rate of the alignments, which may be made later.
    layers = {"layers": [{"layer": 1, "average": 0.5}], "aol": 0.7}
    found = {"folders": [{"normal": layers, "shifted": layers}]}
    (tmp_path / "alignment.json").write_text(json.dumps(found))
    assert count_done(run(*options, RAW_DIR=raw).stdout) == 5
    assert json.loads((tmp_path / "summary.json").read_text())["alignment"] == {
        "aer": 0.5,
        "aol": 0.7,
    }


def test_change_of_settings_is_named(finished, raw: Path, prepared: Path, tmp_path: Path) -> None:
    shutil.copytree(finished("alpha_relu")[0], tmp_path, dirs_exist_ok=True)
    options = options_of("alpha_relu", prepared, tmp_path)
    # Preparation and training are refused: they may have cost days.
    refused = run(*options, "--stages", "1", RAW_DIR=raw, BPE_MERGES=50, check=False)
    assert refused.returncode != 0
    assert "was: bpe_merges 60" in refused.stdout and "now: bpe_merges 50" in refused.stdout
    refused = run(*options, "--stages", "2", RAW_DIR=raw, BATCH_TOKENS=600, check=False)
    assert refused.returncode != 0
    assert "was: batch_tokens 512\n" in refused.stdout
    assert "now: batch_tokens 600\n" in refused.stdout
    flags = TINY.replace("--dropout 0", "--dropout 0.5")
    refused = run(*options, "--stages", "2", RAW_DIR=raw, TRAIN_FLAGS=flags, check=False)
    assert refused.returncode != 0
    assert "was: --dropout 0\n" in refused.stdout and "now: --dropout 0.5\n" in refused.stdout
    # Later stages run again. Settings that make them fail cost no results.
    again = functools.partial(run, *options, "--stages", RAW_DIR=raw)
    average = (tmp_path / "average.pt").read_bytes()
    score = (tmp_path / "bleu.json").read_bytes()
    assert "4 checkpoints" in again("3", AVERAGE_LAST=4, check=False).stdout
    assert "--beam" in again("4", GENERATE_FLAGS="--beam ten", check=False).stdout
    assert (tmp_path / "average.pt").read_bytes() == average
    assert (tmp_path / "bleu.json").read_bytes() == score and (tmp_path / "summary.json").exists()
    results = [tmp_path / name for name in ("empty.json", "alignment.json", "bleu.json")]
    for result in results:  # of this average
        result.write_text("{}")
    changed = again("3", AVERAGE_LAST=1)
    assert "was: average_last 2" in changed.stdout and "now: average_last 1" in changed.stdout
    assert (tmp_path / "average.pt").read_bytes() != average
    assert not any(result.exists() for result in (*results, tmp_path / "summary.json"))


@pytest.mark.parametrize("flag", ["--max-epoch 3", "--max-epoch=3"])
def test_too_few_epochs_for_the_average_are_refused_before_the_training(
    flag: str, raw: Path, prepared: Path, tmp_path: Path
) -> None:
    train = functools.partial(run, *options_of("softmax", prepared, tmp_path), RAW_DIR=raw)
    train = functools.partial(train, "--stages", "train", AVERAGE_LAST=4, check=False)
    refused = train(TRAIN_FLAGS=f"{TINY} {flag}")
    assert refused.returncode != 0
    assert "--max-epoch 3" in refused.stdout
    assert not (tmp_path / "checkpoints").exists()


def test_epochs_without_limit_are_enough_for_the_average(
    raw: Path, prepared: Path, tmp_path: Path
) -> None:
    options = options_of("softmax", prepared, tmp_path)
    flags = f"{TINY} --max-epoch 0 --max-update 2"
    run(*options, "--stages", "train", RAW_DIR=raw, AVERAGE_LAST=4, TRAIN_FLAGS=flags)


def test_alignments_are_made_again_without_their_manifest(
    finished, raw: Path, prepared: Path, tmp_path: Path
) -> None:
    shutil.copytree(finished("alpha_relu")[0], tmp_path, dirs_exist_ok=True)
    before = {path.name: path.read_bytes() for path in (tmp_path / "alignments").glob("*.pharaoh")}
    (tmp_path / "alignments" / "manifest.json").unlink()
    run(*options_of("alpha_relu", prepared, tmp_path), "--stages", "align", RAW_DIR=raw)
    after = {path.name: path.read_bytes() for path in (tmp_path / "alignments").glob("*.pharaoh")}
    assert after == before and (tmp_path / "alignments" / "manifest.json").exists()


@pytest.mark.slow
def test_interrupted_run_resumes(raw: Path, tmp_path: Path) -> None:
    options = options_of("entmax15", tmp_path, tmp_path / "run")
    flags = TINY.replace("--max-epoch 3", "--max-epoch 2")
    run(*options, "--stages", "1-2", RAW_DIR=raw, TRAIN_FLAGS=flags)
    # As if both stages had been killed before their end.
    (tmp_path / "run" / "train.json").unlink()
    (tmp_path / "run" / "settings" / "train").unlink()
    shutil.rmtree(tmp_path / "prepared" / "bin")
    (tmp_path / "prepared").rename(tmp_path / "prepared.partial")
    resumed = run(*options, "--stages", "1-2", RAW_DIR=raw)
    assert "learn BPE: done already" in resumed.stdout
    assert "resuming from" in resumed.stdout
    assert '"epoch": 3' in resumed.stdout and '"epoch": 2' not in resumed.stdout
    assert json.loads((tmp_path / "run" / "train.json").read_text())["epochs"] == 3


@pytest.mark.slow
def test_a_last_checkpoint_that_was_cut_off_does_not_block(
    finished, raw: Path, prepared: Path, tmp_path: Path
) -> None:
    undisturbed, _ = finished("alpha_relu")
    shutil.copytree(undisturbed, tmp_path, dirs_exist_ok=True)
    checkpoints = tmp_path / "checkpoints"
    # As if training had been killed while it copied the checkpoint of epoch 2, and, at another
    # time, averaging while it wrote its output.
    for path in (tmp_path / "train.json", tmp_path / "average.pt", checkpoints / "checkpoint3.pt"):
        path.unlink()
    shutil.copyfile(checkpoints / "checkpoint2.pt", checkpoints / "checkpoint_best.pt")
    part = (checkpoints / "checkpoint2.pt").read_bytes()[:5000]
    (checkpoints / "checkpoint_last.pt").write_bytes(part)
    (tmp_path / "average.pt.new.01ab89ef.partial").write_bytes(part)

    options = options_of("alpha_relu", prepared, tmp_path)
    output = run(*options, "--stages", "2-3", RAW_DIR=raw).stdout
    (said,) = (line for line in output.splitlines() if "is damaged" in line)
    assert f"training resumes from {checkpoints}" in said
    assert (checkpoints / "checkpoint_last.pt.damaged").read_bytes() == part
    assert '"epoch": 3' in output and '"epoch": 2' not in output
    for name in ("checkpoints/checkpoint_last.pt", "average.pt"):
        expected, found = (parameters(folder / name) for folder in (undisturbed, tmp_path))
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[key], expected[key]) for key in expected)
    updates = [
        json.loads((folder / "train.json").read_text())["updates"]
        for folder in (undisturbed, tmp_path)
    ]
    assert updates[0] == updates[1]
    assert not list(tmp_path.rglob("*.partial*"))


def test_runs_that_share_data_wait_for_each_other(raw: Path, tmp_path: Path) -> None:
    def prepare(name: str) -> str:
        options = ("--cpu", "--data-dir", tmp_path / "data", "--run-dir", tmp_path / name)
        return run(DATASET, "softmax", *options, "--stages", "1", RAW_DIR=raw).stdout

    with concurrent.futures.ThreadPoolExecutor() as pool:
        outputs = list(pool.map(prepare, ["one", "two"]))
    assert sum("learn BPE: 60 merges" in output for output in outputs) == 1
    assert sum(count_done(output) for output in outputs) == 1


def test_finished_data_are_read_without_a_lock(raw: Path, prepared: Path, tmp_path: Path) -> None:
    """Finished data may lie in a folder that cannot be written."""
    with open(prepared / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        result = run(*options_of("softmax", prepared, tmp_path), "--stages", "1", RAW_DIR=raw)
    assert count_done(result.stdout) == 1


def test_a_number_that_another_process_has_now_is_no_lock(
    finished, raw: Path, prepared: Path, tmp_path: Path
) -> None:
    """Earlier versions made a link to the number of the process that works in the folder."""
    shutil.copytree(finished("alpha_relu")[0], tmp_path, dirs_exist_ok=True)
    (tmp_path / ".lock").unlink(missing_ok=True)
    (tmp_path / ".lock").symlink_to(f"{platform.node()} {os.getpid()}")
    options = options_of("alpha_relu", prepared, tmp_path)
    assert count_done(run(*options, "--stages", "average", RAW_DIR=raw).stdout) == 1


def test_a_lock_passes_to_one_process_at_a_time(tmp_path: Path) -> None:
    script = f"""source '{recipes.EXAMPLES}/stages/common.sh'
    lock_folder "$1"
    mkdir -- "$1/busy" || exit 3
    sleep .2
    rmdir -- "$1/busy\""""
    arguments = ["bash", "-c", script, "lock", str(tmp_path)]
    started = [subprocess.Popen(arguments, env=recipes.environment()) for _ in range(3)]
    assert [process.wait() for process in started] == [0, 0, 0]


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds processes in /proc")
def test_a_training_whose_shell_was_killed_is_not_started_twice(
    prepared: Path, tmp_path: Path
) -> None:
    options = options_of("softmax", prepared, tmp_path)
    flags = TINY.replace("--max-epoch 3", "--max-epoch 100000")
    environment = recipes.environment(BATCH_TOKENS=512, TRAIN_FLAGS=flags, AVERAGE_LAST=2)

    def start() -> subprocess.Popen:
        command = recipes.command("run.sh", *options, "--stages", "train")
        return subprocess.Popen(command, env=environment, stdout=-1, stderr=-2, encoding="utf-8")

    def trainings() -> list[int]:
        return [pid for pid, line in processes() if "fairseq_cli.train" in line]

    def processes() -> Iterator[tuple[int, str]]:
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                line = (folder / "cmdline").read_text()
            except OSError:
                continue
            if str(tmp_path) in line:
                yield int(folder.name), line

    try:
        first = start()
        assert any("begin training epoch" in line or '"epoch"' in line for line in first.stdout)
        (training,) = trainings()
        shell = int(Path(f"/proc/{training}/stat").read_text().rpartition(")")[2].split()[1])
        for pid in (shell, first.pid):
            os.kill(pid, signal.SIGKILL)
        second = start()
        begins = ("waiting for", "training from", "resuming from")
        said = next(line for line in second.stdout if any(f"] {words}" in line for words in begins))
        assert "waiting for" in said and str(training) in said.split("(")[1]
        assert trainings() == [training]
        os.kill(training, signal.SIGKILL)
        assert any("begin training epoch" in line or '"epoch"' in line for line in second.stdout)
        assert len(trainings()) == 1

        second.terminate()  # reaches the training, not only the script
        second.wait()
        until = time.monotonic() + 20
        while list(processes()) and time.monotonic() < until:
            time.sleep(0.05)
        assert not list(processes())
    finally:
        for pid, _ in processes():
            os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
def test_batch_does_not_depend_on_devices(raw: Path, prepared: Path, tmp_path: Path) -> None:
    """With half the tokens per device, accumulation doubles and the settings stay the same."""
    options = options_of("softmax", prepared, tmp_path)
    result = run(*options, "--stages", "train", RAW_DIR=raw, DEVICE_TOKENS=300)
    assert "512 tokens = 1 device(s) x 256 tokens x 2" in result.stdout
    again = run(*options, "--stages", "train", RAW_DIR=raw)
    assert count_done(again.stdout) == 1


def checksums(raw: Path, path: Path) -> Path:
    names = [
        f"{split}.{lang}.gz"
        for split in ("train", "val", "test_2016_flickr")
        for lang in ("de", "en")
    ]
    lines = [f"{hashlib.sha256((raw / name).read_bytes()).hexdigest()}  {name}\n" for name in names]
    path.write_text("".join(lines))
    return path


def test_download(raw: Path, server: str, tmp_path: Path) -> None:
    sums = checksums(raw, tmp_path / "sums")
    options = options_of("softmax", tmp_path / "data", tmp_path / "run")
    sum_of_one, *others = sums.read_text().splitlines(keepends=True)
    digest, name = sum_of_one.split()
    sums.write_text("".join([f"-  {name}\n", *others]))
    fetched = run(*options, "--stages", "prepare", BASE_URL=server, CHECKSUMS=sums)
    assert f"no checksum of {name} is known" in fetched.stdout
    assert f"raw {name} {digest}\n" in (tmp_path / "data" / "prepared" / "settings").read_text()
    assert (tmp_path / "data" / "raw" / "train.de.gz").read_bytes() == (
        raw / "train.de.gz"
    ).read_bytes()
    # The same files from a folder are the same data.
    again = run(*options, "--stages", "prepare", RAW_DIR=raw)
    assert "done already" in again.stdout


def test_download_of_something_else_is_refused(server: str, tmp_path: Path) -> None:
    options = options_of("softmax", tmp_path / "data", tmp_path / "run")
    result = run(*options, "--stages", "prepare", BASE_URL=server, check=False)
    assert result.returncode != 0 and "train.de.gz" in result.stdout
    assert not (tmp_path / "data" / "prepared").exists()
    assert not (tmp_path / "data" / "raw" / "train.de.gz").exists()


@pytest.mark.parametrize(
    "damage", [lambda path: path.write_bytes(path.read_bytes()[:-20]), Path.unlink]
)
def test_bad_raw_file_is_named(damage, raw: Path, tmp_path: Path) -> None:
    folder = tmp_path / "raw"
    shutil.copytree(raw, folder)
    damage(folder / "val.de.gz")
    options = options_of("softmax", tmp_path / "data", tmp_path / "run")
    result = run(*options, "--stages", "prepare", RAW_DIR=folder, check=False)
    assert result.returncode != 0 and str(folder / "val.de.gz") in result.stdout
    assert not (tmp_path / "data" / "prepared").exists()
    # With the file in its place, the same command works.
    shutil.copy(raw / "val.de.gz", folder)
    run(*options, "--stages", "prepare", RAW_DIR=folder)


def test_stage_without_its_input_says_which_stage_to_run(tmp_path: Path) -> None:
    options = options_of("softmax", tmp_path / "data", tmp_path / "run")
    for stage, needed in (("train", "prepare"), ("average", "train"), ("generate", "prepare")):
        result = run(*options, "--stages", stage, check=False)
        assert result.returncode != 0
        assert f"run the stage {needed} first" in result.stdout

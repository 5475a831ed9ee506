"""examples/reproduce.sh and its grid, mostly with a stand-in for run.sh that trains nothing."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import recipes
from fairseq_sparse.analysis.runs.columns import COLUMNS
from fairseq_sparse.commands.cli import COMMANDS
from fork_python import PYTHON

TABLES = sorted(path.stem for path in (recipes.EXAMPLES / "tables").glob("*.sh"))
TABLE = """TITLE="Tiny table_1, 100%"
DATASETS=(multi30k_de_en quickstart)
ROWS=(softmax sparsemax "alpha_relu OUTPUT_TAU=0.5")
COLUMNS=(bleu nonzeros)
"""
# Stand-in for run.sh: it records its arguments, and fails for the runs listed in a file; if another
# file exists, it does not end, and writes its process number there.
STAND_IN = r"""#!/usr/bin/env bash
set -euo pipefail
note="$1 $2 seed=$SEED tau=${OUTPUT_TAU:-} gpus=${CUDA_VISIBLE_DEVICES:-} $3"
dataset="$1" variant="$2" settings="" data="" run="" stages=""
shift 3
while (( $# )); do
  case "$1" in
    --settings) settings="$2" ;;
    --data-dir) data="$2" ;;
    --run-dir) run="$2" ;;
    --stages) stages="$2" ;;
  esac
  shift 2
done
printf '%s %s%s\n' "$note" "${settings:--}" "${stages:+ $stages}" >> "$NOTES"
if [[ -z "$stages" && -f "$NOTES.hang" ]]; then echo "$$" > "$NOTES.hang"; exec sleep 300; fi
if grep -qsxF "$dataset $variant" "$NOTES.fail"; then echo "it went wrong"; exit 1; fi
mkdir -p "$run" "$data"
[[ -z "$stages" ]] || exit 0
if [[ -n "${OUTPUT_TAU:-}" ]]; then title="relu, τ = $OUTPUT_TAU"; fi
cat > "$run/summary.json" <<JSON
{"dataset": "$dataset", "variant": "$variant", "settings": "$settings",
 "variant_name": "${title:-}", "bleu": {"bleu": 2$SEED}}
JSON
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Copy the recipes, and add a table and the stand-in."""
    folder = tmp_path / "Projekt für, uns & alle"
    shutil.copytree(recipes.EXAMPLES, folder / "examples")
    for name in ("scripts", "fairseq_sparse"):
        (folder / name).symlink_to(recipes.EXAMPLES.parent / name)
    (folder / "examples" / "tables" / "tiny_1.sh").write_text(TABLE, encoding="utf-8")
    (folder / "examples" / "run.sh").write_text(STAND_IN, encoding="utf-8")
    return folder


def run(project: Path, script: str, *arguments: object, **variables: object):
    """Run a script of the copy from a folder outside the project."""
    process = start(project, script, *arguments, **variables)
    output, _ = process.communicate()
    return subprocess.CompletedProcess(process.args, process.returncode, output)


def start(project: Path, script: str, *arguments: object, stdout=subprocess.PIPE, **variables):
    return subprocess.Popen(
        ["bash", str(project / "examples" / script), *map(str, arguments)],
        env=recipes.environment(NOTES=project / "notes", **variables),
        cwd=project.parent,
        stdout=stdout,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
    )


def notes(project: Path) -> list[str]:
    """Return what the stand-in recorded since the last call."""
    text = (project / "notes").read_text(encoding="utf-8")
    (project / "notes").unlink()
    return text.splitlines()


def test_a_grid_goes_on_after_a_failure_and_again(project: Path) -> None:
    (project / "notes.fail").write_text("quickstart sparsemax\n")
    command = ("reproduce.sh", "tiny", 1, "--cpu", "--seeds", 2, "--runs", "Läufe hier")
    first = run(project, *command)
    assert first.returncode == 1
    datasets = ("multi30k_de_en", "quickstart")
    rows = [("softmax", ""), ("sparsemax", ""), ("alpha_relu", "0.5")]
    given = notes(project)
    assert given[:2] == [f"{name} softmax seed=1 tau= gpus= --cpu - prepare" for name in datasets]
    assert given[2:] == [
        f"{dataset} {variant} seed={seed} tau={tau} gpus= --cpu -"
        for seed in (1, 2)
        for dataset in datasets
        for variant, tau in rows
    ]
    runs = project.parent / "Läufe hier"
    for seed, folder in ((1, "sparsemax-cpu"), (2, "sparsemax-cpu-seed-2")):
        log = runs / "quickstart" / folder / "run.log"
        assert f"seed {seed}: {log}\n" in first.stdout
        assert log.read_text() == "it went wrong\n"
    assert "2 of 12 runs failed" in first.stdout
    table = runs / "tables" / "tiny_1-cpu"
    text = table.with_suffix(".md").read_text(encoding="utf-8")
    assert "4 of 6 runs are finished" in text and "21.50 ± 0.71" in text
    assert (
        "quickstart/alpha_relu-output_tau-0.5-cpu-seed-2" in table.with_suffix(".plan").read_text()
    )

    (project / "notes.fail").unlink()
    second = run(project, *command, "--settings", "rela", "--dataset", "quickstart")
    assert second.returncode == 0, second.stdout
    assert notes(project)[-1] == "quickstart alpha_relu seed=2 tau=0.5 gpus= --cpu rela"
    table = runs / "tables" / "tiny_1-rela-cpu-quickstart"
    assert "settings: rela" in table.with_suffix(".md").read_text(encoding="utf-8")
    assert r"Tiny table\_1, 100\%" in table.with_suffix(".tex").read_text(encoding="utf-8")
    found = json.loads(table.with_suffix(".json").read_text())["datasets"]
    assert [row["row"] for row in found["quickstart"]["rows"]][2] == "alpha_relu OUTPUT_TAU=0.5"


@pytest.mark.parametrize("arguments", [("reproduce.sh", "tiny", "1"), ("sweep.sh", "quickstart")])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_killed_grid_ends_its_runs(project: Path, arguments: tuple[str, ...], number) -> None:
    hang = project / "notes.hang"
    hang.touch()
    grid = start(project, arguments[0], *arguments[1:], "--cpu", stdout=subprocess.DEVNULL)
    wait_until(lambda: hang.read_text().endswith("\n"))
    pid = int(hang.read_text())

    def has_ended() -> bool:
        state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True).stdout
        return state.strip()[:1] in (b"", b"Z")

    grid.send_signal(number)
    try:
        assert grid.wait(20) == -number
        wait_until(has_ended)
        assert len(notes(project)) <= 3  # no other run was started
    finally:
        if not has_ended():
            os.kill(pid, signal.SIGKILL)


def wait_until(condition: Callable[[], bool], seconds: float = 30) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_a_dry_run_lists_the_runs_and_makes_nothing(project: Path) -> None:
    runs = project / "runs"
    for folder, name in (("softmax-cpu", "summary.json"), ("sparsemax-cpu", "other")):
        (runs / "quickstart" / folder).mkdir(parents=True)
        (runs / "quickstart" / folder / name).touch()
    before = sorted(project.rglob("*"))
    options = ("--dataset", "quickstart", "--cpu", "--seeds", "1", "--dry-run")
    result = run(project, "reproduce.sh", "tiny", "1", *options)
    assert result.stdout.splitlines() == [
        f"done   seed 1  quickstart  softmax  {runs}/quickstart/softmax-cpu",
        f"begun  seed 1  quickstart  sparsemax  {runs}/quickstart/sparsemax-cpu",
        "to do  seed 1  quickstart  alpha_relu OUTPUT_TAU=0.5  "
        f"{runs}/quickstart/alpha_relu-output_tau-0.5-cpu",
    ]
    assert sorted(project.rglob("*")) == before
    # Runs that sweep.sh trains have its folders.
    arguments = ("sparse_seq2seq", "1", "--cpu", "--dry-run", "--dataset", "sigmorphon2018_medium")
    lines = run(project, "reproduce.sh", *arguments).stdout.splitlines()
    assert len(lines) == 27 and len(set(lines)) == 27
    folder = "sigmorphon2018_medium/sweep-cpu/output-1-attention-1.5/seed-1"
    assert f"entmax OUTPUT_ALPHA=1 ATTENTION_ALPHA=1.5  {runs}/{folder}" in lines[1]


def write_list(path: Path, count: int) -> Path:
    lines = [
        f"{seed}\tquickstart\tsoftmax\t-\t-\t{path.parent}/data\t{path.parent}/run-{seed}\n"
        for seed in range(1, count + 1)
    ]
    path.write_text("".join(lines), encoding="utf-8")
    return path


@pytest.fixture
def four_gpus(tmp_path: Path) -> Path:
    """Return a Python that reports four GPUs."""
    path = tmp_path / "python with gpus"
    answer = f'case "$*" in *device_count*) echo 4 ;; *) exec "{PYTHON}" "$@" ;; esac\n'
    path.write_text(f"#!/usr/bin/env bash\n{answer}", encoding="utf-8")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    "jobs, visible, expected",
    [
        (0, None, {"0", "1", "2", "3"}),
        (2, "7,5,3,1", {"7,5", "3,1"}),
        (3, None, {"0", "1", "2,3"}),
        (1, None, {"0,1,2,3"}),
    ],
)
def test_the_gpus_are_shared_out(
    jobs: int, visible: str, expected: set[str], project: Path, four_gpus: Path
) -> None:
    variables = {"PYTHON": four_gpus, "CONFIG": "gpu", "CUDA_VISIBLE_DEVICES": visible}
    plan = write_list(project / "list", 12)
    result = run(project, "stages/grid.sh", plan, jobs, **variables)
    assert result.returncode == 0, result.stdout
    found = {line.partition("gpus=")[2].split()[0] for line in notes(project)[1:]}
    assert found <= expected and (jobs != 1 or found == expected)
    assert all("GPU" in line for line in result.stdout.splitlines() if "run-" in line)


def test_more_jobs_than_gpus_are_refused(project: Path, four_gpus: Path) -> None:
    plan = write_list(project / "list", 1)
    result = run(project, "stages/grid.sh", plan, 5, PYTHON=four_gpus, CONFIG="gpu")
    assert result.returncode == 1 and "--jobs 5" in result.stdout


@pytest.mark.parametrize("jobs", [0, 8])
def test_several_runs_can_share_a_gpu(jobs: int, project: Path, four_gpus: Path) -> None:
    variables = {"PYTHON": four_gpus, "CONFIG": "gpu", "RUNS_PER_GPU": "2"}
    plan = write_list(project / "list", 24)
    result = run(project, "stages/grid.sh", plan, jobs, **variables)
    assert result.returncode == 0, result.stdout
    found = [line.partition("gpus=")[2].split()[0] for line in notes(project)[1:]]
    assert "0" in found and set(found) <= {"0", "1", "2", "3"}
    result = run(project, "stages/grid.sh", plan, 9, **variables)
    assert result.returncode == 1 and "--jobs 9" in result.stdout


def test_without_data_no_run_is_begun(project: Path) -> None:
    (project / "notes.fail").write_text("quickstart softmax\n")
    result = run(project, "stages/grid.sh", write_list(project / "list", 3), 2, CONFIG="cpu")
    assert result.returncode == 1 and "3 of 3 runs failed" in result.stdout
    assert len(notes(project)) == 1


@pytest.mark.parametrize("table", TABLES)
def test_a_table_names_what_there_is(table: str) -> None:
    script = f"""EXAMPLES='{recipes.EXAMPLES}'
    DRAW=() FOLLOW_UP=() COMMAND=() DATASETS=() ROWS=() COLUMNS=()
    source "$EXAMPLES/tables/{table}.sh"
    printf '%s\\n' "$TITLE" "${{DATASETS[*]-}}" "${{COLUMNS[*]-}}" "${{ANALYSIS:-}}"
    printf '%s\\n' "${{DRAW[*]-}}" "${{FOLLOW_UP[*]-}}" "${{COMMAND[*]-}}" "${{EARLY:-1}}"
    printf '%s\\n' "${{SETTINGS:-}}" "${{ROWS[@]-}}" """
    result = subprocess.run(["bash", "-euc", script], capture_output=True, text=True, check=True)
    title, datasets, columns, analysis, pictures, *rest = result.stdout.splitlines()
    follow_up, command, early, settings, *rows = rest
    assert title and set(columns.split()) <= set(COLUMNS) and analysis in ("", "empty")
    assert set(pictures.split()) <= {*COLUMNS, "training", "alphas"} and 0 < float(early) <= 1
    for called in filter(None, [command, *follow_up.split(" THEN ")]):
        words = called.split(" ")
        script = recipes.EXAMPLES.parent / "scripts" / words[0]
        assert words[0] in COMMANDS or " ".join(words[:2]) in COMMANDS or script.is_file(), called
    rows = [row for row in rows if row]
    if command:
        assert not (rows or datasets or follow_up or settings)
        return
    assert len(set(rows)) == len(rows) > 0 and datasets
    papers = {"rela": "rela", "speeding": "sue", "sparse": "", "attention": ""}
    assert settings == papers[table.split("_")[0]]
    for folder, names in (("variants", rows), ("datasets", datasets.split())):
        for name in names:
            assert (recipes.EXAMPLES / folder / f"{name.split()[0]}.sh").is_file(), name


def test_a_figure_of_formulas_needs_no_runs(tmp_path: Path) -> None:
    runs = tmp_path / "R&D"
    command = ("reproduce.sh", "sparse_seq2seq", "fig3", "--runs", runs)
    planned = recipes.run(*command, "--dry-run").stdout
    assert planned.startswith("to do  fairseq-sparse draw mappings entmax ")
    assert f" {runs}/tables/sparse_seq2seq_fig3" in planned
    assert not list(tmp_path.iterdir())
    recipes.run(*command)
    assert (runs / "tables" / "sparse_seq2seq_fig3.png").stat().st_size > 10_000
    assert (runs / "tables" / "sparse_seq2seq_fig3.svg").is_file()
    assert recipes.run(*command, "--dataset", "quickstart", check=False).returncode == 2


def add_to_table(project: Path, lines: str) -> None:
    """Add lines to the table, and a script that shows its arguments."""
    table = project / "examples" / "tables" / "tiny_1.sh"
    table.write_text(f"{TABLE}{lines}\n", encoding="utf-8")
    (project / "scripts").unlink()
    shutil.copytree(recipes.EXAMPLES.parent / "scripts", project / "scripts")
    (project / "scripts" / "show.py").write_text("import sys\nprint(sys.argv[1:])\n")


def test_the_follow_up_runs_on_the_finished_models_of_the_first_seed(project: Path) -> None:
    words = 'show.py "a b" DATA --path MODELS --names NAMES --log LOGS --plots STEM --json STEM.x'
    add_to_table(project, f"FOLLOW_UP=({words})")
    (project / "notes.fail").write_text("quickstart sparsemax\n")
    command = ("reproduce.sh", "tiny", 1, "--cpu", "--seeds", 2, "--dataset", "quickstart")
    assert run(project, *command).returncode == 1
    stem = f"{project}/runs/tables/tiny_1-cpu-quickstart"
    folders = [
        f"{project}/runs/quickstart/{name}"
        for name in ("softmax-cpu", "alpha_relu-output_tau-0.5-cpu")
    ]
    expected = ["a b", f"{project}/data/quickstart/prepared/bin"]
    expected += ["--path", *(f"{folder}/average.pt" for folder in folders)]
    expected += ["--names", "softmax", "relu, τ = 0.5"]
    expected += ["--log", *(f"{folder}/logs/2_train.log" for folder in folders)]
    expected += ["--plots", stem, "--json", f"{stem}.x", "--cpu"]
    assert Path(f"{stem}.txt").read_text(encoding="utf-8") == f"{expected}\n"


def test_the_follow_up_may_be_two_commands_at_all_seeds(project: Path) -> None:
    words = "show.py PREPARED MODELS NAMES THEN show.py SOURCE REFERENCE SYSTEMS"
    add_to_table(project, f"ROWS=(softmax)\nFOLLOW_UP=({words})\nFOLLOW_UP_SEEDS=all")
    prepared = project / "data" / "quickstart" / "prepared"
    prepared.mkdir(parents=True)
    (prepared / "settings").write_text("languages de en\n")
    result = run(
        project, "reproduce.sh", "tiny", 1, "--cpu", "--seeds", 2, "--dataset", "quickstart"
    )
    assert result.returncode == 0, result.stdout
    runs = [f"{project}/runs/quickstart/softmax-cpu{end}" for end in ("", "-seed-2")]
    first = [str(prepared), *(f"{folder}/average.pt" for folder in runs), *["softmax"] * 2]
    second = [f"{prepared}/reference/test.{language}" for language in ("de", "en")]
    second += [f"softmax={folder}" for folder in runs]
    text = (project / "runs" / "tables" / "tiny_1-cpu-quickstart.txt").read_text(encoding="utf-8")
    assert text == f"{[*first, '--cpu']}\n{[*second, '--cpu']}\n"


def test_a_follow_up_of_text_alone_is_told_no_device(project: Path) -> None:
    table = project / "examples" / "tables" / "tiny_1.sh"
    words = "compare SYSTEMS --source SOURCE --reference REFERENCE"
    table.write_text(f"{TABLE}ROWS=(softmax sparsemax)\nFOLLOW_UP=({words})\n", encoding="utf-8")
    prepared = project / "data" / "quickstart" / "prepared"
    (prepared / "reference").mkdir(parents=True)
    (prepared / "settings").write_text("languages de en\n")
    runs = [project / "runs" / "quickstart" / f"{name}-cpu" for name in ("softmax", "sparsemax")]
    for folder in runs:
        folder.mkdir(parents=True)
        (folder / "hyp.detok.txt").write_text("A dog .\n")
    for language in ("de", "en"):
        (prepared / "reference" / f"test.{language}").write_text("A dog .\n")
    command = ("reproduce.sh", "tiny", 1, "--cpu", "--seeds", 1, "--dataset", "quickstart")
    result = run(project, *command)
    assert result.returncode == 0 and "0 sentences differ" in result.stdout, result.stdout


def test_settings_of_a_table_are_for_its_own_data_sets(project: Path) -> None:
    table = project / "examples" / "tables" / "tiny_1.sh"
    table.write_text(f"{TABLE}SETTINGS=sue\n", encoding="utf-8")

    def plan(*datasets: str, options: tuple[str, ...] = ()) -> str:
        chosen = [part for name in datasets for part in ("--dataset", name)]
        command = ("reproduce.sh", "tiny", 1, "--cpu", "--dry-run", *chosen, *options)
        return run(project, *command).stdout

    assert "quickstart/softmax-sue-cpu" in plan() and "/softmax-sue-cpu" in plan("quickstart")
    assert "iwslt14_de_en/softmax-cpu" in plan("iwslt14_de_en")
    mixed = ("quickstart", "iwslt14_de_en")
    assert "/softmax" not in plan(*mixed)
    assert "iwslt14_de_en/softmax-rela-cpu" in plan(*mixed, options=("--settings", "rela"))


def test_missing_gold_alignments_are_named_before_the_training(project: Path) -> None:
    table = project / "examples" / "tables" / "tiny_1.sh"
    table.write_text(f"{TABLE}FOLLOW_UP=(show.py GOLD)\n", encoding="utf-8")
    result = run(project, "reproduce.sh", "tiny", 1, "--cpu", GOLD_SET=project / "nowhere")
    assert result.returncode == 1 and "GOLD_SET" in result.stdout
    assert not (project / "notes").exists()


@pytest.mark.slow
def test_models_are_trained_and_their_empty_translations_counted(project: Path) -> None:
    shutil.copy(recipes.EXAMPLES / "run.sh", project / "examples" / "run.sh")
    lines = ['TITLE="tiny"', "DATASETS=(quickstart)", "COLUMNS=(empty_is_best bleu hours)"]
    lines += ["ANALYSIS=empty", 'ROWS=(softmax "alpha_relu OUTPUT_TAU=0.5")']
    (project / "examples" / "tables" / "tiny_1.sh").write_text("\n".join(lines))
    corpus = "--train 3000 --valid 30 --test 20 --held-out 6"
    variables = {"CORPUS_FLAGS": corpus, "MAX_EPOCH": 1, "AVERAGE_LAST": 1, "BPE_MERGES": 100}
    variables |= {"BATCH_TOKENS": 20000, "DEVICE_TOKENS": 20000, "GENERATE_FLAGS": "--max-len-b 10"}
    command = ("reproduce.sh", "tiny", 1, "--cpu", "--seeds", 1, "--jobs", 2)
    result = run(project, *command, **variables, OMP_NUM_THREADS=None)
    assert result.returncode == 0, result.stdout
    table = project / "runs" / "tables" / "tiny_1-cpu.json"
    softmax, sparse = json.loads(table.read_text())["datasets"]["quickstart"]["rows"]
    assert sparse["row"] == "alpha_relu OUTPUT_TAU=0.5"
    for row in (softmax, sparse):
        seed = row["seeds"]["1"]
        assert 0 <= seed["empty_is_best"] <= 1 and seed["bleu"] >= 0 and seed["hours"] > 0
    assert 0 < sparse["seeds"]["1"]["p"] <= 1
    flags = (Path(sparse["seeds"]["1"]["folder"]) / "settings" / "train").read_text().splitlines()
    assert {"--output-tau 0.5", "--seed 1"} <= set(flags)
    # One looks older than its model; of the other's model, nobody knows that it was analysed.
    kept, lost = (Path(row["seeds"]["1"]["folder"]) for row in (softmax, sparse))
    os.utime(kept / "empty.json", (1, 1))
    (lost / "settings" / "empty").unlink()
    before = [os.stat(folder / "empty.json").st_mtime_ns for folder in (kept, lost)]
    again = run(project, *command, **variables, OMP_NUM_THREADS=None)
    assert again.returncode == 0 and "done" in again.stdout
    after = [os.stat(folder / "empty.json").st_mtime_ns for folder in (kept, lost)]
    assert after[0] == before[0] and after[1] > before[1]

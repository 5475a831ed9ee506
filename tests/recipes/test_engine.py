"""Stages are done once, whatever happens meanwhile, and again when their content changes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import engines
import fairseq_sparse
from engines import lines, plan, sh, stage
from fairseq_sparse.errors import RecipeError
from fairseq_sparse.recipes import engine, records
from fairseq_sparse.recipes.plan import CORES, Command

COUNTED = 'echo "$1" >> "$2"; cat "$3"'


@pytest.fixture
def toy(tmp_path):
    """Two stages: ``copy`` reads ``given`` and ``again`` reads the copy; runs are counted."""

    def make(folder: Path, changed: str = "redo", **settings: object):
        given, runs = tmp_path / "given", folder / "runs"
        if not given.exists():
            given.write_text("old")
        folder.mkdir(exist_ok=True)
        parts = []
        for name, source in (("copy", given), ("again", folder / "copy")):
            command = sh(COUNTED, name, runs, source, stdout=folder / name)
            fields = {"name": name, "inputs": (source,), "changed": changed}
            parts.append(stage(folder, command, settings=settings, **fields))
        return plan(*parts)

    return make


def test_a_finished_stage_is_not_done_again(tmp_path, toy, capfd):
    for _ in range(2):
        engine.run(toy(tmp_path / "run", lr=0.1))
    assert lines(tmp_path / "run" / "runs") == ["copy", "again"]
    assert "done already" in capfd.readouterr().err


def test_named_stages_only(tmp_path, toy):
    engine.run(toy(tmp_path / "run"), ["copy"])
    assert lines(tmp_path / "run" / "runs") == ["copy"]
    with pytest.raises(RecipeError, match="copy, again"):
        engine.run(toy(tmp_path / "run"), ["train"])


def touch(run: Path, given: Path) -> Path:
    for path in (given, *run.rglob("*")):
        path.touch()
    return run


def copy(run: Path, given: Path) -> Path:
    shutil.copytree(run, run.with_name("copied"))
    shutil.rmtree(run)
    return run.with_name("copied")


def set_clock_back(run: Path, given: Path) -> Path:
    for path in (given, *run.rglob("*")):
        os.utime(path, (1, 1))
    return run


def delete_input(run: Path, given: Path) -> Path:
    given.unlink()
    return run


@pytest.mark.parametrize("happens", [touch, copy, set_clock_back, delete_input])
def test_what_does_not_change_the_content_changes_nothing(tmp_path, toy, happens):
    run, given = tmp_path / "run", tmp_path / "given"
    first = toy(run)
    engine.run(first)
    moved = happens(run, given)
    later = toy(moved)
    if happens is delete_input:
        given.unlink()  # made by toy() once more
    engine.run(later)
    assert lines(moved / "runs") == ["copy", "again"]


def test_changed_content_is_noticed_behind_the_same_size_and_time(tmp_path, toy, capfd):
    given = tmp_path / "given"
    engine.run(toy(tmp_path / "run"))
    before = given.stat()
    given.write_text("new")
    os.utime(given, ns=(before.st_atime_ns, before.st_mtime_ns))
    engine.run(toy(tmp_path / "run"))
    assert lines(tmp_path / "run" / "runs") == ["copy", "again"] * 2
    assert (tmp_path / "run" / "again").read_text() == "new"
    assert "given has changed" in capfd.readouterr().err


def test_a_stage_whose_inputs_come_out_the_same_is_not_done_again(tmp_path, toy):
    engine.run(toy(tmp_path / "run"))
    (tmp_path / "run" / "copy").unlink()
    engine.run(toy(tmp_path / "run"))
    assert lines(tmp_path / "run" / "runs") == ["copy", "again", "copy"]


def test_changed_settings_cost_the_result_and_are_named(tmp_path, toy, capfd):
    engine.run(toy(tmp_path / "run", flags={"lr": 0.1, "beam": 5}))
    engine.run(toy(tmp_path / "run", flags={"lr": 0.2, "beam": 5}))
    assert lines(tmp_path / "run" / "runs") == ["copy", "again"] * 2
    said = capfd.readouterr().err
    assert "flags.lr: was 0.1, now 0.2" in said and "beam" not in said


@pytest.mark.parametrize("finished", [True, False])
def test_changes_can_be_refused(tmp_path, toy, finished):
    run = tmp_path / "run"
    engine.run(toy(run, "refuse", lr=0.1))
    if not finished:
        (run / "again").unlink()
    with pytest.raises(RecipeError) as refused:
        engine.run(toy(run, "refuse", seed=2))
    for part in ("lr: was 0.1, now not set", "seed: was not set, now 2", str(run)):
        assert part in str(refused.value)
    (tmp_path / "given").write_text("new")
    with pytest.raises(RecipeError, match="given has changed"):
        engine.run(toy(run, "refuse", lr=0.1))
    assert lines(run / "runs") == ["copy", "again"] and (run / "copy").read_text() == "old"


@pytest.mark.parametrize("resumable", [True, False])
def test_a_stage_that_failed_begins_anew_unless_it_has_a_checkpoint(tmp_path, resumable, capfd):
    """A wrong flag or file must not block the folder once it has been mended."""
    checkpoint, given, made = tmp_path / "last.pt", tmp_path / "given", tmp_path / "made"
    given.write_text("wrong")

    def train(script: str, **settings: object) -> None:
        fields = {"changed": "refuse", "inputs": (given,), "outputs": (made,)}
        command = sh(script, made)
        engine.run(
            plan(stage(tmp_path, command, settings=settings, resumes_from=checkpoint, **fields))
        )

    with pytest.raises(RecipeError, match="failed"):
        train("echo half > $1; false", drpout=0.3)
    given.write_text("right")
    if resumable:
        checkpoint.touch()
        with pytest.raises(RecipeError, match="drpout: was 0.3"):
            train("echo whole >> $1", dropout=0.3)
    else:
        train("echo whole >> $1", dropout=0.3)
        assert lines(made) == ["whole"]
        assert "drpout: was 0.3, now not set" in capfd.readouterr().err


def test_a_limit_that_rises_prolongs_the_work(tmp_path, capfd):
    """A toy training that resumes by itself writes a line for each epoch."""
    log, limit = tmp_path / "epochs", "--max-epoch"

    def train(**settings: object) -> None:
        script = 'touch "$1"; while [ "$(wc -l < "$1")" -lt "$2" ]; do echo >> "$1"; done'
        command = sh(script, log, settings.get(limit, 0))
        fields = {"changed": "refuse", "prolonged_by": (limit,), "outputs": (log,)}
        engine.run(plan(stage(tmp_path, command, settings=settings, **fields)))

    train(**{limit: "2"})
    for changed in ({limit: "1"}, {limit: "0"}, {}, {limit: "3", "lr": 0.1}):
        with pytest.raises(RecipeError, match=limit):
            train(**changed)
        assert len(lines(log)) == 2
    for _ in range(2):
        train(**{limit: "10"})
        assert len(lines(log)) == 10
    said = capfd.readouterr().err
    assert f"{limit}: was 2, now 10" in said and said.count("done already") == 1


def test_files_of_the_user_are_not_replaced_where_changes_are_refused(tmp_path, toy):
    run = tmp_path / "run"
    run.mkdir()
    (run / "copy").write_text("mine")
    with pytest.raises(RecipeError, match="no record"):
        engine.run(toy(run, "refuse"))
    assert (run / "copy").read_text() == "mine"
    engine.run(toy(run, "redo"))
    assert (run / "copy").read_text() == "old"


def test_what_a_stage_did_not_make_can_be_told_from_what_it_made(tmp_path, toy):
    run = tmp_path / "run"
    made = toy(run)
    records.refuse_foreign(made.stages)
    engine.run(made)
    records.refuse_foreign(made.stages)
    (run / "copy").write_text("mine")
    with pytest.raises(RecipeError, match=str(run / "copy")):
        records.refuse_foreign(made.stages)
    (run / "copy").unlink()
    records.refuse_foreign(made.stages)
    shutil.rmtree(run / "stages")
    with pytest.raises(RecipeError, match=str(run / "again")):
        records.refuse_foreign(made.stages)


def test_what_an_interrupted_stage_has_half_written_is_its_own(tmp_path, toy):
    _, again = toy(tmp_path).stages
    (tmp_path / "stages").mkdir()
    for state, own in ((records.FINISHED, False), (records.INTERRUPTED, True)):
        records.write(again, state, {})
        (tmp_path / "again").write_text("half")
        assert (not records.foreign(again)) == own
        (tmp_path / "again").unlink()


def test_without_a_record_nothing_is_resumed(tmp_path):
    checkpoint = tmp_path / "checkpoint"
    checkpoint.write_text("of other settings")
    work = stage(tmp_path, sh("true"), name="train", changed="refuse", resumes_from=checkpoint)
    with pytest.raises(RecipeError, match="no record"):
        engine.run(plan(work))


def test_a_missing_input_is_named(tmp_path, toy):
    with pytest.raises(RecipeError, match="run/copy"):
        engine.run(toy(tmp_path / "run"), ["again"])


def test_results_are_used_without_writing_anything(tmp_path, toy):
    run = tmp_path / "run"
    engine.run(toy(run))
    (run / ".lock").unlink()
    (tmp_path / "given").touch()
    before = {path: path.stat().st_mtime_ns for path in (run, *run.rglob("*"))}
    engine.run(toy(run))
    assert {path: path.stat().st_mtime_ns for path in (run, *run.rglob("*"))} == before


def test_inputs_of_the_same_name_are_told_apart(tmp_path):
    inputs = [tmp_path / side / "train.de" for side in ("text", "tokens")]
    for path in inputs:
        path.parent.mkdir()
        path.write_text(path.parent.name)
    command = sh(COUNTED, "x", tmp_path / "runs", inputs[0], stdout=tmp_path / "out")
    made = plan(stage(tmp_path, command, inputs=tuple(inputs)))
    engine.run(made)
    inputs[0].write_text("tokens")
    inputs[1].write_text("text")
    engine.run(made)
    assert lines(tmp_path / "runs") == ["x", "x"]


def test_a_failure_names_its_status_the_last_lines_and_the_log(tmp_path):
    partial, later = tmp_path / "partial", tmp_path / "later"
    failing = sh("echo half; echo reason >&2; exit 3", stdout=partial)
    with pytest.raises(RecipeError) as failure:
        engine.run(plan(stage(tmp_path, failing, sh("echo", stdout=later))))
    log = tmp_path / "logs" / "make.log"
    for part in ("make", "status 3", "reason", str(log)):
        assert part in str(failure.value)
    assert "reason" in log.read_text()
    assert not partial.exists() and not later.exists() and not [*tmp_path.glob("*.partial")]


def test_errors_that_go_into_the_output_are_kept_in_the_log(tmp_path):
    failing = sh("echo reason >&2; kill -9 $$", stdout=tmp_path / "out", with_errors=True)
    with pytest.raises(RecipeError, match="(?s)signal 9.*reason"):
        engine.run(plan(stage(tmp_path, failing)))
    assert not (tmp_path / "out").exists()


def test_the_next_start_resumes_behind_the_commands_that_are_done(tmp_path):
    runs, works = tmp_path / "runs", tmp_path / "works"
    commands = [
        sh('echo 1 >> "$1"', runs, stdout=tmp_path / "one"),
        sh('echo 2 >> "$1"; mkdir "$2"; test -e "$3" && touch "$2/file"', runs, tmp_path / "two",
           works, outputs=(tmp_path / "two",)),
        sh('echo 3 >> "$1"', runs),
    ]  # fmt: skip
    made = plan(stage(tmp_path, *commands))
    with pytest.raises(RecipeError):
        engine.run(made)
    works.touch()
    engine.run(made)  # a folder that is half done is begun anew
    assert lines(runs) == ["1", "2", "2", "3"]
    (tmp_path / "two" / "file").unlink()
    (tmp_path / "two").rmdir()
    engine.run(made)  # a command without outputs resumes by itself, as fairseq-train does
    assert lines(runs) == ["1", "2", "2", "3", "2", "3"]


def test_an_output_that_was_not_made_is_a_failure(tmp_path):
    with pytest.raises(RecipeError, match="out"):
        engine.run(plan(stage(tmp_path, sh("true"), outputs=(tmp_path / "out",))))


def test_streams_arguments_and_python_programs(tmp_path):
    (tmp_path / "a").write_text("a\n")
    (tmp_path / "b").write_text("b\n")
    program = tmp_path / "program.py"
    program.write_text(
        "import sys, beside\nprint('error', file=sys.stderr)\n"
        "print(*sys.argv[1:], __name__, sys.stdin.read(), end='')\nsys.exit(beside.STATUS)"
    )
    (tmp_path / "beside.py").write_text("STATUS = 0")
    argv = ("python", program, "two words", "$x", CORES)
    inputs = (tmp_path / "a", tmp_path / "b")
    out = [tmp_path / "sub" / str(number) for number in range(3)]
    commands = [
        Command(argv, inputs, out[0], with_errors=True),
        Command(("subword-nmt", "get-vocab"), inputs[:1], out[1]),
        Command(("python", "-m", "json.tool", tmp_path / "json"), (), out[2]),
    ]
    (tmp_path / "json").write_text("{}")
    engine.run(plan(stage(tmp_path, *commands)))
    assert sorted(out[0].read_text().splitlines()) == [
        "b",
        "error",
        f"two words $x {os.cpu_count()} __main__ a",
    ]
    assert out[1].read_text() == "a 1\n" and out[2].read_text() == "{}\n"
    assert "'two words' '$x'" in (tmp_path / "logs" / "make.log").read_text()


@pytest.mark.parametrize("text", ["raise SystemExit(5)", "raise ValueError('reason')", "1 +"])
def test_a_python_program_fails_as_in_a_process_of_its_own(tmp_path, text):
    (tmp_path / "program.py").write_text(text)
    with pytest.raises(RecipeError, match=f"status {5 if '5' in text else 1}"):
        engine.run(plan(stage(tmp_path, Command(("python", tmp_path / "program.py")))))


def test_variables_and_bookkeeping(tmp_path):
    made = stage(
        tmp_path,
        sh('echo "$TOY"', stdout=tmp_path / "out"),
        before=lambda: (tmp_path / "order").write_text(str((tmp_path / "out").exists())),
        after=lambda: (tmp_path / "after").write_text((tmp_path / "out").read_text()),
    )
    engine.run(replace(plan(made), environment={"TOY": "value", "PYTHONUNBUFFERED": "1"}))
    assert (tmp_path / "order").read_text() == "False"
    assert (tmp_path / "after").read_text() == "value\n" and "TOY" not in os.environ


def test_bookkeeping_that_fails_is_a_failure(tmp_path):
    def fail():
        raise RecipeError("too few epochs")

    with pytest.raises(RecipeError, match="too few epochs"):
        engine.run(plan(stage(tmp_path, sh("true"), after=fail)))


@pytest.mark.parametrize("checkpoint", [None, "checkpoint"])
def test_a_log_begins_anew_unless_its_stage_resumes(tmp_path, checkpoint):
    save, log = tmp_path / "checkpoint", tmp_path / "logs" / "make.log"
    script = 'echo begun; test -e "$1" || { touch "$1"; exit 1; }; touch "$2"'
    train = sh(script, tmp_path / "second", tmp_path / "out")
    made = stage(
        tmp_path, train, outputs=(tmp_path / "out",),
        resumes_from=save if checkpoint else None,
    )  # fmt: skip
    with pytest.raises(RecipeError):
        engine.run(plan(made))
    engine.run(plan(made))
    assert lines(log).count("begun") == (1 if checkpoint else 2)
    (tmp_path / "out").unlink()
    save.touch()
    engine.run(plan(made))
    assert lines(log).count("begun") == (2 if checkpoint else 3)
    engine.run(plan(replace(made, settings={"lr": 1})))
    assert lines(log).count("begun") == 1


def test_processes_that_a_command_leaves_are_ended(tmp_path):
    made = plan(stage(tmp_path, sh("sleep 100 & echo $!", stdout=tmp_path / "process")))
    engine.run(made)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "process").read_text()), 0)


def test_a_finished_plan_loads_nothing_large(tmp_path, toy):
    """In a process of its own: this one has loaded torch."""
    program = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from engines import plan, sh, stage
from fairseq_sparse.recipes import engine
folder = Path(sys.argv[2])
for _ in range(2):
    engine.run(plan(stage(folder, sh("echo x >> $1", folder / "runs", stdout=folder / "out"))))
assert not {"torch", "fairseq", "numpy"} & set(sys.modules)
"""
    helpers = Path(engines.__file__).parent
    subprocess.run([sys.executable, "-c", program, helpers, tmp_path], check=True)
    assert lines(tmp_path / "runs") == ["x"]


@pytest.mark.slow  # tests of the command run show it, too
def test_programs_of_fairseq_find_it_loaded(tmp_path):
    """What fairseq's loading says is in no log."""
    command = Command(("fairseq-sparse", "--version"), stdout=tmp_path / "version")
    folder = Command(("python", "-m", "fairseq_sparse"), stdout=tmp_path / "folder")
    environment = {"PYTHONUNBUFFERED": "1", "MALLOC_MMAP_MAX_": "0"}
    engine.run(replace(plan(stage(tmp_path, command, folder)), environment=environment))
    assert fairseq_sparse.__version__ in (tmp_path / "version").read_text()
    assert Path((tmp_path / "folder").read_text().strip()) == Path(fairseq_sparse.__file__).parent
    log = [line for line in lines(tmp_path / "logs" / "make.log") if not line.startswith("$ ")]
    assert log == []

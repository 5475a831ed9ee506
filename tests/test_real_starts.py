"""Each command once in a new process; the other tests fork a running one."""

import os
import subprocess
import sys

import pytest

import commands
import toy

# Folders whose modules registration loads, or that need such modules.
FOLDERS = ("checkpoints", "criterions", "generation", "models", "modules", "optim", "tasks")
PLACE = ("--source-lang", "de", "--target-lang", "en", "--task", "translation_sparse")


def start(module, *arguments):
    return toy.run(module, *arguments, python=sys.executable).stdout


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return toy.binarised_text(tmp_path_factory.mktemp("text"), python=sys.executable)


@pytest.fixture(scope="module")
def checkpoint(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    flags = (*commands.output_flags("alpha_relu"), "--max-update", 2, "--num-workers", 1)
    commands.train(data, folder, *flags, python=sys.executable)
    return folder / "checkpoint_last.pt"


@pytest.mark.slow_except("generate")
@pytest.mark.parametrize("command", ["generate", "validate"])
def test_a_trained_model_is_used(command, data, checkpoint):
    flags = ("--user-dir", toy.USER_DIR, "--path", checkpoint, "--cpu", *PLACE)
    flags += ("--valid-subset", "test", "--max-tokens", 400) if command == "validate" else ()
    output = start(f"fairseq_cli.{command}", data, *flags, "--log-format", "json")
    if command == "generate":
        assert len(commands.hypotheses(output)) == 30
    else:
        assert "test_tau" in commands.logged(output, "test")[0]


def import_each_first(names):
    code = """
import os, sys, torch
for name in sys.argv[1:]:
    child = os.fork()
    if child == 0:
        __import__(name)
        os._exit(0)
    if os.waitpid(child, 0)[1] != 0:
        sys.exit(f"{name} cannot be imported first")
"""
    environment = {**os.environ, "PYTHONPATH": str(toy.ROOT)}
    subprocess.run([sys.executable, "-c", code, *names], env=environment, check=True)


def test_modules_that_need_those_of_registration_may_be_imported_first():
    names = ("averaging", "compatibility")
    import_each_first(f"fairseq_sparse.checkpoints.{name}" for name in names)


@pytest.mark.slow
@pytest.mark.parametrize("folder", FOLDERS)
def test_any_module_may_be_imported_first(folder):
    names = (path.stem for path in sorted((toy.ROOT / "fairseq_sparse" / folder).glob("[a-z]*.py")))
    import_each_first(f"fairseq_sparse.{folder}.{name}" for name in names)


@pytest.mark.slow
def test_sentences_are_translated_as_they_come(data, checkpoint):
    command = [sys.executable, "-m", "fairseq_cli.interactive", data, "--user-dir", toy.USER_DIR]
    command += ["--path", checkpoint, "--cpu", *PLACE]
    environment = {**os.environ, "PYTHONPATH": str(toy.ROOT)}
    pipes = {"input": "w1 w2\nw3\n", "capture_output": True, "text": True, "check": True}
    result = subprocess.run(list(map(str, command)), env=environment, **pipes)
    assert sorted(commands.hypotheses(result.stdout)) == [0, 1]


def test_a_model_is_analysed(data, checkpoint):
    output = start("fairseq_sparse", "analyze", "attention", data, "--path", checkpoint, "--cpu")
    assert "encoder" in output

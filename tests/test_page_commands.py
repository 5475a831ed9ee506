"""The commands and programs that the pages show: their flags exist, and they run."""

import importlib
import os
import shlex
import shutil
import subprocess

import pytest
from fairseq import options

import page_blocks
import toy
from fairseq_sparse.commands.cli import COMMANDS, module_name
from fork_python import PYTHON

PARSERS = {
    "train": options.get_training_parser,
    "generate": options.get_generation_parser,
    "interactive": lambda: options.get_generation_parser(interactive=True),
    "validate": options.get_validation_parser,
    "eval-lm": options.get_eval_lm_parser,
    "preprocess": options.get_preprocessing_parser,
}


def with_blocks(language):
    return [page for page in page_blocks.PAGES if page_blocks.blocks(page, language)]


def parse_fairseq(name, arguments):
    parser = PARSERS[name]()
    if "--user-dir" in arguments:
        assert arguments[arguments.index("--user-dir") + 1] == toy.USER_DIR
    if name == "preprocess":
        parser.parse_args(arguments)
    else:
        options.parse_args_and_arch(parser, arguments, parse_known=False)


def parse_sparse(words):
    name = next(" ".join(words[:n]) for n in (1, 2) if " ".join(words[:n]) in COMMANDS)
    module = importlib.import_module(f"fairseq_sparse.commands.{module_name(name)}")
    module.parse_arguments(words[len(name.split()) :])


def check(words):
    """Check a recorded command: its parser takes the arguments, or its file exists."""
    name, *arguments = words
    if name == "fairseq-sparse":
        parse_sparse(arguments)
    elif name.removeprefix("fairseq-") in PARSERS:
        parse_fairseq(name.removeprefix("fairseq-"), arguments)
    elif name != "cd":
        known = [key for key in page_blocks.NOT_RUN if key.split() == words[: len(key.split())]]
        files = [word for word in words if word.startswith(("scripts/", "examples/"))]
        assert known or name == "python"
        assert all((toy.ROOT / file).exists() for file in files)


@pytest.fixture(scope="module")
def files(data, tmp_path_factory):
    """Return a folder with the texts that the pages begin with."""
    folder = tmp_path_factory.mktemp("pages")
    page_blocks.write_texts(folder, data)
    return folder


@pytest.mark.parametrize("page", with_blocks("bash"))
def test_commands_have_arguments_that_exist(page, files, tmp_path, monkeypatch):
    folder = shutil.copytree(files, tmp_path / "page")
    page_blocks.write_commands(folder, real=False)
    commands = page_blocks.run(page, folder)
    monkeypatch.chdir(folder)
    for words in commands:
        try:
            check(words)
        except (Exception, SystemExit) as error:
            raise AssertionError(shlex.join(words)) from error


@pytest.fixture(scope="module")
def models(files, data, tmp_path_factory):
    """Return a folder with the texts, binarised data, trained models and their runs."""
    folder = shutil.copytree(files, tmp_path_factory.mktemp("real") / "files")
    page_blocks.write_runs(folder, data)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("page", with_blocks("bash"))
def test_commands_run(page, models, tmp_path):
    folder = shutil.copytree(models, tmp_path / "page")
    page_blocks.write_commands(folder, real=True)
    page_blocks.run(page, folder)


@pytest.mark.parametrize("page", with_blocks("python"))
def test_programs_run(page, tmp_path):
    program = "\n".join([page_blocks.NAMES.get(page, ""), *page_blocks.blocks(page, "python")])
    command = [PYTHON, "-c", program]
    environment = {**os.environ, "PYTHONPATH": str(toy.ROOT)}
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr

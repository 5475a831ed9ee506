"""Calls that the project never makes, because data or a checkpoint could then run code."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("fairseq_sparse", "scripts", "examples")
PYTHON = sorted(path for folder in FOLDERS for path in ROOT.glob(f"{folder}/**/*.py"))
SHELL = sorted(path for folder in FOLDERS for path in ROOT.glob(f"{folder}/**/*.sh"))

CALLS = re.compile(
    r"(builtins\.)?(eval|exec|compile)|os\.(system|popen)|subprocess\.get(status)?output"
    r"|(pickle|dill|marshal|shelve)\.\w*(load|open)\w*|yaml\.(unsafe_|full_)?load(_all)?"
    r"|joblib\.load|tempfile\.mktemp|.*\.extractall|xml\..*|ElementTree\..*|.*allow_pickle"
)
# The only place that reads checkpoints.
LOADS = {"fairseq_sparse/checkpoints/loading.py": {"torch.load"}}


def calls(path):
    """Yield the name and the keyword arguments of each call in a file."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), {word.arg: word.value for word in node.keywords}


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_code_evaluates_data(folder):
    found = []
    for path in PYTHON:
        name = path.relative_to(ROOT).as_posix()
        if not name.startswith(f"{folder}/"):
            continue
        for function, keywords in calls(path):
            if CALLS.fullmatch(function) or "shell" in keywords:
                found.append(f"{name}: {function}")
            if function == "torch.load" and function not in LOADS.get(name, ()):
                found.append(f"{name}: {function}")
            if ast.unparse(keywords.get("allow_pickle", ast.Constant(False))) != "False":
                found.append(f"{name}: allow_pickle in {function}")
    assert not found and PYTHON


def test_no_recipe_evaluates_data():
    """No recipe calls eval, pipes a download to a shell, or uses files that others can write."""
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in SHELL
        for line in path.read_text("utf-8").splitlines()
        if re.search(r"(^|[;&|({\s])eval\s|/tmp\b|mktemp -u|curl [^|]*\|\s*(ba)?sh", line)
    ]
    assert not found and SHELL

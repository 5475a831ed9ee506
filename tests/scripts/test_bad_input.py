"""Every script refuses every kind of bad input in one line that names the file; no data is lost."""

from __future__ import annotations

import fnmatch
import logging
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import pytest

import toy
from bad_input import COUNTED, FATAL, HARMLESS, JSON, OUTPUT, TEXT, permissions_hold, snapshot
from script_cases import SCRIPTS, Script

BEFORE = b"what was there before\n"
# Scripts that need a trained model or its data.
LONG = {name for name, case in SCRIPTS.items() if "model.pt" in case.arguments}
LONG |= {"report"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make binarised text, and train a small model with null attention on it."""
    folder = tmp_path_factory.mktemp("trained")
    toy.binarised_text(folder)
    flags = ["--arch", "transformer_sparse_tiny", "--task", "translation_sparse"]
    flags += ["--output-transform", "entmax15", "--criterion", "entmax_loss"]
    flags += ["--attention", "rela_g", "--log-format", "json", "--log-interval", 1]
    model, log = toy.train(folder / "run", folder / "bin", *flags)
    model.rename(folder / "model.pt")
    (folder / "log").write_text(log)
    return folder


@pytest.fixture
def common(request: pytest.FixtureRequest, name: str) -> Path | None:
    """Return the folder of model and data if the script needs it."""
    return request.getfixturevalue("trained") if name in LONG else None


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Raise the root logger's level, which fairseq lowers."""
    logger = logging.getLogger()
    before = logger.level
    logger.setLevel(logging.ERROR)
    yield
    logger.setLevel(before)


@contextmanager
def made(case: Script, common: Path, tmp_path: Path) -> Iterator[Path]:
    """Make a folder with good input, and delete it afterwards."""
    folder = tmp_path / "dør it's"
    folder.mkdir()
    try:
        case.make(folder, common)
        for path in case.written:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
        for path in case.chosen:
            (folder / path).write_bytes(BEFORE)
        yield folder
    finally:
        shutil.rmtree(folder)


def status_of(case: Script, folder: Path) -> object:
    """Run a script; return its exit status."""
    with permissions_hold(), mock.patch.object(sys, "argv", [f"{case.called}.py"]):
        try:
            return case.run(folder)
        except SystemExit as end:
            return end.code


def complaint(
    case: Script,
    folder: Path,
    capsys,
    names: list[str],
    harmless: bool = False,
    at: str = "",
) -> str:
    """Return what is wrong with a script's reaction to bad input; empty if nothing is.

    Args:
        names: names of the faulty file, one of which the message must have.
        harmless: whether the script may also succeed.
        at: the only file that must be unchanged; others may have been written completely.
    """
    before = snapshot(folder)
    try:
        status = status_of(case, folder)
    except BaseException as error:
        return f"traceback, {type(error).__name__}: {str(error)[:150]}"
    printed = capsys.readouterr().err
    last = printed.replace("\r", "\n").strip().split("\n")[-1]
    if status == 0:
        return "" if harmless else "is taken as if it were good"
    if not last.startswith(case.called):
        return f"no message: {printed!r}"
    if not any(name in printed for name in names):
        return f"the message does not name it: {last}"
    after = snapshot(folder)
    changed = {name for name in {**before, **after} if before.get(name) != after.get(name)}
    if at:
        changed = {name for name in changed if name == at or name.endswith(".partial")}
    kept = {name for name in changed for glob in case.keeps if fnmatch.fnmatch(name, glob)}
    return f"{sorted(changed - kept)} changed: {last}" if changed - kept else ""


def named(path: str) -> list[str]:
    """Return what a message may call a file: its name, the name without suffix, or ``bin``."""
    parts = path.split("/")
    return [parts[-1], parts[-1].split(".")[0], *(part for part in parts if part == "bin")]


def scripts(faults: str) -> list:
    marks = {name: [pytest.mark.slow] if name in LONG else [] for name in SCRIPTS}
    chosen = [name for name, case in SCRIPTS.items() if getattr(case, faults, True)]
    return [pytest.param(name, marks=marks[name], id=name.replace(" ", "-")) for name in chosen]


def input_faults(case: Script) -> Iterator[tuple[str, str, Callable[[Path], None], bool]]:
    """Yield each file, fault, the function that causes it, and whether it may be harmless."""
    for more, paths in ((TEXT, case.texts), (JSON, case.json), ({}, case.binary)):
        for path in paths:
            for fault, make in {**FATAL, **more}.items():
                yield path, fault, make, fault in HARMLESS or path in case.optional
    for path in case.counted:
        for fault, make in COUNTED.items():
            yield path, fault, make, False


@pytest.mark.parametrize("name", scripts("main"))
def test_good_input_is_taken(name: str, common: Path, tmp_path: Path) -> None:
    case = SCRIPTS[name]
    with made(case, common, tmp_path) as folder:
        assert status_of(case, folder) == 0
        for path in case.written:
            assert (folder / path).read_bytes() != BEFORE


@pytest.mark.parametrize("name", scripts("main"))
def test_bad_input_is_refused(name: str, common: Path, tmp_path: Path, capsys) -> None:
    case, found = SCRIPTS[name], []
    for path, fault, make, harmless in input_faults(case):
        with made(case, common, tmp_path) as folder:
            make(folder / path)
            problem = complaint(case, folder, capsys, [*named(path), *case.says], harmless)
            if problem:
                found.append(f"{path}, {fault}: {problem}")
    assert not found, "\n".join(found)


@pytest.mark.parametrize("name", scripts("written"))
def test_nothing_is_lost_where_it_cannot_be_written(
    name: str, common: Path, tmp_path: Path, capsys
) -> None:
    case, found = SCRIPTS[name], []
    for path in case.written:
        for fault, (make, context) in OUTPUT.items():
            if fault in ("no folder", "device") and path not in case.chosen:
                continue  # the script makes the folder, and replaces the device
            if fault == "file for folder" and "/" not in path:
                continue  # the fault would remove the input
            with made(case, common, tmp_path) as folder:
                make(folder / path)
                with context():
                    problem = complaint(case, folder, capsys, [""], at=path)
                (folder / path).parent.is_dir() and (folder / path).parent.chmod(0o755)
                if problem:
                    found.append(f"{path}, {fault}: {problem}")
    assert not found, "\n".join(found)


@pytest.mark.parametrize("name", scripts("chosen"))
def test_no_input_and_no_other_output_is_written_over(
    name: str, common: Path, tmp_path: Path, capsys
) -> None:
    case, found = SCRIPTS[name], []
    for path in case.chosen:
        inputs = [*case.texts, *case.json, *case.binary, *case.chosen]
        for other in (other for other in inputs if f"{{}}/{other}" in case.arguments):
            if other == path:
                continue
            with made(case, common, tmp_path) as folder:
                (folder / path).unlink()
                (folder / path).symlink_to(folder / other)
                problem = complaint(case, folder, capsys, named(path))
                if problem:
                    found.append(f"{path} is {other}: {problem}")
    assert not found, "\n".join(found)

"""The wheel and the source distribution, built and used as by someone who installs them."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_string
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# Files that tools leave in a checkout, and folders that the recipes leave at its top.
CACHES = shutil.ignore_patterns(
    *(".git", ".venv", "__pycache__", "*.pyc", "*.egg-info", "build", "dist"),
    *(".pytest_cache", ".ruff_cache", ".hypothesis"),
)
WRITTEN = {"runs", "outputs", "checkpoints", "multirun", "data", "data-bin"}
pytestmark = pytest.mark.slow


def run(*command, cwd, **environment):
    result = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=cwd,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
    )
    assert result.returncode == 0, result.stdout[-3000:]
    return result.stdout


def not_source(folder: str, names: list[str]) -> set[str]:
    return CACHES(folder, names) | (WRITTEN.intersection(names) if Path(folder) == ROOT else set())


def sources(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("checkout") / "project"
    shutil.copytree(ROOT, folder, ignore=not_source)
    return folder


@pytest.fixture(scope="module")
def unpacked(checkout, tmp_path_factory) -> Path:
    """Build and unpack the source distribution."""
    folder = tmp_path_factory.mktemp("sdist")
    shutil.copytree(checkout, folder / "project")
    run("setup.py", "-q", "sdist", "--dist-dir", folder, cwd=folder / "project")
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(folder / "unpacked")
    (place,) = (folder / "unpacked").iterdir()
    return place


@pytest.fixture(scope="module")
def wheel(unpacked, tmp_path_factory) -> Path:
    """Build the wheel from the source distribution."""
    folder = tmp_path_factory.mktemp("wheel")
    flags = ("--no-deps", "--no-build-isolation", "--no-index", "-q")
    run("-m", "pip", "wheel", *flags, "--wheel-dir", folder, ".", cwd=unpacked)
    (path,) = folder.glob("*.whl")
    return path


def test_the_source_distribution_is_whole(checkout, unpacked):
    folders = ("docs/", "examples/", "fairseq_sparse/", "requirements/", "scripts/", "tests/")
    expected = {name for name in sources(checkout) if name.startswith(folders) or "/" not in name}
    assert not expected - sources(unpacked)


def test_tests_run_from_the_source_distribution(unpacked):
    tests = ("tests/test_installation.py", "tests/test_frozen_checkpoints.py", "tests/examples")
    printed = run(
        *("-m", "pytest", "-q", "-p", "no:cacheprovider", *tests),
        *("-k", "installation or frozen or template"),
        cwd=unpacked,
        PYTHONPATH=str(unpacked),
    )
    assert " passed" in printed and "failed" not in printed


@pytest.fixture(scope="module")
def site(wheel, tmp_path_factory) -> Path:
    """Install only the wheel into a folder of packages."""
    folder = tmp_path_factory.mktemp("installed") / "site"
    flags = ("--no-deps", "--no-index", "-q", "--target", folder)
    run("-m", "pip", "install", *flags, wheel, cwd=folder.parent)
    return folder


def test_the_wheel_describes_itself_and_works(wheel, site, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = message_from_string(archive.read(name).decode("utf-8"))
    assert metadata.get_payload().strip() == (ROOT / "README.md").read_text("utf-8").strip()
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert all(", https://doi.org/" in url for url in metadata.get_all("Project-URL"))
    environment = {"PYTHONPATH": str(site)}
    assert run("-m", "fairseq_sparse", cwd=tmp_path, **environment).strip() == str(
        site / "fairseq_sparse"
    )
    assert "--output-transform" in run("-m", "fairseq_sparse", "flags", cwd=tmp_path, **environment)
    package = ROOT / "fairseq_sparse"
    files = {path for kind in ("*.[ch]", "*.yaml") for path in package.rglob(kind)}
    assert files and all((site / path.relative_to(ROOT)).is_file() for path in files)


def test_a_command_of_the_wheel_reads_text(site, tmp_path):
    (tmp_path / "gold.talp").write_text("1-1 2p2\n\n3-1\n")
    (tmp_path / "links").write_text("0-0 1-1\n0-3\n2-0\n")
    arguments = ("analyze", "alignment", "gold.talp", "links", "--json", "out.json")
    command = site / "bin" / "fairseq-sparse"
    printed = run(command, *arguments, cwd=tmp_path, PYTHONPATH=str(site))
    assert "16.7" in printed
    (found,) = json.loads((tmp_path / "out.json").read_text("utf-8"))["files"]
    assert found["aer"] == pytest.approx(1 / 6)  # 1 - (2 + 3) / (2 + 4)

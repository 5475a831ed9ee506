"""Installation: metadata, `python -m fairseq_sparse`, and a checkout that is not installed."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from packaging.markers import Marker
from packaging.requirements import Requirement

import fairseq_sparse

ROOT = Path(__file__).resolve().parents[1]


def run(*command, cwd=ROOT, **environment):
    result = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        encoding="utf-8",
    )
    assert result.returncode == 0, result.stderr
    return result


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """Copy only the package, into a folder whose name needs quoting."""
    folder = tmp_path_factory.mktemp("not installé") / "a checkout"
    shutil.copytree(
        ROOT / "fairseq_sparse",
        folder / "fairseq_sparse",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    return folder


def test_main_prints_the_user_dir_alone():
    lines = run("-m", "fairseq_sparse").stdout.splitlines()
    assert len(lines) == 1
    assert Path(lines[0]) == ROOT / "fairseq_sparse"
    assert (Path(lines[0]) / "__init__.py").is_file()


def test_import_is_silent_and_leaves_cuda_alone():
    result = run(
        "-c",
        "import fairseq, torch, sys, io, contextlib\n"  # fairseq itself prints to stderr
        "streams = io.StringIO()\n"
        "with contextlib.redirect_stdout(streams), contextlib.redirect_stderr(streams):\n"
        "    import fairseq_sparse\n"
        "print(repr((streams.getvalue(), torch.cuda.is_initialized())))\n",
    )
    assert result.stdout == "('', False)\n"


def test_user_dir_of_a_checkout_registers_the_plugin(checkout, tmp_path):
    result = run(
        "-c",
        "import sys\n"
        "from fairseq import options\n"
        "arguments = options.parse_args_and_arch(options.get_training_parser(), sys.argv[1:])\n"
        "import fairseq_sparse\n"
        "print(arguments.output_transform, arguments.criterion, fairseq_sparse.__file__)\n",
        "data",
        *("--user-dir", checkout / "fairseq_sparse", "--task", "translation_sparse"),
        *("--arch", "transformer_sparse", "--output-transform", "entmax15"),
        *("--criterion", "entmax_loss"),
        cwd=tmp_path,
    )
    expected = f"entmax15 entmax_loss {checkout / 'fairseq_sparse' / '__init__.py'}"
    assert result.stdout.splitlines()[-1] == expected


class Metadata:
    """The metadata that setup.py declares, read from an egg-info folder that it writes."""

    def __init__(self, folder, without_fairseq=""):
        run(
            *("setup.py", "-q", "egg_info", "--egg-base", folder),
            FAIRSEQ_SPARSE_WITHOUT_FAIRSEQ=without_fairseq,
        )
        (egg_info,) = folder.glob("*.egg-info")
        info = (egg_info / "PKG-INFO").read_text("utf-8").splitlines()
        self.fields = dict(line.split(": ", maxsplit=1) for line in info if ": " in line)
        self.files = set((egg_info / "SOURCES.txt").read_text("utf-8").splitlines())
        self.requirements = []  # (extra, marker, requirement)
        extra = marker = ""
        for line in (egg_info / "requires.txt").read_text("utf-8").splitlines():
            if line.startswith("["):
                extra, _, marker = line.strip("[]").partition(":")
            elif line:
                self.requirements.append((extra, marker, Requirement(line)))

    def required(self, python_version, extras=("",)):
        """Return the requirements for one version of Python, by default without extras."""
        environment = {"python_version": python_version}
        return [
            requirement
            for extra, marker, requirement in self.requirements
            if extra in extras and (not marker or Marker(marker).evaluate(environment))
        ]


@pytest.mark.parametrize(
    ("python_version", "fairseq"),
    [("3.10", "fairseq==0.12.2"), ("3.11", "fairseq-fixed==0.12.3.1")],
)
def test_every_python_gets_the_fairseq_that_imports_there(tmp_path, python_version, fairseq):
    metadata = Metadata(tmp_path)
    names = {str(requirement) for requirement in metadata.required(python_version)}
    assert {name for name in names if name.startswith("fairseq")} == {fairseq}
    assert {"numpy", "sacremoses", "subword-nmt", "sacrebleu"} <= names
    assert metadata.fields["Requires-Python"] == ">=3.10"


def test_fairseq_from_source_can_be_left_alone(tmp_path):
    metadata = Metadata(tmp_path, without_fairseq="1")
    names = {requirement.name for _, _, requirement in metadata.requirements}
    assert "torch" in names
    assert not {name for name in names if name.startswith("fairseq")}


def test_the_distribution_has_every_file_of_the_package(tmp_path):
    files = {
        path.relative_to(ROOT).as_posix()
        for path in ROOT.glob("fairseq_sparse/**/*.*")
        if path.suffix in (".py", ".c", ".h", ".html", ".css", ".js", ".json", ".yaml")
    }
    assert "fairseq_sparse/report/page.js" in files
    assert files <= Metadata(tmp_path).files


@pytest.mark.parametrize(("pins", "python_version"), [("py310", "3.10"), ("py311", "3.11")])
def test_pinned_versions_satisfy_setup_py(tmp_path, pins, python_version):
    pinned = {}
    for name in (f"{pins}-build.txt", f"{pins}.txt"):
        lines = (ROOT / "requirements" / name).read_text("utf-8")
        pinned.update(re.findall(r"^([\w-]+)==(\S+)$", lines, re.MULTILINE))
    required = list(Metadata(tmp_path).required(python_version, ("", "test", "plot", "dev")))
    assert required
    for requirement in required:
        assert requirement.name in pinned
        assert requirement.specifier.contains(pinned[requirement.name])


def test_version_is_one_everywhere(tmp_path):
    version = Metadata(tmp_path).fields["Version"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert str(citation["version"]) == version == fairseq_sparse.__version__
    assert f"## {version}" in (ROOT / "CHANGELOG.md").read_text("utf-8")

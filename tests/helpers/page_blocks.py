"""The fenced blocks of the pages, and bash scripts made of them whose commands are replaced."""

from __future__ import annotations

import gzip
import os
import re
import shutil
import subprocess
from pathlib import Path

import report_runs
import toy
from fork_python import PYTHON

PAGES = ["README.md", "CONTRIBUTING.md", "examples/README.md", "examples/quickstart/README.md"]
PAGES += ["examples/pretrained/README.md", "examples/inflection/README.md"]
PAGES += sorted(f"docs/{path.name}" for path in (toy.ROOT / "docs").glob("*.md"))
FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)

COMMANDS = {
    f"fairseq-{name}": f"fairseq_cli.{name.replace('-', '_')}"
    for name in ("preprocess", "train", "generate", "interactive", "validate", "eval-lm")
}
COMMANDS["fairseq-sparse"] = "fairseq_sparse"
# Commands that are not run as a page has them, and why. Their arguments are checked.
NOT_RUN = {
    "git clone": "the repository's address is the reader's",
    "bash scripts/setup_env.sh": "makes an environment; .ci/run does it",
    "bash scripts/test.sh": "runs these tests",
    "source .venv/bin/activate": "a test has its environment",
    "fairseq-sparse sheets score": "people complete the sheets; tests/commands/test_sheets.py",
    "python examples/quickstart/check_support.py": "needs four runs; tests/examples",
    "fairseq-sparse run": "takes hours and downloads; tests/commands/test_run.py",
    "fairseq-sparse reproduce": "as run; tests/recipes/test_reproduce.py",
    "fairseq-sparse sweep": "as run; tests/recipes/test_sweep.py",
    "fairseq-sparse ensemble": "needs finished runs; tests/recipes",
    "fairseq-sparse compare-mbr": "needs finished runs; tests/recipes",
    "sbatch": "needs Slurm",
    "examples/quickstart/run.sh": "takes minutes; tests/examples/test_quickstart.py",
}
SCRIPTS = [name for name in NOT_RUN if name.startswith("examples/")]
# Sizes that make a page's training quick.
TINY = {
    side: f"--{side}-layers 1 --{side}-embed-dim 16 --{side}-ffn-embed-dim 16 "
    f"--{side}-attention-heads 2"
    for side in ("encoder", "decoder")
}
TINY["lm"] = f"{TINY['decoder']} --decoder-input-dim 16 --decoder-output-dim 16"
SMALL = f"""case "$*" in
*transformer_lm*) set -- "$@" {TINY["lm"]} ;;
*) set -- "$@" {TINY["encoder"]} {TINY["decoder"]} ;;
esac
set -- "$@" --cpu --max-epoch 5 --num-workers 0"""
# Data, checkpoints and folders of runs that the pages take for given.
DATA = ["data-bin", "DATA", "data/multi30k_de_en/prepared/bin"]
CHECKPOINTS = [
    "average.pt",
    "A.pt",
    "B.pt",
    "A1.pt",
    "A2.pt",
    "A3.pt",
    "SAVE_DIR/checkpoint_last.pt",
]
RUNS = ["a", "b", "DATASET/A", "DATASET/B", "DATASET/A-cpu", "trial", "quickstart/entmax15"]
RUNS += ["multi30k_de_en/softmax-cpu", "multi30k_de_en/entmax15-cpu"]
RUNS += ["mine/softmax-cpu", "mine/entmax15-cpu"]
# Tensors that a page's programs take for given.
NAMES = {
    "README.md": """import torch
features, weight = torch.randn(6, 8), torch.randn(20, 8, requires_grad=True)
z, target = features @ weight.T, torch.randint(2, 20, (6,))""",
    "docs/attention.md": """import torch
queries, keys, values = torch.randn(3, 2, 4, 5, 8)""",
}
PRELUDE = """
set -eo pipefail
record() { printf '%s\\x1f' "$@" >>"$RECORD"; printf '\\n' >>"$RECORD"; }
export -f record
git() { record git "$@"; }
cd() { record cd "$@"; }
source() { record source "$@"; }
sbatch() { record sbatch "$@"; }
bash() { case "$1" in examples/*) "$@" ;; *) record bash "$@" ;; esac; }
"""


def blocks(page: str, language: str) -> list[str]:
    """Return the fenced blocks of a page in a language."""
    text = (toy.ROOT / page).read_text("utf-8")
    return [content for kind, content in FENCE.findall(text) if kind == language]


def write_commands(folder: Path, real: bool) -> None:
    """Write the commands of the pages into ``folder``: real ones, or such that only record.

    The scripts of ``examples/`` only record.
    """
    cpu = 'set -- "$@" --cpu'
    more = {"train": SMALL, "generate": cpu, "interactive": cpu, "validate": cpu, "eval-lm": cpu}
    for name, module in COMMANDS.items():
        first = more.get(name.removeprefix("fairseq-"), "")
        path = folder / ".bin" / name
        write_command(path, name, f'{first}\nexec {PYTHON} -m {module} "$@"', real)
    user_dir = f'[[ "$*" != "-m fairseq_sparse" ]] || exec echo "{toy.USER_DIR}"\n'
    write_command(folder / ".bin" / "python", "python", f'exec {PYTHON} "$@"', real, user_dir)
    for name in SCRIPTS:
        write_command(folder / name, name, "", real=False)
    for name in ("examples/pretrained", "examples/inflection", "scripts"):
        (folder / name).symlink_to(toy.ROOT / name)
    for module in (toy.ROOT / "examples/quickstart").glob("*.py"):
        shutil.copy(module, folder / "examples/quickstart")


def write_command(path: Path, name: str, command: str, real: bool, first: str = "") -> None:
    record = f'record {name} "$@"'
    others = [key for key in NOT_RUN if f"{key} ".startswith(f"{name} ")]
    cases = "".join(f'"{key} "*) {record}; exit ;;\n' for key in others)
    rest = f'case "{name} $* " in\n{cases}esac\n{command}' if real else record
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text(f"#!/bin/bash\n{first}{rest}\n")
    path.chmod(0o755)


def run(page: str, folder: Path) -> list[list[str]]:
    """Run the bash blocks of a page in order, in a folder; return the recorded commands."""
    record = folder / ".record"
    record.write_text("")
    environment = {**os.environ, "RECORD": str(record), "PYTHONPATH": str(toy.ROOT)}
    environment["PATH"] = f"{folder / '.bin'}:{os.environ['PATH']}"
    script = PRELUDE + "\n".join(blocks(page, "bash"))
    result = subprocess.run(
        ["bash", "-c", script], cwd=folder, env=environment, capture_output=True, encoding="utf-8"
    )
    assert result.returncode == 0, (result.stdout + result.stderr)[-4000:]
    return [line.split("\x1f")[:-1] for line in record.read_text("utf-8").splitlines()]


def write_texts(folder: Path, data: Path) -> None:
    """Write the texts that the pages begin with, from those of ``toy.binarised_text``."""
    texts = {path.name: path.read_text() for path in data.parent.glob("*.??")}
    names = {
        f"bpe/{split}.{new}": f"{split}.{old}"
        for split in ("train", "valid", "test")
        for new, old in (("ja", "de"), ("en", "en"))
    }
    names |= {name: name for name in ("test.de", "test.en", "train.en")} | {
        "raw/test.en": "test.en",
        "beam.txt": "test.en",
        "test.bpe.de": "test.de",
    }
    many = {f"data/multi30k_de_en/prepared/text/test.{side}": side for side in ("de", "en")}
    many |= {"alpha_relu.txt": "en", "test.tok.en": "en"}
    many |= {f"data/quickstart/prepared/test.{side}": side for side in ("de", "en")}
    many |= {f"data/quickstart/raw/test.tok.{side}": side for side in ("de", "en")}
    contents = {name: texts[old] for name, old in names.items()}
    contents |= {name: texts[f"test.{side}"] * 20 for name, side in many.items()}
    contents |= {name: texts["train.en"] * 20 for name in ("train", "valid", "test")}
    contents["data/quickstart/raw/test.talp"] = "1-1\n"
    candidates = enumerate(texts["test.en"].splitlines())
    contents["nbest.tsv"] = "".join(f"{number}\t{text}\n" for number, text in candidates)
    for name, content in contents.items():
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        (folder / name).write_text(content)
    (folder / "data/multi30k_de_en/raw").mkdir()
    valid = gzip.compress(texts["valid.en"].encode())
    (folder / "data/multi30k_de_en/raw/val.en.gz").write_bytes(valid)
    for name in ("stock", "entmax15", "runs/trial"):
        (folder / name).mkdir(parents=True)


def write_runs(folder: Path, data: Path) -> None:
    """Write the binarised data, checkpoints, runs and outputs that the pages begin with."""
    for name in DATA:
        shutil.copytree(data, folder / name)
    toy.binarise_test(folder / "data/quickstart/prepared", data / "dict.de.txt")
    first = report_runs.train_run(
        *(folder / "runs" / RUNS[0], folder / "DATA", "--arch", "transformer_sparse_tiny"),
        *("--task", "translation_sparse", "--output-transform", "entmax15"),
        *("--criterion", "entmax_loss", "--attention", "rela_g", "--max-epoch", 6),
    )
    flags = (folder / "DATA", "--user-dir", toy.USER_DIR, "--path", first / "average.pt")
    flags += ("--task", "translation_sparse")
    outputs = {
        first / "generate-test.txt": (),
        folder / "samples.txt": ("--sampling", "--beam", 2, "--nbest", 2),
    }
    for path, more in outputs.items():
        path.write_text(toy.run("fairseq_cli.generate", *flags, *more, together=True).stdout)
    toy.command(
        "score",
        *(first / "generate-test.txt", "--reference", folder / "test.en"),
        *("--output", first / "hyp.detok.txt", "--json", first / "bleu.json"),
    )
    for name in RUNS[1:]:
        shutil.copytree(first, folder / "runs" / name, dirs_exist_ok=True)
    translations = (first / "hyp.detok.txt").read_text()
    for name in ("softmax", "entmax15"):
        path = folder / f"runs/multi30k_de_en/{name}-cpu/hyp.detok.txt"
        path.write_text(translations * 20)
    for name in CHECKPOINTS:
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copy(first / "average.pt", folder / name)
    sentences = (folder / "test.de").read_text().splitlines()
    (folder / "gold.talp").write_text("1-1 2p2\n" * len(sentences))
    tags = [" ".join("N" for _ in sentence.split()) for sentence in sentences]
    (folder / "test.tags").write_text("\n".join(tags) + "\n")

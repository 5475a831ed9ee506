#!/usr/bin/env python3
"""Run the CPU kernels under AddressSanitizer and UndefinedBehaviorSanitizer.

The kernels are compiled with both, once for each set of vector instructions of this processor, and
get rows of every pattern of scripts/numerics and inputs of every awkward size, on one and on two
threads (kernel_inputs.py). Any access outside a tensor or outside a list in a kernel's own memory,
and any arithmetic that C leaves undefined, is a finding. Findings are printed, and the exit status
is then 1.

First, a copy of the kernels with known errors is run. If one of these is not found, so that a run
without findings would mean nothing, the exit status is 2. It is 2 as well without GCC, whose
sanitizers are used.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

# The imported modules are in scripts/.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from command_line import exit_status, positive, script_parser, seed

ROOT = Path(__file__).resolve().parents[2]
INPUTS = Path(__file__).with_name("kernel_inputs.py")
SANITIZERS = ("-fsanitize=address,undefined,float-cast-overflow", "-fsanitize-recover=address")
DEBUGGING = ("-fno-omit-frame-pointer", "-g")
TARGETS = {"native": (), "AVX2": ("-mno-avx512f",), "SSE2": ("-mno-avx",)}

# A source file, a text in it, and its faulty replacement, which must be found: overruns of a
# tensor, of a kernel's list and of attention's workspace, and an undefined shift.
ERRORS = (
    (
        "rows.c",
        "size; j++)\n                filled[j] = every",
        "size + 1; j++)\n                filled[j] = every",
    ),
    ("attention.c", "{&w->sums, w->queries * dim}", "{&w->sums, w->queries * dim - 1}"),
    ("dropout.c", "= share_of_32_bits(probability)", "= share_of_32_bits(0) << (size ? 32 : 0)"),
)
GROUPS_WITH_ERRORS = ("attentions", "dropouts", "sizes_of_rows")

_ADDRESS = re.compile(r"ERROR: AddressSanitizer: (\S+)")
_FRAME = re.compile(r"#\d+ \S+ in (\w+).* (\S+\.[ch]:\d+)")
_UNDEFINED = re.compile(r"(\S+\.[ch]:\d+):\d+: runtime error: (.*)")


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__)
    parser.add_argument(
        "--rows",
        type=positive,
        default=5000,
        help="rows of patterns for each of 5 alphas (default: 5000)",
    )
    parser.add_argument("--seed", type=seed, default=1, help="of the inputs (default: 1)")
    parser.add_argument(
        "--targets",
        nargs="+",
        choices=TARGETS,
        default=list(TARGETS),
        metavar="NAME",
        help=f"instructions to compile for (default: all of {', '.join(TARGETS)})",
    )
    parser.add_argument(
        "--groups", nargs="+", metavar="NAME", default=[], help="of inputs (default: all)"
    )
    return parser.parse_args(arguments)


def runtime_libraries() -> list[str]:
    """Return the sanitizers' libraries, which are loaded before Python to track its allocations."""
    found = []
    for name in ("libasan.so", "libubsan.so"):
        command = [*_compiler(), f"-print-file-name={name}"]
        answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
        if not Path(answer).is_file():
            raise OSError(f"{shlex.join(_compiler())} has no {name}: GCC is needed, named in CC")
        found.append(answer)
    return found


def _compiler() -> list[str]:
    return shlex.split(os.environ.get("CC", "").strip() or "cc")


def run_inputs(root: Path, folder: Path, target: str, *arguments: str) -> tuple[dict, list[str]]:
    """Send inputs through the kernels of the package in ``root``.

    Returns:
        The number of calls by group of inputs, and the findings.
    """
    libraries = runtime_libraries()
    folder.mkdir()
    compiler = folder / "compiler"
    flags = shlex.join([*SANITIZERS, *DEBUGGING, *TARGETS[target]])
    # Optimise less than the package does, so that compiling is faster.
    compiler.write_text(f'exec {shlex.join(_compiler())} {flags} "$@" -O1\n')
    environment = {
        **os.environ,
        "CC": f"sh {shlex.quote(str(compiler))}",
        "FAIRSEQ_SPARSE_CACHE": str(folder / "cache"),
        "FAIRSEQ_SPARSE_NATIVE": "1",
        "PYTHONPATH": str(root),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    compiling = "import importlib.util as u, sys; s = u.spec_from_file_location('b', sys.argv[1]); "
    compiling += (
        "m = u.module_from_spec(s); s.loader.exec_module(m); m._compiled(m._cache_folder())"
    )
    build = root / "fairseq_sparse" / "ops" / "cpu" / "build.py"
    # Compile without the sanitizers' libraries, which slow the compiler down.
    subprocess.run([sys.executable, "-c", compiling, str(build)], env=environment, check=True)
    environment |= {
        "LD_PRELOAD": " ".join(libraries),
        # Python does not free all memory when it ends.
        "ASAN_OPTIONS": "detect_leaks=0:halt_on_error=0",
        "PYTHONMALLOC": "malloc",
    }
    # fairseq takes seconds to import, and the ops do not need it.
    start = "import runpy, sys; sys.modules['fairseq'] = None; "
    start += f"runpy.run_path({str(INPUTS)!r}, run_name='__main__')"
    command = [sys.executable, "-c", start, *arguments]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
    findings = findings_in(done.stderr)
    calls = {}
    if done.returncode == 0:
        calls = json.loads(done.stdout.splitlines()[-1])
    elif not findings:
        raise RuntimeError(f"exit status {done.returncode}:\n{done.stderr}")
    else:
        findings.append(f"exit status {done.returncode}")
    return calls, findings


def findings_in(log: str) -> list[str]:
    """Return the sanitizers' reports with their places, each place once."""
    found = {}
    address = None
    for line in log.splitlines():
        if match := _UNDEFINED.search(line):
            found.setdefault(match[1], f"{match[1]}: {match[2]}")
        elif match := _ADDRESS.search(line):
            address = match[1]
        elif address and (match := _FRAME.search(line)):
            found.setdefault(match[2], f"{match[2]}, {match[1]}: {address}")
            address = None
    if address:
        found.setdefault(address, f"{address}, outside of the kernels")
    return list(found.values())


def copy_with_errors(folder: Path) -> Path:
    """Return a copy of the package whose kernels have errors."""
    shutil.copytree(ROOT / "fairseq_sparse", folder / "fairseq_sparse")
    for source, right, wrong in ERRORS:
        path = folder / "fairseq_sparse" / "ops" / "cpu" / source
        code = path.read_text()
        if right not in code:
            raise RuntimeError(f"{source} has changed: {right!r} is not in it")
        path.write_text(code.replace(right, wrong))
    return folder


def main(arguments: list[str] | None = None) -> int:
    args = parse_arguments(arguments)
    wanted = ["--rows", str(args.rows), "--seed", str(args.seed)]
    try:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            groups = ("--groups", *GROUPS_WITH_ERRORS)
            root = copy_with_errors(folder / "copy")
            _, findings = run_inputs(root, folder / "errors", "native", *groups)
            missed = [name for name, *_ in ERRORS if not any(name in found for found in findings)]
            if missed:
                raise RuntimeError(f"an error put into {' and '.join(missed)} was not found")
            print(f"{len(ERRORS)} errors put into a copy were found")
            if args.groups:
                wanted += ["--groups", *args.groups]
            failed = False
            for target in args.targets:
                calls, findings = run_inputs(ROOT, folder / target, target, *wanted)
                failed |= bool(findings)
                print(f"{target}: {sum(calls.values()):,} calls, {len(findings)} findings", calls)
                print("".join(f"  {finding}\n" for finding in findings), end="", flush=True)
    except (OSError, RuntimeError, subprocess.CalledProcessError) as error:
        print(f"sanitizers.py: error: {error}", file=sys.stderr)
        return 2
    return int(failed)


if __name__ == "__main__":
    sys.exit(exit_status(main))

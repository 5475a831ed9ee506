"""Compiling the kernels on the user's machine, and doing without them."""

import ctypes
import importlib.util
import logging
import os
import platform
import shutil
import subprocess
import textwrap
from pathlib import Path
from unittest import mock

import pytest
import torch
import torch.nn.functional as F

from fairseq_sparse.ops import (
    attend,
    backends,
    entmax,
    entmax15,
    linear_entmax_loss,
    sparsemax,
)
from fairseq_sparse.ops.cpu import boundary, build
from fork_python import PYTHON
from op_cases import LOSSES
from references import assert_as_accurate

ROOT = Path(__file__).resolve().parents[3]
SOURCES = Path(build.__file__).parent
INF, NAN = float("inf"), float("nan")
needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("FAIRSEQ_SPARSE_CACHE", str(folder))
    monkeypatch.delenv("FAIRSEQ_SPARSE_NATIVE", raising=False)
    monkeypatch.delenv("CC", raising=False)
    return folder


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    """Make CC a shell script of given commands, with the output file in ``$out``; log its calls."""
    calls = tmp_path / "calls"

    def use(*commands):
        script = tmp_path / "compiler with spaces"
        lines = ["#!/bin/sh", f"echo \"$@\" >> '{calls}'"]
        lines += ['for word in "$@"; do [ "$last" = -o ] && out=$word; last=$word; done']
        script.write_text("\n".join([*lines, *commands, ""]))
        script.chmod(0o755)
        monkeypatch.setenv("CC", f"'{script}' -DEXTRA")
        calls.write_text("")
        return lambda: calls.read_text().splitlines()

    return use


def compiled(module=build):
    """Return the library's file in the user's cache."""
    return module._compiled(module._cache_folder())


def forget_library():
    build.library.cache_clear()
    build._library.cache_clear()


def build_in(folder):
    """Return the module ``build`` of another folder, which uses the sources beside it."""
    spec = importlib.util.spec_from_file_location("build_of_a_test", folder / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(script, check=True, **environment):
    """Run a script in a process of its own, without fairseq, which is slow to import."""
    start = "import logging, sys\nlogging.basicConfig()\nsys.modules['fairseq'] = None\n"
    command = [PYTHON, "-c", start + textwrap.dedent(script)]
    folders = os.pathsep.join(map(str, (ROOT, ROOT / "tests", ROOT / "tests" / "helpers")))
    environment = {**os.environ, "PYTHONPATH": folders, **environment}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 or not check, done.stderr
    return done


# --- the library's file --------------------------------------------------------------------------


def test_compiled_once_and_used_by_the_next_process(compiler, cache):
    calls = compiler('echo compiled > "$out"')
    script = f"""
        import importlib.util
        spec = importlib.util.spec_from_file_location("build", {str(build.__file__)!r})
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        print(module._compiled(module._cache_folder()))
    """
    first, second = run(script).stdout, run(script).stdout
    assert first == second and Path(first.strip()).read_text() == "compiled\n"
    assert len(calls()) == 1 and "-DEXTRA -O3" in calls()[0]
    assert [path.name for path in cache.iterdir()] == [Path(first.strip()).name]


def test_another_source_compiler_option_or_processor_is_another_file(compiler, tmp_path):
    calls = compiler('echo compiled > "$out"')
    shutil.copytree(SOURCES, tmp_path / "cpu")
    copy = build_in(tmp_path / "cpu")
    assert compiled(copy) == compiled() and len(calls()) == 1
    names = {compiled(copy)}
    for path in sorted((tmp_path / "cpu").glob("*.[ch]")):
        path.write_text(path.read_text() + "\n")
        names.add(compiled(copy))
    with mock.patch.object(copy, "_ARGUMENTS", (*copy._ARGUMENTS, "-g")):
        names.add(compiled(copy))
    with mock.patch.object(copy, "_processor", return_value="another"):
        names.add(compiled(copy))
    with mock.patch.dict(os.environ, CC=os.environ["CC"] + " -DOTHER"):
        names.add(compiled(copy))
    with mock.patch.object(platform, "libc_ver", return_value=("glibc", "2.99")):
        names.add(compiled(copy))
    script = tmp_path / "compiler with spaces"  # another version of the compiler
    script.write_text(script.read_text() + "\n")
    names.add(compiled(copy))
    os.utime(script, (1, 1))
    names.add(compiled(copy))
    with mock.patch.dict(os.environ, CC="env NAME=value " + os.environ["CC"]):  # a launcher
        names.update([compiled(copy), compiled(copy)])
        os.utime(script, (2, 2))
        names.add(compiled(copy))
    files = len(list((tmp_path / "cpu").glob("*.[ch]")))
    assert files >= 5 and len(names) == len(calls()) == 1 + files + 8


def test_the_default_cache_is_that_of_the_user(compiler, tmp_path, monkeypatch):
    compiler('echo compiled > "$out"')
    monkeypatch.delenv("FAIRSEQ_SPARSE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "of user"))
    assert compiled().parent == tmp_path / "of user" / "fairseq_sparse"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert compiled().parent == tmp_path / "home" / ".cache" / "fairseq_sparse"


def test_a_user_without_a_home(compiler, tmp_path, monkeypatch):
    compiler('echo compiled > "$out"')
    monkeypatch.setattr(Path, "home", mock.Mock(side_effect=RuntimeError("no home")))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert compiled().parent == tmp_path / "cache"
    monkeypatch.delenv("FAIRSEQ_SPARSE_CACHE")
    with pytest.raises(RuntimeError):
        build._cache_folder()


# --- compilers -----------------------------------------------------------------------------------


def a_bit_of_everything(dtype=torch.float32):
    """Return values and gradients of some of everything that the kernels compute."""
    generator = torch.Generator().manual_seed(3)
    z = (3 * torch.randn(20, 600, generator=generator)).to(dtype)
    x, w = (torch.randn(rows, 24, generator=generator).to(dtype) / 2 for rows in (20, 600))
    target = torch.randint(600, (20,), generator=generator)
    target[4] = -100
    results = []

    def add(value, *inputs):
        weights = torch.linspace(-1, 1, value.numel(), dtype=dtype).view(value.shape)
        gradients = torch.autograd.grad((value * weights).sum(), inputs)
        results.extend([value.detach(), *gradients])

    for mapping in (sparsemax, entmax15, lambda z: entmax(z, 1.3)):
        logits = z.clone().requires_grad_()
        add(mapping(logits), logits)
    for kind in LOSSES:
        for alpha in (1.3, 1.5, 2.0):
            logits, features, weight = (t.clone().requires_grad_() for t in (z, x, w))
            options = {"label_smoothing": 0.1, "reduction": "none"}
            add(kind.loss(logits, target, alpha, **options), logits)
            logits = F.linear(features, weight)
            add(kind.loss(logits, target, alpha, **options), features, weight)
    features, weight = (t.clone().requires_grad_() for t in (x, w))
    add(linear_entmax_loss(features, weight, None, target, 1.3), features, weight)
    heads = [torch.randn(2, 3, 64, 16, generator=generator).to(dtype) for _ in range(3)]
    heads = [head.requires_grad_() for head in heads]
    masked = torch.arange(64) > torch.tensor([[63], [25]])
    for weights in ("relu", "entmax15"):
        add(attend(*heads, weights, masked=masked, causal=True)[0], *heads)
        with torch.no_grad():  # a step of generation
            results.append(attend(heads[0][:, :, :1], *heads[1:], weights, masked=masked)[0])
    return results


def assert_same_results(these):
    with mock.patch.object(build, "library", return_value=None):
        rough, exact = map(a_bit_of_everything, (torch.float32, torch.float64))
    for each in zip(these, rough, exact, strict=True):
        assert_as_accurate(*each)


@pytest.mark.skipif(build.library() is None, reason="needs a C compiler")
def test_numbers_are_converted_and_what_is_no_number_refused():
    x, out = torch.ones(16), torch.empty(16)
    boundary.call("dropout", 0, x, 16, 0, 7, out)  # the 0 is converted to a double
    assert torch.equal(out, x)
    for wrong in ((x, 16.0, 0.5, 7, out), (x, 16, "0.5", 7, out), (x, 16, 0.5, 7, 0.5), (x,)):
        with pytest.raises((ctypes.ArgumentError, TypeError, boundary.KernelArgumentError)):
            boundary.call("dropout", 0, *wrong)


@needs_compiler
@pytest.mark.slow_except("-fopenmp", "-fopenmp|-fopenmp-simd|-march=native")
@pytest.mark.parametrize(
    "refused",
    [
        *("", "-fopenmp", "-march=native", "-fopenmp|-march=native"),
        *("-fopenmp|-fopenmp-simd", "-fopenmp|-fopenmp-simd|-march=native"),
    ],
)
def test_a_compiler_that_knows_less(compiler, refused):
    calls = compiler(
        f'for word in "$@"; do case $word in {refused or "nothing"}) exit 1;; esac; done',
        'exec cc "$@" -O1',  # compiles sooner
    )
    kernels = ctypes.CDLL(str(compiled()))
    used, refused = set(calls()[-1].split()), set(refused.split("|"))
    assert ("-march=native" in used) == ("-march=native" not in refused)
    assert ("-fopenmp" in used) == ("-fopenmp" not in refused)
    # Without threads, sums are still vectorised.
    assert ("-fopenmp-simd" in used) == ("-fopenmp" in refused and "-fopenmp-simd" not in refused)
    with mock.patch.object(build, "library", return_value=kernels):
        these = a_bit_of_everything()
        assert backends.last_used()["entmax"] == "cpu"
        assert_same_results(these)


@needs_compiler
def test_a_compiler_whose_defaults_are_fast_mathematics_and_hidden_functions(compiler):
    compiler('exec cc -ffast-math -fvisibility=hidden "$@" -O1')
    kernels = ctypes.CDLL(str(compiled()))
    z = torch.tensor([[0.0, -INF, -1.0], [0.0, NAN, 1.0], [-INF] * 3, [INF, 0.0, 1.0]])
    with mock.patch.object(build, "library", return_value=kernels):
        assert_same_results(a_bit_of_everything())
        for mapping in (entmax15, sparsemax, lambda z: entmax(z, 1.3)):
            p = mapping(z)
            assert p[0, 0] > p[0, 2] >= p[0, 1] == 0 and (p[2] == 0).all()
            assert p[[1, 3]].isnan().all()


def test_a_compiler_that_fails(compiler, caplog):
    calls = compiler("echo 'no such\nheader' >&2; exit 1")
    forget_library()
    try:
        with caplog.at_level(logging.WARNING):
            assert build.library() is None and build.library() is None
    finally:
        forget_library()
    assert len(calls()) == 2 * len(build._OPTIONAL)  # in the cache and in the temporary folder
    (message,) = caplog.messages
    assert "could not be compiled" in message and "no such header" in message
    assert "install a C compiler" in message and "FAIRSEQ_SPARSE_NATIVE=0" in message


def test_a_cache_that_is_not_safe_and_a_compiler_that_fails(
    compiler, caplog, tmp_path, monkeypatch
):
    """Either could be mended, so both are told."""
    compiler("echo 'no such header' >&2; exit 1")
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    monkeypatch.setenv("FAIRSEQ_SPARSE_CACHE", str(tmp_path / "open"))
    forget_library()
    try:
        with caplog.at_level(logging.WARNING):
            assert build.library() is None
    finally:
        forget_library()
    (message,) = caplog.messages
    assert str(tmp_path / "open") in message and "no such header" in message


def test_a_folder_of_another_user_is_not_said_to_be_open(tmp_path, monkeypatch):
    """There chmod would change nothing."""
    tmp_path.chmod(0o755)
    monkeypatch.setattr("os.getuid", lambda: 1 << 20)
    with pytest.raises(RuntimeError) as refused:
        build._check_safety(tmp_path)
    assert str(tmp_path) in str(refused.value) and "chmod" not in str(refused.value)


def test_a_file_that_cannot_be_loaded(compiler, caplog):
    compiler('echo "not a library" > "$out"')
    forget_library()
    try:
        assert build.library() is None
    finally:
        forget_library()
    assert len(caplog.messages) == 1


@needs_compiler
@pytest.mark.slow_except(" ")
@pytest.mark.parametrize("named", ["", " "])
def test_an_empty_name_of_a_compiler_is_none(monkeypatch, named):
    monkeypatch.setenv("CC", named)
    assert ctypes.CDLL(str(compiled())).solve_rows


@pytest.mark.parametrize("named", ["/nonexistent/cc", "cc 'with half a quote", "/"])
def test_a_name_of_no_compiler(monkeypatch, caplog, named):
    monkeypatch.setenv("CC", named)
    forget_library()
    try:
        assert build.library() is None
    finally:
        forget_library()
    assert len(caplog.messages) == 1


# --- processes of their own ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "environment", [{"CC": "/nonexistent/cc"}, {"FAIRSEQ_SPARSE_NATIVE": "0"}], ids=str
)
def test_all_works_without_a_compiler(tmp_path, cache, environment):
    script = f"""
        import torch
        torch.set_num_threads(1)
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from test_build import a_bit_of_everything
        from fairseq_sparse.ops.cpu import build
        torch.save(a_bit_of_everything(), {str(tmp_path / "results.pt")!r})
        assert build.library() is None
    """
    log = run(script, **environment).stderr
    assert_same_results(torch.load(tmp_path / "results.pt"))
    warnings = [line for line in log.splitlines() if "could not be compiled" in line]
    assert len(warnings) == ("CC" in environment)
    assert not cache.exists() or not list(cache.iterdir())


def test_importing_compiles_nothing(compiler):
    calls = compiler("exit 1")
    run("import fairseq_sparse.ops, fairseq_sparse.ops.cpu")
    command = [PYTHON, "-c", "import fairseq_sparse"]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    assert calls() == []


@needs_compiler
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux")
def test_the_kernels_use_the_threads_that_pytorch_has():
    script = """
        import os, torch
        from fairseq_sparse.ops.cpu import build
        from fairseq_sparse.ops import entmax15
        torch.set_num_threads(3)
        z = torch.randn(2000, 500).exp().log()  # in parallel
        before = set(os.listdir("/proc/self/task"))
        assert build.library() is not None
        entmax15(z)
        after = set(os.listdir("/proc/self/task"))
        libraries = {line.split()[-1] for line in open("/proc/self/maps") if "omp" in line}
        print(len(before), len(after - before), *libraries)
    """
    threads, more, *libraries = run(script, OMP_NUM_THREADS="3").stdout.split()
    assert int(threads) >= 3 and int(more) == 0, libraries

"""The cache of the compiled kernels: which files it trusts, and what it leaves behind."""

import logging
import os
import shlex
import shutil
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from fairseq_sparse.ops.cpu import build
from fork_python import PYTHON

pytestmark = [
    pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler"),
    pytest.mark.skipif(not hasattr(os, "getuid"), reason="needs users as Unix has them"),
]


@pytest.fixture(scope="module")
def compiler(tmp_path_factory):
    """Return a quick compiler, which copies a library that was compiled before."""
    folder = tmp_path_factory.mktemp("compiler")
    library, script = folder / "library.so", folder / "cc"
    sources = [build.FOLDER / name for name in build.SOURCES]
    command = ["cc", "-std=gnu11", "-shared", "-fPIC", "-o", library, *sources, "-lm"]
    subprocess.run(command, check=True)
    script.write_text(
        f'for word; do [ "$last" = -o ] && out=$word; last=$word; done\ncp "{library}" "$out"\n'
    )
    return f"sh {shlex.quote(str(script))}"


def forget_library():
    build.library.cache_clear()
    build._library.cache_clear()


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch, compiler):
    """Redirect temporary files to a new folder, and load the library anew for each test."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.delenv("FAIRSEQ_SPARSE_NATIVE", raising=False)
    monkeypatch.setenv("CC", compiler)
    forget_library()
    yield folder
    forget_library()


@pytest.fixture
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("FAIRSEQ_SPARSE_CACHE", str(folder))
    return folder


def test_nobody_else_can_write_to_the_cache(cache):
    before = os.umask(0)
    try:
        assert build.library() is not None
    finally:
        os.umask(before)
    assert cache.stat().st_mode & 0o777 == 0o700
    (library,) = cache.iterdir()
    assert library.stat().st_mode & 0o022 == 0


def test_a_cache_that_others_can_write_to_is_not_used(cache, temporary, caplog):
    cache.mkdir()
    cache.chmod(0o777)
    planted = cache / build._compiled().name
    planted.write_text("a trap")
    for folder in temporary.iterdir():
        shutil.rmtree(folder)
    with caplog.at_level(logging.WARNING):
        assert build.library().solve_entmax
    assert planted.read_text() == "a trap" and list(cache.iterdir()) == [planted]
    assert "other users can write to" in caplog.text and not list(temporary.iterdir())


def test_the_cache_of_another_user_is_not_used(cache, temporary, monkeypatch):
    cache.mkdir(mode=0o755)
    monkeypatch.setattr(os, "getuid", lambda: cache.stat().st_uid + 1)
    assert build.library() is not None
    assert not list(cache.iterdir()) and not list(temporary.iterdir())


@pytest.mark.parametrize("mode", [0o666, 0o600])
def test_a_file_that_another_user_could_have_written_is_made_anew(cache, monkeypatch, mode):
    path = build._compiled()
    path.write_text("a trap")
    path.chmod(mode)
    if mode == 0o600:  # another user's file, from before the folder was closed to others
        right = build._is_ours_alone
        monkeypatch.setattr(build, "_is_ours_alone", lambda p: p != path and right(p))
    assert build._compiled().read_bytes().startswith(b"\x7fELF") or os.uname().sysname != "Linux"
    assert path.stat().st_mode & 0o022 == 0


def test_a_damaged_file_is_made_anew(cache):
    # Loading a truncated file would kill the process with SIGBUS.
    path = build._compiled()
    right = path.read_bytes()
    path.write_bytes(right[: len(right) // 2])
    assert build.library().solve_entmax
    assert path.read_bytes() == right and list(cache.iterdir()) == [path]


def test_a_file_with_other_bytes_is_made_anew(cache):
    path = build._compiled()
    right = path.read_bytes()
    path.write_bytes(right[:-1] + bytes([right[-1] ^ 1]))
    assert build._compiled().read_bytes() == right


def test_processes_that_find_a_damaged_file_all_have_kernels(cache, tmp_path, monkeypatch):
    started = tmp_path / "started"
    started.mkdir()
    # Each compiler waits for the other two, so that all processes have seen the damaged file.
    waiting = tmp_path / "waiting"
    waiting.write_text(
        f"touch {started}/$$\n"
        f"for i in $(seq 600); do [ $(ls {started} | wc -l) -ge 3 ] && break; sleep 0.1; done\n"
        f'exec {os.environ["CC"]} "$@"\n'
    )
    monkeypatch.setenv("CC", f"sh {waiting}")
    # Each process that cannot load its library waits likewise before it goes on.
    script = f"""if True:
        import ctypes, importlib.util as util, os, sys, time
        spec = util.spec_from_file_location("build", {str(build.__file__)!r})
        build = util.module_from_spec(spec)
        spec.loader.exec_module(build)

        def load(path, right=ctypes.CDLL):
            try:
                return right(path)
            except OSError:
                open(f"{started}/{{os.getpid()}}", "w").close()
                while len(os.listdir({str(started)!r})) < 3:
                    time.sleep(0.1)
                raise

        ctypes.CDLL = load
        print(build.library() is not None)
    """

    def have_kernels():
        command = [PYTHON, "-c", script]
        all_of_them = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(3)]
        return [process.communicate()[0].split() for process in all_of_them] == [[b"True"]] * 3

    assert have_kernels()
    (path,) = cache.iterdir()
    for file in started.iterdir():
        file.unlink()
    path.write_bytes(b"")
    assert have_kernels() and len(list(started.iterdir())) == 3
    assert list(cache.iterdir()) == [path] and path.stat().st_size > 1000


def test_threads_that_ask_at_once_compile_once(cache, monkeypatch):
    calls = []

    def slow(compiler, output, right=build._compile):
        calls.append(output)
        time.sleep(0.3)
        right(compiler, output)

    monkeypatch.setattr(build, "_compile", slow)
    with ThreadPoolExecutor(4) as pool:
        libraries = list(pool.map(lambda _: build.library(), range(4)))
    assert libraries[0] is not None and len(set(map(id, libraries))) == len(calls) == 1


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_is_left_where_there_is_no_cache(tmp_path, temporary, monkeypatch, fails):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FAIRSEQ_SPARSE_CACHE", str(tmp_path / "file" / "cache"))
    if fails:
        monkeypatch.setenv("CC", "false")
    assert (build.library() is None) == fails
    assert not list(temporary.iterdir())

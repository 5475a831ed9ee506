"""The cache of the compiled kernels: which files it trusts, and what it leaves behind."""

import ctypes
import logging
import os
import shlex
import shutil
import subprocess
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import pytest
import torch

from fairseq_sparse.ops import backends, entmax15
from fairseq_sparse.ops.cpu import build
from fork_python import PYTHON

grp, pwd = pytest.importorskip("grp"), pytest.importorskip("pwd")
ROOT = Path(__file__).resolve().parents[1]
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
    planted = plant(cache)
    cache.chmod(0o777)
    with caplog.at_level(logging.WARNING):
        assert build.library().solve_rows
    assert list(cache.iterdir()) == [planted] and not list(temporary.iterdir())
    assert len(caplog.messages) == 1 and str(cache) in caplog.text


def plant(folder):
    """Put a library of the right name that sets a variable when it is loaded into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    trap, path = folder / "trap.c", folder / "trap.so"
    trap.write_text(
        "#include <stdlib.h>\n"
        '__attribute__((constructor)) void spring(void) { setenv("SPRUNG", "1", 1); }\n'
        "int attention_lanes(void) { return 1; }\n"
    )
    subprocess.run(["cc", "-shared", "-fPIC", "-o", path, trap], check=True)
    with tempfile.TemporaryDirectory() as other:
        name, _, _ = build._compiled(Path(other)).stem.rpartition("-")
    planted = folder / f"{name}-{build._digest(path.read_bytes())}.so"
    path.rename(planted)
    trap.unlink()
    planted.chmod(0o700)
    return planted


def is_sprung():
    read = ctypes.CDLL(None).getenv  # os.environ does not see what C sets
    read.restype = ctypes.c_char_p
    return read(b"SPRUNG") is not None


@pytest.mark.parametrize("above", [1, 2])
@pytest.mark.parametrize("link", [False, True])
def test_a_folder_that_others_can_replace_is_not_used(tmp_path, monkeypatch, above, link):
    """Who can write to a folder above the cache can put a folder of the same name in its place."""
    cache = tmp_path / "a" / "b" / "c" / "cache"
    planted = plant(cache)
    if link:
        (tmp_path / "link").symlink_to(cache)
    monkeypatch.setenv("FAIRSEQ_SPARSE_CACHE", str(tmp_path / "link" if link else cache))
    cache.parents[above - 1].chmod(0o777)
    assert build.library().solve_rows and not is_sprung()
    assert list(cache.iterdir()) == [planted]


def test_a_planted_library_is_a_danger(cache):
    """The trap of the other tests works where it is trusted, so that they can fail."""
    script = """if True:
        import ctypes, sys
        sys.modules["fairseq"] = None
        from fairseq_sparse.ops.cpu import build
        assert build.library() is not None
        getenv = ctypes.CDLL(None).getenv
        getenv.restype = ctypes.c_char_p
        print(getenv(b"SPRUNG"))
    """
    plant(cache)
    done = subprocess.run([PYTHON, "-c", script], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == "b'1'\n", done.stderr


@pytest.mark.parametrize("mode", [0o1777, 0o755])
def test_a_folder_that_others_cannot_replace_is_used(tmp_path, monkeypatch, mode):
    cache = tmp_path / "above" / "cache"
    cache.parent.mkdir()
    cache.parent.chmod(mode)
    monkeypatch.setenv("FAIRSEQ_SPARSE_CACHE", str(cache))
    assert build.library() is not None and len(list(cache.iterdir())) == 1


@pytest.mark.parametrize("alone", [True, False])
def test_a_group_may_write_if_the_user_is_alone_in_it(tmp_path, monkeypatch, alone):
    cache = tmp_path / "above" / "cache"
    cache.parent.mkdir()
    cache.parent.chmod(0o775)
    group = mock.Mock(gr_name=pwd.getpwuid(os.getuid()).pw_name, gr_mem=[] if alone else ["eve"])
    monkeypatch.setattr(grp, "getgrgid", lambda _: group)
    monkeypatch.setenv("FAIRSEQ_SPARSE_CACHE", str(cache))
    assert build.library() is not None
    assert len(list(cache.iterdir())) == alone


def test_the_cache_of_another_user_is_not_used(cache, temporary, monkeypatch):
    cache.mkdir(mode=0o755)
    right = build._is_ours_alone
    monkeypatch.setattr(build, "_is_ours_alone", lambda path: path != cache and right(path))
    assert build.library() is not None
    assert not list(cache.iterdir()) and not list(temporary.iterdir())


def test_a_relative_name_is_of_a_folder(tmp_path, monkeypatch):
    """The dynamic linker would search for a name without a slash in the system's folders."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FAIRSEQ_SPARSE_CACHE", ".")
    assert build.library() is not None and len(list(tmp_path.glob("*.so"))) == 1


def test_a_full_cache_leaves_the_temporary_folder(cache, temporary, tmp_path, monkeypatch, caplog):
    full = tmp_path / "full"
    full.write_text(
        f'case "$*" in *{cache}*) echo "No space left on device" >&2; exit 1;; esac\n'
        f'exec {os.environ["CC"]} "$@"\n'
    )
    monkeypatch.setenv("CC", f"sh {full}")
    assert build.library() is not None
    assert len(caplog.messages) == 1 and "No space left on device" in caplog.text
    assert not list(cache.iterdir()) and not list(temporary.iterdir())


def test_a_library_that_hides_its_functions_is_as_none(cache, tmp_path, monkeypatch, caplog):
    (tmp_path / "empty.c").write_text("")
    hiding = 'for word; do [ "$last" = -o ] && out=$word; last=$word; done\n'
    hiding += f'exec cc -shared -o "$out" {tmp_path}/empty.c\n'
    (tmp_path / "hiding").write_text(hiding)
    monkeypatch.setenv("CC", f"sh {tmp_path}/hiding")
    z = torch.randn(3, 8)
    assert build.library() is None and (entmax15(z).sum(-1) - 1).abs().max() < 1e-5
    assert len(caplog.messages) == 1


def test_what_killed_starts_have_left_is_removed(cache):
    cache.mkdir(mode=0o700)
    old, new = cache / "compiling-1", cache / "compiling-2"
    for folder in (old, new):
        folder.mkdir()
        (folder / "kernels.so").write_text("half")
    os.utime(old, (1, 1))
    assert build.library() is not None
    assert not old.exists() and (new / "kernels.so").exists()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("lock", [build._lock, backends._lock])
def test_a_fork_while_another_thread_compiles_does_not_hang(lock):
    held = threading.Event()

    def hold():
        with lock:
            held.set()
            time.sleep(0.3)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    child = os.fork()
    if child == 0:
        os._exit(not lock.acquire(timeout=5))
    thread.join()
    assert os.waitpid(child, 0)[1] == 0
    assert lock.acquire(timeout=5)
    lock.release()


@pytest.mark.parametrize("mode", [0o666, 0o600])
def test_a_file_that_another_user_could_have_written_is_made_anew(cache, monkeypatch, mode):
    path = build._compiled(build._cache_folder())
    path.write_text("a trap")
    path.chmod(mode)
    if mode == 0o600:  # another user's file, from before the folder was closed to others
        right = build._is_ours_alone
        monkeypatch.setattr(build, "_is_ours_alone", lambda p: p != path and right(p))
    assert (
        build._compiled(build._cache_folder()).read_bytes().startswith(b"\x7fELF")
        or os.uname().sysname != "Linux"
    )
    assert path.stat().st_mode & 0o022 == 0


def test_a_damaged_file_is_made_anew(cache):
    # Loading a truncated file would kill the process with SIGBUS.
    path = build._compiled(build._cache_folder())
    right = path.read_bytes()
    path.write_bytes(right[: len(right) // 2])
    assert build.library().solve_rows
    assert path.read_bytes() == right and list(cache.iterdir()) == [path]


def test_a_file_with_other_bytes_is_made_anew(cache):
    path = build._compiled(build._cache_folder())
    right = path.read_bytes()
    path.write_bytes(right[:-1] + bytes([right[-1] ^ 1]))
    assert build._compiled(build._cache_folder()).read_bytes() == right


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

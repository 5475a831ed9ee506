"""corpora/download.py against a local HTTP server that can be told to misbehave."""

from __future__ import annotations

import hashlib
import http.server
import os
import shutil
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import fairseq_sparse
from fairseq_sparse.commands import cli
from fairseq_sparse.errors import RecipeError
from fairseq_sparse.recipes.corpora.download import download

ROOT = Path(fairseq_sparse.__file__).resolve().parents[1]
CONTENT = bytes(range(256)) * 2000  # 512,000 bytes: several blocks
SHA256 = hashlib.sha256(CONTENT).hexdigest()
Behaviour = Callable[[int, http.server.BaseHTTPRequestHandler], bool]


class Server:
    """Serves CONTENT; ``behave`` is called for each request with its number, and may answer it."""

    def __init__(self) -> None:
        self.requests: list[str] = []  # the Range header of each request
        self.behave: Behaviour = lambda *_: False
        self.ranges = True
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                span = self.headers.get("Range", "")
                server.requests.append(span)
                if not server.behave(len(server.requests), self):
                    server.answer(self)

            def log_message(self, *_: object) -> None:
                pass

        self.httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.httpd.server_port}/some%20file.gz"

    def answer(self, handler: http.server.BaseHTTPRequestHandler, stop: int | None = None) -> None:
        """Answer as a good server does, but break off at byte ``stop``."""
        span = self.requests[-1] if self.ranges else ""
        first = int(span.removeprefix("bytes=").rstrip("-")) if span else 0
        if first >= len(CONTENT):
            handler.send_response(416)
            handler.send_header("Content-Range", f"bytes */{len(CONTENT)}")
            handler.send_header("Content-Length", "0")
            handler.end_headers()
            return
        handler.send_response(206 if span else 200)
        if span:
            whole = len(CONTENT)
            handler.send_header("Content-Range", f"bytes {first}-{whole - 1}/{whole}")
        handler.send_header("Content-Length", str(len(CONTENT) - first))
        handler.end_headers()
        handler.wfile.write(CONTENT[first:stop])


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(target=server.httpd.serve_forever, args=(0.02,))
    thread.start()
    yield server
    server.httpd.shutdown()
    thread.join()
    server.httpd.server_close()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "neuer Ordner für Daten" / "file.gz"


def leave_part(file: Path, content: bytes) -> None:
    file.parent.mkdir(parents=True)
    file.with_name(file.name + ".part").write_bytes(content)


def assert_complete(file: Path) -> None:
    assert file.read_bytes() == CONTENT
    assert list(file.parent.iterdir()) == [file]


@pytest.mark.parametrize("checksum", [SHA256.upper(), hashlib.md5(CONTENT).hexdigest(), None])
def test_a_second_time_asks_for_nothing(checksum: str | None, server: Server, file: Path) -> None:
    for _ in range(2):
        download(server.url, file, checksum)
        assert_complete(file)
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("left", "checksum", "ranges"),
    [
        (CONTENT[:100_000], SHA256, True),
        (CONTENT[:100_000], None, True),
        (CONTENT[:100_000], SHA256, False),
        (CONTENT, SHA256, True),
        (b"x" * 1000, SHA256, True),  # of something else
        (CONTENT + b"x", None, True),
    ],
    ids=["begun", "unchecked", "without-ranges", "whole", "other", "longer"],
)
def test_a_part_that_is_there(
    left: bytes, checksum: str | None, ranges: bool, server: Server, file: Path
) -> None:
    server.ranges = ranges
    leave_part(file, left)
    download(server.url, file, checksum)
    assert_complete(file)
    assert server.requests[0] == f"bytes={len(left)}-"


def break_at(server: Server, *stops: int) -> Behaviour:
    def behave(number: int, handler: http.server.BaseHTTPRequestHandler) -> bool:
        if number <= len(stops):
            server.answer(handler, stops[number - 1])
        return number <= len(stops)

    return behave


def test_a_connection_that_breaks_is_continued(server: Server, file: Path) -> None:
    server.behave = break_at(server, 150_000, 300_000)
    download(server.url, file, SHA256)
    assert_complete(file)
    assert server.requests == ["", "bytes=150000-", "bytes=300000-"]


def test_what_was_delivered_is_kept_for_the_next_time(server: Server, file: Path) -> None:
    server.behave = break_at(server, 1000, 1000)
    with pytest.raises(RecipeError):
        download(server.url, file)
    assert not file.exists()
    download(server.url, file)
    assert_complete(file)
    assert server.requests == ["", "bytes=1000-", "bytes=1000-"]


def test_a_server_that_breaks_off_and_cannot_continue_is_given_up(
    server: Server, file: Path
) -> None:
    server.ranges = False
    server.behave = break_at(server, *[1000] * 99)
    with pytest.raises(RecipeError):
        download(server.url, file, SHA256)
    assert not file.exists() and len(server.requests) < 9


def test_a_lasting_error_is_not_tried_again(server: Server, file: Path, capfd) -> None:
    server.behave = lambda _, handler: handler.send_error(404) or True
    with pytest.raises(RecipeError, match="some%20file"):
        download(server.url, file)
    assert "404" in capfd.readouterr().err
    assert len(server.requests) == 1 and not list(file.parent.iterdir())


def test_a_wrong_checksum_is_refused(server: Server, file: Path) -> None:
    with pytest.raises(RecipeError, match="0" * 64):
        download(server.url, file, "0" * 64)
    assert list(file.parent.iterdir()) == []  # nothing in the way of the next try
    download(server.url, file, SHA256)
    assert_complete(file)


def test_a_folder_is_no_file(server: Server, file: Path) -> None:
    file.parent.mkdir()
    with pytest.raises(RecipeError, match=str(file.parent)):
        download(server.url, file.parent)


def test_a_file_with_another_checksum_is_not_touched(server: Server, file: Path) -> None:
    file.parent.mkdir()
    file.write_bytes(b"mine")
    with pytest.raises(RecipeError, match=str(file)):
        download(server.url, file, SHA256)
    assert file.read_bytes() == b"mine"


def lead_to(address: str) -> Behaviour:
    def behave(number: int, handler: http.server.BaseHTTPRequestHandler) -> bool:
        if "elsewhere" in handler.path:
            return False
        handler.send_response(302)
        handler.send_header("Location", address)
        handler.send_header("Content-Length", "0")
        handler.end_headers()
        return True

    return behave


def test_a_server_can_lead_elsewhere_but_not_out_of_http(
    server: Server, file: Path, tmp_path: Path
) -> None:
    with pytest.raises(RecipeError):
        download("file:///etc/hostname", file)
    server.behave = lead_to("file:///etc/hostname")
    with pytest.raises(RecipeError):
        download(server.url, file)
    assert list(file.parent.iterdir()) == []
    server.behave = lead_to("/elsewhere")
    download(server.url, file)
    assert_complete(file)


@pytest.mark.skipif(not shutil.which("openssl"), reason="makes a certificate with openssl")
def test_a_server_cannot_lead_out_of_encryption(
    server: Server, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, certificate = tmp_path / "key", tmp_path / "certificate"
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=localhost"
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate]
    subprocess.run([*command.split(), *names], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.httpd.socket = context.wrap_socket(server.httpd.socket, server_side=True)
    monkeypatch.setenv("CURL_CA_BUNDLE", str(certificate))
    plain, server.url = server.url, server.url.replace("http:", "https:")
    server.behave = lead_to(f"{plain}/elsewhere")
    with pytest.raises(RecipeError):
        download(server.url, file)
    assert len(server.requests) == 1 and list(file.parent.iterdir()) == []
    server.behave = lead_to(f"{server.url}/elsewhere")
    download(server.url, file)
    assert_complete(file)


def test_a_range_that_was_not_asked_for_is_not_used(server: Server, file: Path) -> None:
    leave_part(file, CONTENT[:1000])

    def behave(number: int, handler: http.server.BaseHTTPRequestHandler) -> bool:
        if number == 1:
            handler.send_response(206)
            handler.send_header("Content-Range", "bytes 2000-511999/512000")
            handler.send_header("Content-Length", "4")
            handler.end_headers()
            handler.wfile.write(b"1234")
        return number == 1

    server.behave = behave
    download(server.url, file, SHA256)
    assert_complete(file)


def test_a_machine_without_curl(server: Server, file: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RecipeError, match="curl"):
        download(server.url, file)


@pytest.mark.parametrize("flags", [[], ["--sha256", SHA256]])
def test_command_line(flags: list[str], server: Server, file: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert cli.run("corpus download", [server.url, str(file), *flags]) == 0
        assert_complete(file)
        file.write_bytes(b"mine")
        assert cli.run("corpus download", [server.url, str(file), *flags]) == len(flags) / 2
    finally:
        signal.signal(signal.SIGTERM, before)


def test_curl_ends_with_the_command(server: Server, file: Path) -> None:
    over = threading.Event()
    server.behave = lambda *_: over.wait(60)  # says nothing, and then nothing more
    command = [sys.executable, "-m", "fairseq_sparse", "corpus", "download", server.url, str(file)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, env=environment) as process:
        while not server.requests:
            assert process.poll() is None
            time.sleep(0.01)
        process.terminate()
        process.stderr.read()  # ends when no process is left that could write into it
    over.set()
    assert process.returncode == 143


def test_what_is_no_checksum_is_refused(file: Path, capsys) -> None:
    with pytest.raises(SystemExit):
        cli.run("corpus download", ["http://x", str(file), "--sha256", "0" * 32])
    assert "0" * 32 in capsys.readouterr().err

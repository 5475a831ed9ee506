"""scripts/download.py against a local HTTP server that can be told to misbehave."""

from __future__ import annotations

import hashlib
import http.server
import shutil
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "download.py"
CONTENT = bytes(range(256)) * 2000  # 512,000 bytes: several blocks
SHA256 = hashlib.sha256(CONTENT).hexdigest()
MD5 = hashlib.md5(CONTENT).hexdigest()


class Server:
    """Serves CONTENT; `behave` is called for each request with its number, and may answer it."""

    def __init__(self) -> None:
        self.requests: list[str] = []  # the Range header of each request
        self.behave: Callable[[int, http.server.BaseHTTPRequestHandler], bool] = lambda *_: False
        self.ranges = True
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                span = self.headers.get("Range", "")
                server.requests.append(span)
                if not server.behave(len(server.requests), self):
                    server.answer(self, span if server.ranges else "")

            def log_message(self, *_: object) -> None:
                pass

        self.httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.httpd.server_port}/some%20file.gz"

    def answer(
        self, handler: http.server.BaseHTTPRequestHandler, span: str, stop: int | None = None
    ) -> None:
        """Answer as a good server does, but break off at byte `stop`."""
        first = int(span.removeprefix("bytes=").rstrip("-")) if span else 0
        if first >= len(CONTENT):
            handler.send_response(416)
            handler.send_header("Content-Range", f"bytes */{len(CONTENT)}")
            handler.send_header("Content-Length", "0")
            handler.end_headers()
            return
        handler.send_response(206 if span else 200)
        if span:
            last = len(CONTENT) - 1
            handler.send_header("Content-Range", f"bytes {first}-{last}/{len(CONTENT)}")
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
def output(tmp_path: Path) -> Path:
    return tmp_path / "neuer Ordner für Daten" / "file.gz"


def part(output: Path) -> Path:
    return output.with_name(output.name + ".part")


def download(server: Server, output: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, SCRIPT, server.url, "--output", output, "--wait", "0.01", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
    )


def leave_part(output: Path, content: bytes) -> None:
    output.parent.mkdir(parents=True)
    part(output).write_bytes(content)


def assert_complete(result: subprocess.CompletedProcess[str], output: Path) -> None:
    assert result.returncode == 0, result.stdout
    assert output.read_bytes() == CONTENT
    assert list(output.parent.iterdir()) == [output]


@pytest.mark.parametrize("options", [("--sha256", SHA256.upper()), ("--md5", MD5)])
def test_success(server: Server, output: Path, options: tuple[str, ...]) -> None:
    assert_complete(download(server, output, *options), output)


def test_second_time_asks_for_nothing(server: Server, output: Path) -> None:
    download(server, output, "--sha256", SHA256)
    result = download(server, output, "--sha256", SHA256)
    assert_complete(result, output)
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("left", "checked", "ranges"),
    [
        (CONTENT[:100_000], True, True),
        (CONTENT[:100_000], True, False),
        (CONTENT, True, True),
        (b"x" * 1000, True, True),  # of something else
        (CONTENT + b"x", False, True),
    ],
    ids=["begun", "without-ranges", "whole", "other", "longer"],
)
def test_a_part_that_is_there(
    left: bytes, checked: bool, ranges: bool, server: Server, output: Path
) -> None:
    server.ranges = ranges
    leave_part(output, left)
    assert_complete(download(server, output, *("--sha256", SHA256) * checked), output)
    assert server.requests[0] == f"bytes={len(left)}-"


def test_connection_dropped_midway(server: Server, output: Path) -> None:
    stops = [150_000, 300_000]

    def behave(number: int, handler: http.server.BaseHTTPRequestHandler) -> bool:
        if number > len(stops):
            return False
        server.answer(handler, server.requests[-1], stops[number - 1])
        return True

    server.behave = behave
    assert_complete(download(server, output, "--sha256", SHA256), output)
    assert server.requests == ["", "bytes=150000-", "bytes=300000-"]


def test_server_that_never_recovers(server: Server, output: Path) -> None:
    def behave(number: int, handler: http.server.BaseHTTPRequestHandler) -> bool:
        server.answer(handler, server.requests[-1], 1000)
        return True

    server.behave = behave
    result = download(server, output, "--retries", "2")
    assert result.returncode == 1
    assert len(server.requests) == 3
    assert not output.exists()
    assert part(output).read_bytes() == CONTENT[:1000]
    # When the server is well again, the same command goes on from there.
    server.behave = lambda *_: False
    assert_complete(download(server, output), output)


def fail_with(status: int, times: int) -> Callable[[int, http.server.BaseHTTPRequestHandler], bool]:
    def behave(number: int, handler: http.server.BaseHTTPRequestHandler) -> bool:
        if number <= times:
            handler.send_error(status)
        return number <= times

    return behave


def test_passing_error_is_tried_again(server: Server, output: Path) -> None:
    server.behave = fail_with(503, times=2)
    result = download(server, output)
    assert_complete(result, output)
    assert len(server.requests) == 3


def test_lasting_error_is_not_tried_again(server: Server, output: Path) -> None:
    server.behave = fail_with(404, times=99)
    result = download(server, output)
    assert result.returncode == 1 and "404" in result.stdout
    assert len(server.requests) == 1
    assert not output.exists() and not part(output).exists()


def test_wrong_checksum_is_refused(server: Server, output: Path) -> None:
    result = download(server, output, "--sha256", "0" * 64)
    assert result.returncode == 1
    assert SHA256 in result.stdout and "0" * 64 in result.stdout
    assert list(output.parent.iterdir()) == []  # nothing in the way of the next try
    assert_complete(download(server, output, "--sha256", SHA256), output)


def test_existing_file_with_wrong_checksum_is_not_touched(server: Server, output: Path) -> None:
    output.parent.mkdir()
    output.write_bytes(b"mine")
    result = download(server, output, "--sha256", SHA256)
    assert result.returncode == 1
    assert str(output) in result.stdout
    assert output.read_bytes() == b"mine"


@pytest.mark.parametrize("address", ["", "file:///etc/hostname"], ids=["nobody listens", "file"])
def test_what_cannot_be_fetched(address: str, output: Path) -> None:
    server = Server()
    server.httpd.server_close()
    server.url = address or server.url
    result = download(server, output, "--retries", "1")
    assert result.returncode == 1 and server.url in result.stdout
    assert not output.exists()


def lead_to(address: str) -> Callable[[int, http.server.BaseHTTPRequestHandler], bool]:
    def behave(number: int, handler: http.server.BaseHTTPRequestHandler) -> bool:
        if "elsewhere" in handler.path:
            return False
        handler.send_response(302)
        handler.send_header("Location", address)
        handler.send_header("Content-Length", "0")
        handler.end_headers()
        return True

    return behave


def test_a_server_may_lead_elsewhere(server: Server, output: Path) -> None:
    server.behave = lead_to("/elsewhere")
    assert_complete(download(server, output), output)


def test_a_server_cannot_lead_out_of_http(server: Server, output: Path) -> None:
    server.behave = lead_to("file:///etc/hostname")
    result = download(server, output)
    assert result.returncode == 1
    assert result.stdout.splitlines()[-1].startswith(f"download: {server.url}: ")
    assert list(output.parent.iterdir()) == []


@pytest.mark.skipif(not shutil.which("openssl"), reason="makes a certificate with openssl")
def test_a_server_cannot_lead_out_of_encryption(
    server: Server, output: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
    result = download(server, output)
    assert result.returncode == 1
    assert len(server.requests) == 1 and list(output.parent.iterdir()) == []
    server.behave = lead_to(f"{server.url}/elsewhere")
    assert_complete(download(server, output), output)


def test_a_range_that_was_not_asked_for_is_not_used(server: Server, output: Path) -> None:
    leave_part(output, CONTENT[:1000])

    def behave(number: int, handler: http.server.BaseHTTPRequestHandler) -> bool:
        if number == 1:
            handler.send_response(206)
            handler.send_header("Content-Range", "bytes 2000-511999/512000")
            handler.send_header("Content-Length", "4")
            handler.end_headers()
            handler.wfile.write(b"1234")
        return number == 1

    server.behave = behave
    assert_complete(download(server, output), output)


def test_a_server_that_says_no_more_is_given_up(server: Server, output: Path) -> None:
    over = threading.Event()
    server.behave = lambda *_: over.wait(20)
    result = download(server, output, "--timeout", "1", "--retries", "0")
    over.set()
    assert result.returncode == 1 and len(server.requests) == 1


def test_a_machine_without_curl(
    server: Server, output: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    result = download(server, output)
    assert result.returncode == 1 and "curl" in result.stdout.splitlines()[-1]


def test_what_is_no_checksum_is_refused(server: Server, output: Path) -> None:
    result = download(server, output, "--sha256", MD5)
    assert result.returncode == 2 and MD5 in result.stdout
    assert not server.requests

#!/usr/bin/env python3
"""Download one file over HTTP: resumes, retries, checks the checksum, and appears only when whole.

While it is incomplete the file is OUTPUT.part; run the same command again to go on from there.
A file that is already there with the right checksum is kept.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import http.client
import os
import re
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import NamedTuple

BLOCK = 1 << 16
# Answers that a later try may not get: timeout, too many requests, and the server's own errors.
RETRY_STATUS = {408, 425, 429, 500, 502, 503, 504}


class DownloadError(Exception):
    """The file could not be had; the message says why and what to do."""


class Interrupted(Exception):
    """The transfer stopped before the end; what arrived is kept for the next try."""


class Progress:
    """A line on the terminal, or one line for every tenth of the file in a log."""

    def __init__(self, name: str, done: int, total: int | None) -> None:
        self.name, self.done, self.total = name, done, total
        self.terminal = sys.stderr.isatty()
        self.reported = -1

    def add(self, count: int) -> None:
        self.done += count
        if self.total:
            tenths = 10 * self.done // self.total
            text = f"{self.name}: {100 * self.done // self.total}% of {self.total:,} bytes"
        else:
            tenths = self.done // (10 << 20)
            text = f"{self.name}: {self.done:,} bytes"
        if self.terminal:
            print(f"\r{text}", end="", file=sys.stderr, flush=True)
        elif tenths != self.reported:
            print(text, file=sys.stderr, flush=True)
        self.reported = tenths

    def close(self) -> None:
        if self.terminal:
            print(file=sys.stderr, flush=True)


class Checksum(NamedTuple):
    """What a file must hash to: the algorithm by hashlib's name, and the sum in lower case."""

    algorithm: str
    value: str


def checksum_of(path: Path, algorithm: str) -> str:
    digest = hashlib.new(algorithm, usedforsecurity=False)
    with open(path, "rb") as handle:
        for block in iter(lambda: handle.read(BLOCK), b""):
            digest.update(block)
    return digest.hexdigest()


def read_range(response: http.client.HTTPResponse) -> tuple[int, int | None]:
    """First byte and total size that the answer speaks of."""
    if response.status == 206:
        # Content-Range: bytes FIRST-LAST/TOTAL
        span, _, total = response.headers.get("Content-Range", "").partition("/")
        first = span.removeprefix("bytes ").partition("-")[0].strip()
        if not first.isdecimal():
            raise DownloadError("the server's answer has no valid Content-Range")
        return int(first), int(total) if total.isdecimal() else None
    length = response.headers.get("Content-Length", "")
    return 0, int(length) if length.isdecimal() else None


def read_block(response: http.client.HTTPResponse, done: int) -> bytes:
    try:
        return response.read(BLOCK)
    except (OSError, http.client.HTTPException) as error:
        raise Interrupted(f"the connection broke at byte {done:,} ({error!r})") from error


def receive(response: http.client.HTTPResponse, part: Path, name: str) -> None:
    """Write the answer's body behind the bytes that it continues."""
    first, total = read_range(response)
    if first and first != part.stat().st_size:
        raise DownloadError(f"the server continued at byte {first}, which was not asked for")
    progress = Progress(name, first, total)
    try:
        with open(part, "ab" if first else "wb") as handle:
            while block := read_block(response, progress.done):
                handle.write(block)
                progress.add(len(block))
    finally:
        progress.close()
    if total is not None and progress.done < total:
        raise Interrupted(f"the connection ended at byte {progress.done:,} of {total:,}")


class Redirects(urllib.request.HTTPRedirectHandler):
    """Follows a server to another address, but neither out of HTTP nor out of encryption."""

    def redirect_request(self, req, fp, code, msg, headers, newurl):
        encrypted = req.full_url.startswith("https://")
        if not newurl.startswith("https://" if encrypted else ("http://", "https://")):
            raise DownloadError(f"{req.full_url}: leads to {newurl}, which is not followed")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def open_url(url: str, part: Path, timeout: float) -> http.client.HTTPResponse | None:
    """Ask for what is still missing; None if nothing is.

    Raises:
        Interrupted: another try may help.
        DownloadError: it would not.
    """
    done = part.stat().st_size if part.exists() else 0
    headers = {"Accept-Encoding": "identity", "User-Agent": "fairseq_sparse-download"}
    if done:
        headers["Range"] = f"bytes={done}-"
    try:
        opener = urllib.request.build_opener(Redirects)
        return opener.open(urllib.request.Request(url, headers=headers), timeout=timeout)
    except urllib.error.HTTPError as error:
        if error.code == 416 and done:
            # Nothing lies beyond what is here: it is whole, or not the same file.
            if error.headers.get("Content-Range", "").rpartition("/")[2] == str(done):
                return None
            part.unlink()
            raise Interrupted("what was here is not a part of the file; starting again") from error
        if error.code in RETRY_STATUS:
            raise Interrupted(f"HTTP status {error.code} ({error.reason})") from error
        raise DownloadError(f"{url}: HTTP status {error.code} ({error.reason})") from error
    except (OSError, http.client.HTTPException) as error:
        raise Interrupted(f"no connection ({error})") from error


def keep(part: Path, output: Path, checksum: Checksum | None) -> str | None:
    """Give a whole file its name, or remove one that has another checksum, which is returned."""
    if checksum is not None:
        found = checksum_of(part, checksum.algorithm)
        if found != checksum.value:
            part.unlink()
            return found
    os.replace(part, output)
    return None


def download(
    url: str,
    output: Path,
    checksum: Checksum | None = None,
    retries: int = 5,
    timeout: float = 30.0,
    wait: float = 1.0,
) -> None:
    """Fetch `url` into `output`, trying again up to `retries` times with growing pauses.

    Raises:
        DownloadError: the address is wrong, the tries are used up, or the checksum differs. A file
            with a wrong checksum is removed, so that the next run starts afresh.
    """
    if not url.startswith(("http://", "https://")):
        raise DownloadError(f"{url}: not an http or https address")
    if output.exists():
        if checksum is None or checksum_of(output, checksum.algorithm) == checksum.value:
            print(f"{output.name}: already there", file=sys.stderr)
            return
        raise DownloadError(
            f"{output} is there, but its {checksum.algorithm} is not the expected "
            f"{checksum.value}: delete it to download it again"
        )
    output.parent.mkdir(parents=True, exist_ok=True)
    part = output.with_name(output.name + ".part")
    failures = 0
    while True:
        resumed = part.exists()
        try:
            response = open_url(url, part, timeout)
            if response is not None:
                with response:
                    receive(response, part, output.name)
        except Interrupted as problem:
            failures += 1
            if failures > retries:
                raise DownloadError(
                    f"{url}: gave up after {failures} tries: {problem}"
                ) from problem
            pause = wait * 2 ** (failures - 1)
            print(f"{output.name}: {problem}; again in {pause:g} s", file=sys.stderr, flush=True)
            time.sleep(pause)
            continue
        found = keep(part, output, checksum)
        if found is None:
            return
        if not resumed:
            raise DownloadError(
                f"{url}: the {checksum.algorithm} is {found}, expected {checksum.value}; the file "
                "was not kept. It has changed at its home, or something on the way replaced it"
            )
        print(f"{output.name}: wrong checksum after resuming; starting again", file=sys.stderr)


def checksum_argument(algorithm: str, text: str) -> Checksum:
    digits = 2 * hashlib.new(algorithm, usedforsecurity=False).digest_size
    if not re.fullmatch(f"[0-9a-fA-F]{{{digits}}}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no {algorithm}: it has {digits} digits")
    return Checksum(algorithm, text.lower())


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("url")
    parser.add_argument("--output", type=Path, required=True, metavar="FILE")
    checksum = parser.add_mutually_exclusive_group()
    for algorithm in ("sha256", "md5"):
        checksum.add_argument(
            f"--{algorithm}",
            dest="checksum",
            type=functools.partial(checksum_argument, algorithm),
            metavar="HEX",
            help="what the file must hash to",
        )
    parser.add_argument("--retries", type=int, default=5, metavar="N", help="default: 5")
    parser.add_argument(
        "--timeout", type=float, default=30.0, metavar="SECONDS", help="default: 30"
    )
    parser.add_argument(
        "--wait",
        type=float,
        default=1.0,
        metavar="SECONDS",
        help="pause before the first new try, doubled each time (default: 1)",
    )
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    args = parse_args(argv)
    try:
        download(args.url, args.output, args.checksum, args.retries, args.timeout, args.wait)
    except (DownloadError, OSError) as error:
        print(f"download: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

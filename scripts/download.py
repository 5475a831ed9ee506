#!/usr/bin/env python3
"""Download one file with curl, with resuming, retries and a check of the checksum.

While it is incomplete, the file is OUTPUT.part; run the same command again to continue it.
A file that is already there with the right checksum is kept.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

# HTTP statuses that may go away later: timeout, too many requests, server errors.
RETRY_STATUS = {408, 425, 429, 500, 502, 503, 504}
# curl's exit statuses for a connection that was not made, stalled or broke.
RETRY_EXIT = {5, 6, 7, 16, 18, 28, 35, 52, 55, 56, 92, 95}
NO_RESUME = 33  # curl's exit status if the server cannot resume the file
HTTP_ERROR = 22  # curl's exit status for --fail


class DownloadError(Exception):
    """Error of a download; the message says why it failed and what to do."""


class Checksum(NamedTuple):
    """The expected checksum: its algorithm in hashlib, and its value in lower case."""

    algorithm: str
    value: str

    def of(self, path: Path) -> str:
        """Return the checksum of a file."""
        digest = hashlib.new(self.algorithm, usedforsecurity=False)
        with open(path, "rb") as handle:
            for block in iter(lambda: handle.read(1 << 20), b""):
                digest.update(block)
        return digest.hexdigest()


def transfer(url: str, part: Path, timeout: int) -> tuple[int, int, str]:
    """Let curl continue ``part`` once; return its exit status, the HTTP status and a message."""
    terminal = sys.stderr.isatty()
    # A redirect may not leave HTTP, nor encryption.
    protocols = "=https" if url.startswith("https://") else "=http,https"
    # curl's own --retry would discard what the broken connection delivered, so it is not used.
    command = ["curl", "--disable", "--fail", "--location", "--globoff"]
    command += ["--proto", protocols, "--proto-redir", protocols]
    command += ["--connect-timeout", str(timeout), "--speed-time", str(timeout)]
    command += ["--speed-limit", "1", "--continue-at", "-", "--output", str(part)]
    command += ["--progress-bar"] if terminal else ["--silent", "--show-error"]
    command += ["--write-out", "%{http_code}", url]
    stderr = None if terminal else subprocess.PIPE
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=stderr, encoding="utf-8", errors="replace"
        )
    except FileNotFoundError as error:
        raise DownloadError(
            f"curl is not installed: install it, or download {url} by hand"
        ) from error
    status = int(done.stdout.strip() or 0)
    if done.returncode == HTTP_ERROR:
        return done.returncode, status, f"HTTP status {status}"
    said = (done.stderr or "").strip().splitlines() or [f"curl: exit status {done.returncode}"]
    return done.returncode, status, said[-1]


def finish(part: Path, output: Path, checksum: Checksum | None) -> str | None:
    """Rename a complete file, or delete it and return its checksum if that is wrong."""
    if checksum is not None and (found := checksum.of(part)) != checksum.value:
        part.unlink()
        return found
    os.replace(part, output)
    return None


def download(
    url: str, output: Path, checksum: Checksum | None, retries: int, timeout: int, wait: float
) -> None:
    """Fetch ``url`` into ``output``, trying again up to ``retries`` times with growing pauses.

    Raises:
        DownloadError: the address is wrong, the tries are used up, or the checksum differs. A file
            with a wrong checksum is removed, so that the next run starts from the beginning.
    """
    if not url.startswith(("http://", "https://")):
        raise DownloadError(f"{url}: not an http or https address")
    if output.exists():
        if checksum is None or checksum.of(output) == checksum.value:
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
        print(f"{output.name}: {'resuming' if resumed else 'downloading'} {url}", file=sys.stderr)
        code, status, problem = transfer(url, part, timeout)
        pause = 0.0
        # The server has no more bytes; only a checksum can tell whether the file is complete.
        no_more = resumed and status == 416
        if (resumed and code == NO_RESUME) or (no_more and checksum is None):
            part.unlink()
            problem = "the server cannot continue the partial file; starting again"
        elif code == 0 or no_more:
            found = finish(part, output, checksum)
            if found is None:
                return
            if not resumed:
                raise DownloadError(
                    f"{url}: the {checksum.algorithm} is {found}, expected {checksum.value}; the "
                    "file was not kept. It was replaced at its home or on the way"
                )
            problem = "wrong checksum after resuming; starting again"
        elif code not in RETRY_EXIT and not (code == HTTP_ERROR and status in RETRY_STATUS):
            raise DownloadError(f"{url}: {problem}")
        elif failures == retries:
            raise DownloadError(f"{url}: gave up after {failures + 1} tries: {problem}")
        else:
            pause = wait * 2**failures
            failures += 1
            problem += f"; again in {pause:g} s"
        print(f"{output.name}: {problem}", file=sys.stderr, flush=True)
        time.sleep(pause)


def checksum_argument(algorithm: str, text: str) -> Checksum:
    digits = 2 * hashlib.new(algorithm, usedforsecurity=False).digest_size
    if not re.fullmatch(f"[0-9a-fA-F]{{{digits}}}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no {algorithm}: it has {digits} digits")
    return Checksum(algorithm, text.lower())


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("url")
    parser.add_argument("--output", type=Path, required=True, metavar="FILE")
    checksum = parser.add_mutually_exclusive_group()
    for algorithm in ("sha256", "md5"):
        parse = functools.partial(checksum_argument, algorithm)
        checksum.add_argument(f"--{algorithm}", dest="checksum", type=parse, metavar="HEX")
    parser.add_argument("--retries", type=int, default=5, metavar="N", help="default: 5")
    parser.add_argument(
        "--timeout",
        type=int,
        default=30,
        metavar="SECONDS",
        help="give up after this long without data (default: 30)",
    )
    parser.add_argument(
        "--wait",
        type=float,
        default=1.0,
        metavar="SECONDS",
        help="before the first retry; doubled after each (default: 1)",
    )
    args = parser.parse_args(argv)
    # Terminating this process must end curl, too; otherwise curl would go on writing.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        download(**vars(args))
    except (DownloadError, OSError) as error:
        print(f"download: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

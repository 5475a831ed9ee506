"""Downloads with curl, which resume and are checked by their checksums."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Optional

from fairseq_sparse.errors import RecipeError
from fairseq_sparse.files import digest_of

_CANNOT_RESUME = 33  # curl's exit status if the server cannot continue the file
_NO_MORE = "416"  # HTTP status if the server has no more bytes
_CURL = "curl --disable --fail --location --globoff --continue-at - --write-out %{http_code}"
# HTTP statuses that may go away, and connections that are refused or stall, are tried again.
_CURL += " --retry 5 --retry-connrefused --connect-timeout 30 --speed-time 60 --speed-limit 1"


def download(address: str, file: Path, checksum: Optional[str] = None) -> None:
    """Download a file, as ``corpus download`` describes.

    A server may redirect to another address, but not out of encryption. A fetched file with another
    checksum (sha256 or md5) is removed; one that was there is not touched.
    """
    if not address.startswith(("http://", "https://")):
        raise RecipeError(f"{address}: not an http or https address")
    if file.is_dir():
        raise RecipeError(f"{file} is a folder: name a file in it")
    if file.exists():
        if _is_right(file, checksum):
            return
        raise RecipeError(f"{file} is there with another checksum: delete it to download it again")
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(file.name + ".part")
    restarted = False
    while True:
        begun = _size(part)
        status, no_more = _transfer(address, part)
        # Without a checksum, a file that has no more bytes may also be too long.
        if status == 0 and (checksum or not no_more) and _is_right(part, checksum):
            os.replace(part, file)
            return
        if status not in (0, _CANNOT_RESUME):
            if _size(part) > begun:
                continue  # the connection broke: go on from there
            raise RecipeError(f"{address}: curl ended with status {status} (see above)")
        part.unlink()
        if not begun or restarted:
            what = "the connection breaks" if status else f"its checksum is not {checksum}"
            raise RecipeError(f"{address}: {what}; the file was not kept")
        restarted = True  # what was there was of another file, or the server cannot continue it


def _transfer(address: str, part: Path) -> tuple[int, bool]:
    """Let curl continue ``part``; return its exit status, and whether there were no more bytes.

    The latter is a success, which curl's versions report differently.
    """
    protocols = "=https" if address.startswith("https://") else "=http,https"
    command = [*_CURL.split(), "--proto", protocols, "--proto-redir", protocols]
    command += ["--progress-bar"] if sys.stderr.isatty() else ["--silent", "--show-error"]
    try:
        done = subprocess.run([*command, "--output", str(part), address], stdout=subprocess.PIPE)
    except FileNotFoundError as error:
        raise RecipeError(f"curl is missing: install it, or fetch {address} by hand") from error
    no_more = done.stdout.decode().strip() == _NO_MORE
    return 0 if no_more else done.returncode, no_more


def _is_right(file: Path, checksum: Optional[str]) -> bool:
    if not checksum:
        return True
    return digest_of("md5" if len(checksum) == 32 else "sha256", file) == checksum.lower()


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0

"""Download a file with curl.

Until it is complete, the file is called FILE.part; run the same command again to continue it. A
file that is already there with the right checksum is kept, and one with another checksum refused.
"""

from __future__ import annotations

import argparse
import re
import signal
import sys
from functools import partial
from pathlib import Path

from fairseq_sparse.commands.common import command_parser
from fairseq_sparse.recipes.corpora.download import download


def _checksum(digits: int, text: str) -> str:
    if not re.fullmatch(f"[0-9a-fA-F]{{{digits}}}", text):
        raise argparse.ArgumentTypeError(f"{text!r} does not have {digits} hexadecimal digits")
    return text


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = command_parser("corpus download", __doc__)
    parser.add_argument("address", metavar="ADDRESS", help="http or https")
    parser.add_argument("file", metavar="FILE", type=Path)
    expected = parser.add_mutually_exclusive_group()
    for name, digits in (("sha256", 64), ("md5", 32)):
        kind = partial(_checksum, digits)
        expected.add_argument(f"--{name}", dest="checksum", type=kind, metavar="HEX")
    return parser.parse_args(arguments)


def run(options: argparse.Namespace) -> None:
    # Otherwise curl would go on writing when this process is terminated.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    download(**vars(options))

"""What the scripts' command lines have in common; it imports nothing heavy, so --help is quick."""

from __future__ import annotations

import argparse
import os
from pathlib import Path


def positive(text: str) -> int:
    """A whole number of at least 1, for argparse."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {value}")
    return value


def add_model_arguments(parser: argparse.ArgumentParser, several: bool = False) -> None:
    """The arguments that name models and the data to look at them on."""
    parser.add_argument("data", metavar="DATA", help="folder that fairseq-preprocess made")
    if several:
        parser.add_argument("--path", required=True, nargs="+", metavar="CKPT", help="models")
        parser.add_argument(
            "--names", nargs="+", metavar="NAME", help="what to call them (default: from --path)"
        )
    else:
        parser.add_argument("--path", required=True, metavar="CKPT", help="checkpoint of the model")
    parser.add_argument("--subset", default="test", help="part of the data (default: test)")
    parser.add_argument("--cpu", action="store_true", help="do not use a GPU")


def add_max_tokens(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--max-tokens", type=positive, default=4000, metavar="N", help="in a batch (default: 4000)"
    )


def output_file(text: str) -> Path:
    """A file to be written, in a folder that exists, for argparse."""
    path = Path(text)
    if not path.absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text}: there is no such folder")
    return path


def seed(text: str) -> int:
    """A number that NumPy's generators start from, for argparse."""
    value = int(text)
    if not 0 <= value < 2**32:
        raise argparse.ArgumentTypeError(f"{value} is not between 0 and 2^32 - 1")
    return value


def one_line(error: Exception) -> str:
    """What an exception says, in one line of readable length."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else text[:300] + "..."


def short_names(paths: list[str]) -> list[str]:
    """The parts of the paths that differ: ``runs/a/x.pt`` and ``runs/b/x.pt`` are a and b."""
    parts = [checkpoint.split(os.sep) for path in paths for checkpoint in path.split(":")]
    first = len(os.path.commonprefix(parts))
    last = len(os.path.commonprefix([part[first:][::-1] for part in parts]))

    def shorten(checkpoint: str) -> str:
        part = checkpoint.split(os.sep)
        return os.sep.join(part[first : len(part) - last])

    names = [" + ".join(map(shorten, path.split(":"))) for path in paths]
    return names if len(paths) > 1 and len(set(names) - {""}) == len(paths) else paths

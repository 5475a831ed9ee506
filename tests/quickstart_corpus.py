"""The synthetic corpus of the quickstart: how it is made, and what its files say."""

from __future__ import annotations

import json
from pathlib import Path

import make_corpus
from alignment import parse_talp

PARTS = make_corpus.SPLITS
NEW, LONGER = PARTS[3:]
SMALL = ["--train", "150", "--valid", "10", "--test", "10", "--held-out", "0"]


def make(folder: Path, *flags: str) -> Path:
    assert make_corpus.main([str(folder), *flags]) == 0
    return folder


def lines(folder: Path, name: str) -> list[str]:
    return (folder / name).read_text(encoding="utf-8").splitlines()


def tokens(folder: Path, language: str, *parts: str) -> list[list[str]]:
    """The sentences of the parts, or of all of them."""
    names = [f"{part}.tok.{language}" for part in parts or PARTS]
    return [line.split(" ") for name in names for line in lines(folder, name)]


def records(folder: Path, name: str) -> list[dict]:
    return [json.loads(line) for line in lines(folder, name)]


def pairs(folder: Path, part: str) -> list[tuple]:
    links = [parse_talp(line) for line in lines(folder, f"{part}.talp")]
    sides = (tokens(folder, language, part) for language in ("de", "en"))
    return list(zip(*sides, links, strict=True))

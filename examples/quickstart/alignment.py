"""Word alignments and their two written forms.

A link is a pair of positions, counted from zero: German token, English token. RWTH's talp form
counts from one and writes `3-2` for a sure link, `3p2` for a possible one. The Pharaoh form counts
from zero and has sure links only, for it cannot say that a link is merely possible.
"""

from __future__ import annotations

import re
from typing import NamedTuple

Link = tuple[int, int]


class Alignment(NamedTuple):
    """The sure and the possible links; no link is both."""

    sure: frozenset[Link]
    possible: frozenset[Link]


EMPTY = Alignment(frozenset(), frozenset())


def to_talp(alignment: Alignment) -> str:
    """The talp form, in the order of the German and then the English position."""
    links = [(link, "-") for link in alignment.sure] + [(link, "p") for link in alignment.possible]
    return " ".join(f"{source + 1}{kind}{target + 1}" for (source, target), kind in sorted(links))


def to_pharaoh(alignment: Alignment) -> str:
    """The Pharaoh form, in the order of the German and then the English position."""
    return " ".join(f"{source}-{target}" for source, target in sorted(alignment.sure))


def parse_talp(text: str) -> Alignment:
    """Read the talp form."""
    sure, possible = set(), set()
    for item in text.split():
        match = re.fullmatch(r"([1-9]\d*)([-p])([1-9]\d*)", item)
        if match is None:
            raise ValueError(f"not a link in talp form: {item!r} (expected 1-1 or 2p3)")
        (sure if match[2] == "-" else possible).add((int(match[1]) - 1, int(match[3]) - 1))
    return Alignment(frozenset(sure), frozenset(possible))

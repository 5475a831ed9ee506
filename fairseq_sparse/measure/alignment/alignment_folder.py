"""A folder of word alignments, one file of links for each head of a model.

    manifest.json                the settings of the extraction; written last
    source.txt, target.txt       the words that the links number, one sentence per line
    normal-layer1-head2.pharaoh  the links of one head, one sentence per line
    shifted-layer1-mean.pharaoh  the links of the mean of all heads; word_alignment.py explains
                                 normal and shifted
    parts/                       the parts done so far, while the folder is being made

The sentences are processed in parts. A part is written when it is complete, so that an interrupted
run resumes after the last one; at the end the parts are joined.
"""

import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from fairseq_sparse.files import read_json, replacing, write_json
from fairseq_sparse.measure.alignment import ALIGNMENT_KINDS

MANIFEST = "manifest.json"
WORDS = ("source.txt", "target.txt")


def link_files(settings: Mapping[str, Any]) -> list[str]:
    """Return the names of the files of links, in the order of :func:`word_links`; ``settings`` as
    in :class:`AlignmentFolder`."""
    layers, heads = len(settings["layers"]), len(settings["heads"]) - 1
    names = [*(f"head{head}" for head in range(1, heads + 1)), "mean"]
    return [
        f"{kind}-layer{layer}-{name}.pharaoh"
        for kind in ALIGNMENT_KINDS
        for layer in range(1, layers + 1)
        for name in names
    ]


def read_manifest(path: Path) -> dict[str, Any]:
    """Read the settings of a finished folder, and ``too_long``, the sentences that were too long.

    Raises:
        OSError: the manifest cannot be read.
        ValueError: the folder is not finished, or is not an alignment folder.
    """
    if (path / "parts").is_dir():
        raise ValueError(f"{path} is not finished: run fairseq-sparse align again")
    if not (path / MANIFEST).is_file():
        raise ValueError(f"{path} has no {MANIFEST}: fairseq-sparse align did not make it")
    settings = read_json(path / MANIFEST)
    lists = (settings.get(name) for name in ("layers", "heads", "too_long"))
    if not all(isinstance(x, list) for x in lists) or not {"hypothesis", "sentences"} <= set(
        settings
    ):
        raise ValueError(
            f"{path / MANIFEST} is damaged: run fairseq-sparse align into a new folder"
        )
    return settings


class AlignmentFolder:
    """An alignment folder, begun or finished.

    Args:
        path: the folder, created if it does not exist.
        settings: all that the links depend on, as stored in the manifest: ``layers`` and ``heads``,
            the numbers of all from 1, and ``mean``; ``checkpoint`` and ``data``, each with ``path``
            and ``sha256``, of which only ``sha256`` is compared; and others.

    Raises:
        OSError: the folder cannot be created.
        ValueError: the folder was begun with other settings, which the message names, or has
            files that were not made here.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any]):
        self.path, self.parts, self.settings = path, path / "parts", settings
        manifests = [x for x in (self.parts / MANIFEST, path / MANIFEST) if x.is_file()]
        for manifest in manifests:
            self._compare(read_json(manifest))
        # All that a run killed at the very start can leave behind.
        begun = {self.parts, *self.parts.glob(f"{MANIFEST}.*partial")}
        if not manifests and not begun.issuperset((*path.glob("*"), *self.parts.glob("*"))):
            raise ValueError(
                f"{path} has files that fairseq-sparse align did not make: choose another folder"
            )
        self.finished = (path / MANIFEST).is_file() and not self.parts.is_dir()
        if not self.finished:
            self.parts.mkdir(parents=True, exist_ok=True)
            write_json(self.parts / MANIFEST, dict(settings))

    def _compare(self, before: Mapping[str, Any]) -> None:
        def content(value):
            return value.get("sha256") if isinstance(value, dict) else value

        differences = [
            f"{name} was {_shown(before.get(name))}, now {_shown(value)}"
            for name, value in self.settings.items()
            if content(before.get(name)) != content(value)
        ]
        if differences:
            raise ValueError(
                f"{self.path} was made with other settings, {'; '.join(differences)}: "
                "choose another folder, or delete it"
            )

    def has_part(self, numbers: range) -> bool:
        """Return whether these sentences are done."""
        return self._part(numbers).is_file()

    def write_part(
        self, numbers: range, lines: Mapping[str, Sequence[str]], too_long: Sequence[int]
    ) -> None:
        """Write the results of some sentences.

        Args:
            numbers: the numbers of the sentences.
            lines: for each of :data:`WORDS` and :func:`link_files`, one line per sentence.
            too_long: the sentences whose lines of links are empty, being too long for the model.
        """
        write_json(self._part(numbers), {"too_long": list(too_long), "lines": dict(lines)})

    def finish(self, parts: Sequence[range]) -> list[int]:
        """Join all parts and return the numbers of the sentences that were too long."""
        names = [*WORDS, *link_files(self.settings)]
        too_long: list[int] = []
        with ExitStack() as stack:
            files = {name: stack.enter_context(replacing(self.path / name)) for name in names}
            for numbers in parts:
                part = read_json(self._part(numbers))
                too_long += part["too_long"]
                for name, lines in part["lines"].items():
                    files[name].writelines(f"{line}\n" for line in lines)
        write_json(self.path / MANIFEST, {**self.settings, "too_long": too_long})
        shutil.rmtree(self.parts)
        self.finished = True
        return too_long

    def _part(self, numbers: range) -> Path:
        return self.parts / f"{numbers[0]}-{numbers[-1]}.json"


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return f"{value.get('path')} (sha256 {str(value.get('sha256'))[:8]})"
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)

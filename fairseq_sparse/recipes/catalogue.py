"""The entries of ``entries/*.yaml``: data sets, variants, settings of papers, tables."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import yaml

from fairseq_sparse.errors import RecipeError

Entry = dict[str, Any]

FOLDER = Path(__file__).with_name("entries")
CONFIGS = ("cpu", "gpu")
# Top-level keys of the files that are no entries.
SECTIONS = ("bases", "files", "attentions", "papers")
_NAMES = {"datasets": "data set", "variants": "variant", "settings": "settings", "tables": "table"}


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """A loader that refuses a key given twice, of which YAML would drop the first."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            place = f"{key.start_mark.name}, line {key.start_mark.line + 1}"
            if not isinstance(key, yaml.ScalarNode):
                raise RecipeError(f"{place}: a list or a mapping is no key")
            if key.value in seen:
                raise RecipeError(f"{place}: {key.value} is there twice")
            seen.add(key.value)
        return super().construct_mapping(node, deep)


@functools.cache
def _document(kind: str) -> Entry:
    path = FOLDER / f"{kind}.yaml"
    with path.open(encoding="utf-8") as file:
        try:
            return _Loader(file).get_single_data()
        except yaml.YAMLError as error:
            raise RecipeError(f"{path} is not valid YAML: {error}") from error


def section(kind: str, name: str) -> Entry:
    """Return a top-level part of a file that has no entries, such as ``bases``."""
    return _document(kind).get(name, {})


@functools.cache
def entries(kind: str) -> dict[str, Entry]:
    """Return all entries of a kind (a file's name) in order, with their bases merged."""
    own = {name: entry for name, entry in _document(kind).items() if name not in SECTIONS}
    return {name: expand(kind, name, entry) for name, entry in own.items()}


def find(kind: str, name: str) -> Entry:
    """Return an entry by its name, with its bases merged."""
    return look_up(entries(kind), name, f"there is no {_NAMES[kind]}")


def expand(kind: str, name: str, entry: Entry) -> Entry:
    """Return an entry merged over its bases, which are in ``bases`` or other entries."""
    bases = entry.get("base", [])
    merged: Entry = {}
    for base in [bases] if isinstance(bases, str) else bases:
        known = {**_document(kind), **section(kind, "bases")}
        found = look_up(known, base, f"{kind}.yaml, {name}: there is no base")
        merged = _extend(merged, expand(kind, base, found))
    return _extend(merged, {key: value for key, value in entry.items() if key != "base"})


def merge(*layers: Mapping[str, Any]) -> Entry:
    """Return dictionaries merged deeply; the later wins, and nothing else than them is merged."""
    merged: Entry = {}
    for layer in layers:
        for key, value in layer.items():
            before = merged.get(key)
            both = isinstance(value, dict) and isinstance(before, dict)
            merged[key] = merge(before, value) if both else value
    return merged


def replace(value: Any, names: Mapping[str, str]) -> Any:
    """Return a value with ``{NAME}`` replaced in all its texts."""
    if isinstance(value, dict):
        return {key: replace(item, names) for key, item in value.items()}
    if isinstance(value, list):
        return [replace(item, names) for item in value]
    if isinstance(value, str):
        for name, text in names.items():
            value = value.replace(f"{{{name}}}", text)
    return value


def check_keys(
    kind: str, name: str, entry: Mapping[str, Any], known: Collection[str], where: str = ""
) -> None:
    """Check that an entry, or its part ``where``, has known keys only."""
    for key in entry:
        if key not in known:
            hint = suggestion(key, known)
            raise RecipeError(f"{kind}.yaml, {name}: unknown key {where}{key}{hint}")


def suggestion(name: str, known: Collection[str]) -> str:
    """Return the end of a message about an unknown name: similar names, or all."""
    names = [str(key) for key in known]
    close = difflib.get_close_matches(str(name), names)
    return f"; did you mean {' or '.join(close)}?" if close else f"; there are {', '.join(names)}"


def look_up(known: Mapping[str, Any], name: str, message: str) -> Any:
    """Return a value by its name; if there is none, the error begins with ``message``."""
    if name not in known:
        raise RecipeError(f"{message} {name!r}{suggestion(name, known)}")
    return known[name]


def _extend(base: Entry, entry: Entry) -> Entry:
    """Return an entry over its base; it also wins over the configurations of the base."""
    plain = {key: value for key, value in entry.items() if key not in CONFIGS}
    layers = {key: merge(plain, entry.get(key, {})) for key in CONFIGS if key in base}
    return merge(base, entry, layers)

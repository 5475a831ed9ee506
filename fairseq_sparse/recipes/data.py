"""The data of a run: from an entry of the catalogue, or the user's own files."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Optional

from fairseq_sparse.errors import RecipeError
from fairseq_sparse.recipes import catalogue
from fairseq_sparse.recipes.catalogue import Entry, suggestion
from fairseq_sparse.recipes.corpora.reading import read_lines
from fairseq_sparse.recipes.recipe import Corpus, Options, RawFile, Take

# Languages whose words Moses' rules do not find.
_UNSPACED = ("ja", "km", "lo", "my", "th", "yue", "zh")
# On a CPU, a corpus smaller than Multi30k, on which the recipe was chosen, gets more epochs, for as
# many updates of about 1,400 words.
_EPOCHS, _MOST_EPOCHS, _WORDS = 20, 200, 5_000 * 1_400
_HOLD_OUT = 20  # of so many pairs, one is for validation
_INFLECTION = re.compile(r".*/(?P<language>[^/]+)-(?:train-(?P<setting>[^-]+)|dev|test)")


def is_unspaced(language: str) -> bool:
    """Return whether a language is written without spaces between words."""
    return re.split("[-_]", language)[0] in _UNSPACED


def own_data(
    folder: Path,
    source: str,
    target: str = "",
    tokenized: Sequence[str] = (),
    separate: bool = False,
    hold_out: Optional[int] = None,
) -> Entry:
    """Return an entry for the user's own sentences, one a line, for :func:`resolve`.

    The folder has ``train.LANG``, ``test.LANG`` and perhaps, for validation, ``valid.LANG`` or
    ``dev.LANG``, each of them plain or as ``.gz``. Without ``target``, the text is for a language
    model, and ``train.LANG`` alone is enough. Languages that are ``separate`` share neither BPE nor
    dictionary nor embeddings. Small corpora of pairs get more epochs on a CPU.

    Raises:
        RecipeError: files are missing, a language without spaces is not ``tokenized``, or the name
            of a language has a dot.
    """
    languages = [source, target] if target else [source]
    for language in tokenized:
        if language not in languages:
            raise RecipeError(f"tokenised language {language!r}{suggestion(language, languages)}")
    for language in languages:
        if "." in language:
            ending = language.rpartition(".")[2]
            raise RecipeError(
                f"language {language!r} must not have a dot: rename its files to train.{ending}, "
                f"test.{ending}"
            )
        if is_unspaced(language) and language not in tokenized:
            raise RecipeError(
                f"{language} is written without spaces between words: split its text into words, "
                f"and say --tokenized {language}"
            )
    stems = {"train": ["train"], "valid": ["valid", "dev"], "test": ["test"]}
    found = {split: _files(folder, languages, names) for split, names in stems.items()}
    if hold_out and found["valid"]:
        raise RecipeError(f"--hold-out {hold_out}: {folder} has validation data of its own")
    needed = ["train", "test"] if target else ["train"]
    if not target and (found["valid"] or found["test"]):
        needed = list(found)
    for split in needed:
        if not found[split]:
            names = " and ".join(f"{split}.{language}" for language in languages)
            raise RecipeError(f"{folder} has no {names} (nor the same with .gz)")
    corpus: Entry = {
        "source": source,
        "take": {split: [" ".join(["text", *names])] for split, names in found.items() if names},
        "tokens": {language: "space" for language in tokenized},
        "hold_out": 0 if found["valid"] else hold_out or _HOLD_OUT,
    }
    entry: Entry = {"base": "own" if target else "own_text", "raw_dir": str(folder)}
    if target:
        corpus["target"] = target
        epochs = math.ceil(_WORDS / _count_words(folder, found["train"], _WORDS // _EPOCHS))
        entry["cpu"] = {"training": {"flags": {"max-epoch": min(epochs, _MOST_EPOCHS)}}}
    if target in tokenized:
        entry["decoding"] = {"score_flags": {"tokenize": "none"}}
    if separate:
        corpus |= {"separate_bpe": True, "joined_dictionary": False}
        shared = {"share-all-embeddings": False, "share-decoder-input-output-embed": True}
        entry["training"] = {"flags": shared}
    return entry | {"corpus": corpus}


def _count_words(folder: Path, names: Sequence[str], enough: int) -> int:
    """Return the number of words and ends of sentences of the longer side, at most ``enough``."""
    sides = [(len(line.split()) + 1 for line in read_lines(folder, name)) for name in names]
    counts = [0] * len(sides)
    for row in zip(*sides, strict=False):
        counts = [count + words for count, words in zip(counts, row, strict=True)]
        if max(counts) >= enough:
            return enough
    return max(*counts, 1)


def _files(folder: Path, languages: Sequence[str], stems: Sequence[str]) -> list[str]:
    """Return the names of a split's files by language, or an empty list if it has none."""
    for stem in stems:
        plain = [f"{stem}.{language}" for language in languages]
        both = [(own, name) for own in plain for name in (f"{own}.gz", own)]
        names = {own: name for own, name in both if (folder / name).is_file()}
        missing = [own for own in plain if own not in names]
        if names and missing:
            raise RecipeError(f"{folder} has neither {missing[0]} nor {missing[0]}.gz")
        if names:
            return list(names.values())
    return []


def corpus(dataset: str, section: Entry, options: Options, overrides: dict[str, str]) -> Corpus:
    """Return the data, from the section ``corpus`` of an entry, and overridden fields as text."""
    own = {"kind": "parallel", **section}
    if own["kind"] == "text":
        own["target"] = own["source"]
    if "target" not in own:
        raise RecipeError(f"{dataset}: corpus.target is missing")
    sides = own["source"], own["target"]
    own = catalogue.replace(own, {"source": sides[0], "target": sides[1]})
    own["take"] = tuple(
        take
        for split, rows in own.get("take", {}).items()
        for row in rows
        for take in _takes(split, row, *sides)
    )
    if own["kind"] != "inflection":
        own["tokens"] = {side: own.get("tokens", {}).get(side, "moses") for side in sides}
    if options.bpe_merges is not None:
        if own["kind"] == "inflection":
            raise RecipeError(f"--bpe-merges: {dataset} is split into characters")
        own["bpe_merges"] = options.bpe_merges
    if options.languages:
        if own["kind"] != "inflection":
            raise RecipeError(f"--languages: {dataset} has no choice of languages")
        if own.get("language_count"):
            raise RecipeError(f"--languages: {dataset} has all; {dataset}_part can have some")
        own["languages"] = options.languages
    own = catalogue.merge(own, _parsed(overrides))
    for language, kind in own.get("tokens", {}).items():
        if language not in sides:
            raise RecipeError(f"{dataset}: tokens of {language}: neither {' nor '.join(sides)}")
        if kind not in ("moses", "space", "jieba"):
            raise RecipeError(f"{dataset}: tokens of {language}: moses, space or jieba, not {kind}")
    for name in ("made_by", "remove_diacritics", "languages"):
        own[name] = tuple(own.get(name, ()))
    own["files"] = _raw_files(dataset, own) if "files" in own and not options.raw_dir else ()
    return Corpus(**own)


def _takes(split: str, row: str, source: str, target: str) -> list[Take]:
    """Return what FORMAT PLACE, or FORMAT PLACE PLACE, stands for: a file of sentences for each of
    the choices ``(A|B)``, of which ``()`` repeats the chosen one."""
    first = {"lang": source, "other": target, "side": "src"}
    second = {"lang": target, "other": source, "side": "ref"}
    choices = re.search(r"\(([^)]+)\)", row)
    takes = []
    for choice in choices[1].split("|") if choices else [""]:
        kind, *places = re.sub(r"\([^)]*\)", choice, row).split()
        sides = catalogue.replace(places[0], first), catalogue.replace(places[-1], second)
        takes.append(Take(split, kind, *sides))
    return takes


def _parsed(overrides: dict[str, str]) -> Entry:
    """Return overridden fields of the corpus as values of their types."""
    decided = ("kind", "source", "target")  # by the data set
    types = {field.name: field.type for field in fields(Corpus) if field.name not in decided}
    parsers = {
        "int": int,
        "float": float,
        "str": str,
        "bool": {"true": True, "false": False}.__getitem__,
        "tuple[str, ...]": lambda text: tuple(text.split(",")),
        "dict[str, str]": lambda text: dict(pair.split(":") for pair in text.split(",")),
    }
    parsed = {}
    for name, text in overrides.items():
        if types.get(name) not in parsers:
            known = [key for key, kind in types.items() if kind in parsers]
            raise RecipeError(f"--set corpus.{name}: cannot be set{suggestion(name, known)}")
        try:
            parsed[name] = parsers[types[name]](text)
        except (KeyError, ValueError):
            raise RecipeError(f"--set corpus.{name}={text}: not a {types[name]}") from None
    return parsed


def _raw_files(dataset: str, corpus: Entry) -> tuple[RawFile, ...]:
    """Return the files of the collection that are needed."""
    collections = catalogue.section("datasets", "files")
    collection = catalogue.look_up(collections, corpus["files"], f"{dataset}: there are no files")
    needed = {name for take in corpus["take"] for name in take.files}
    if missing := sorted(needed - collection["files"].keys()):
        raise RecipeError(f"datasets.yaml, {dataset}: {missing[0]} is not among its files")
    matches = filter(None, map(_INFLECTION.fullmatch, collection["files"]))
    known = dict.fromkeys(match["language"] for match in matches)
    for language in corpus["languages"]:
        if language not in known:
            raise RecipeError(
                f"--languages: {dataset} has no {language}{suggestion(language, known)}"
            )
    found = []
    for name, value in collection["files"].items():
        if (not needed or name in needed) and _is_wanted(name, corpus):
            default = collection.get("address", "")
            address, checksum = value if isinstance(value, list) else (default, value)
            found.append(RawFile(name, address.replace("{name}", name), checksum))
    return tuple(found)


def _is_wanted(name: str, corpus: Entry) -> bool:
    """Return whether a file is needed, which may be of one language of the inflection task."""
    match = _INFLECTION.fullmatch(name)
    if corpus["kind"] != "inflection" or not match:
        return True
    own_setting = match["setting"] in (None, corpus["setting"])
    return own_setting and (not corpus["languages"] or match["language"] in corpus["languages"])

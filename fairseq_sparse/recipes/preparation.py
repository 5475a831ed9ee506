"""The stage prepare: from raw files to the folder that fairseq-train reads."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from fairseq_sparse.errors import RecipeError
from fairseq_sparse.recipes.corpora.clean import LINE_BREAK
from fairseq_sparse.recipes.corpora.reading import raw_file
from fairseq_sparse.recipes.plan import CORES, Argument, Command, Stage
from fairseq_sparse.recipes.recipe import Corpus, Recipe

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SPLITS = ("train", "valid", "test")
# Fields of a corpus that do not change the prepared data.
_NOT_DATA = {"files", "made_by", "gold_alignment", "gold_words"}


def binary_files(recipe: Recipe, *subsets: str) -> tuple[Path, ...]:
    """Return the dictionaries and the sentences of subsets, such as ``train``, in binary format."""
    corpus, folder = recipe.corpus, recipe.binary
    if corpus.kind == "text":
        return (folder / "dict.txt", *(folder / f"{subset}.bin" for subset in subsets))
    sides = corpus.sides
    pair = "-".join(sides)
    return (
        *(folder / f"dict.{side}.txt" for side in sides),
        *(folder / f"{subset}.{pair}.{side}.bin" for subset in subsets for side in sides),
    )


def prepare(recipe: Recipe) -> Stage:
    """Return the stage that prepares the data."""
    corpus = recipe.corpus
    settings = {name: value for name, value in asdict(corpus).items() if name not in _NOT_DATA}
    if recipe.own_raw is None:
        settings["files"] = {file.name: file.checksum for file in corpus.files}
        settings["made_by"] = corpus.made_by[1:]
    make = _inflection if corpus.kind == "inflection" else _sentences
    long = ["test1"] if corpus.long_test else []
    return Stage(
        name="prepare",
        folder=recipe.data_dir,
        settings=settings,
        inputs=_own_files(recipe),
        outputs=binary_files(recipe, *SPLITS, *long),
        commands=(*_fetch(recipe), *make(recipe), *_to_binary(recipe)),
        changed="refuse",
    )


def _own_files(recipe: Recipe) -> tuple[Path, ...]:
    """Return the user's own raw files, which may differ from the published ones."""
    corpus, folder = recipe.corpus, recipe.own_raw
    if folder is None:
        if not corpus.files and not corpus.made_by:
            raise RecipeError(
                f"{recipe.dataset} has no files to download: give --raw-dir, the folder of them"
            )
        return ()
    if corpus.kind == "inflection":
        return _tables(folder, corpus)
    names = dict.fromkeys(name for take in corpus.take for name in take.files)
    return tuple(raw_file(folder, name) for name in names)


def _tables(folder: Path, corpus: Corpus) -> tuple[Path, ...]:
    """Return the tables of the shared task's languages, or its archive, in a folder."""
    name = re.compile(rf"(?P<language>.+)-(train-{corpus.setting}|dev|test)|(.+)[.]tar[.]gz")
    found = ((path, name.fullmatch(path.name)) for path in sorted(folder.rglob("*")))
    return tuple(
        path
        for path, match in found
        if match and (not corpus.languages or match["language"] in (None, *corpus.languages))
    )


def _fetch(recipe: Recipe) -> Iterable[Command]:
    """Yield the commands that download or make the raw files."""
    corpus, folder = recipe.corpus, recipe.raw
    if recipe.own_raw is not None:
        return
    # Without outputs, so that files that are there are no reason to refuse the stage.
    if corpus.made_by:
        program, *arguments = corpus.made_by
        if not (EXAMPLES / program).is_file():
            raise RecipeError(f"{recipe.dataset} needs a checkout: {EXAMPLES / program} is missing")
        argv = ("python", EXAMPLES / program, folder, *arguments)
        yield Command(argv, comment="make the raw text")
    for number, file in enumerate(corpus.files):
        kind = {64: "--sha256", 32: "--md5"}.get(len(file.checksum))
        check = (kind, file.checksum) if kind else ()
        yield Command(
            ("fairseq-sparse", "corpus", "download", file.address, folder / file.name, *check),
            comment="download" if number == 0 else "",
        )


def _inflection(recipe: Recipe) -> Iterable[Command]:
    """Yield the command that makes characters of the shared task's files."""
    corpus, folder = recipe.corpus, recipe.prepared
    argv: list[Argument] = ["fairseq-sparse", "corpus", "inflection", "--raw", recipe.raw]
    argv += ["--output-folder", folder, "--setting", corpus.setting]
    if corpus.languages:
        argv += ["--languages", *corpus.languages]
    if corpus.language_count:
        argv += ["--language-count", str(corpus.language_count)]
    outputs = [folder / "characters" / name for name in _names(SPLITS, corpus.sides)]
    yield Command(
        tuple(argv),
        outputs=(*outputs, folder / "text" / "test.tsv"),
        comment="one corpus of all languages: characters, with the language and tags in front",
    )


def _names(splits: Iterable[str], sides: Iterable[str]) -> list[str]:
    return [f"{split}.{side}" for split in splits for side in sides]


def _sentences(recipe: Recipe) -> Iterable[Command]:
    """Yield the commands from raw files to sentences of tokens or of BPE units."""
    corpus, folder = recipe.corpus, recipe.prepared
    sides = corpus.sides
    taken = [split for split in SPLITS if any(take.split == split for take in corpus.take)]
    text, tokens, clean = folder / "text", folder / "tokens", folder / "tokenized"
    yield _extract(recipe, folder / "pairs" if corpus.test_groups else text, taken)
    if corpus.test_groups:
        yield _split(corpus, folder / "pairs", text)
        taken = list(SPLITS)
    if all(corpus.tokens.get(side) == "space" for side in sides):
        tokens = text
    else:
        first = "split the sentences into tokens"
        for split in taken:
            for side in sides:
                yield _tokenise(corpus.tokens[side], side, text, tokens, split, first)
                first = ""
    yield _clean(corpus, text, tokens, clean)
    if corpus.bpe_merges:
        yield from _subwords(corpus, folder, clean)


def _extract(recipe: Recipe, text: Path, taken: list[str]) -> Command:
    corpus = recipe.corpus
    sides = corpus.sides
    argv: list[Argument] = ["fairseq-sparse", "corpus", "extract", "--raw", recipe.raw]
    argv += ["--output-folder", text, "--languages", *sides]
    if corpus.remove_diacritics:
        argv += ["--remove-diacritics", *corpus.remove_diacritics]
    for take in corpus.take:
        places = [take.source, take.target][: len(sides)]
        argv += ["--take", take.split, take.format, *places]
    outputs = tuple(text / name for name in _names(taken, sides))
    return Command(tuple(argv), outputs=outputs, comment="raw sentences, one a line")


def _split(corpus: Corpus, pairs: Path, text: Path) -> Command:
    """Return the command that splits pairs by groups of translations."""
    argv: list[Argument] = ["fairseq-sparse", "corpus", "split", "--input", pairs]
    argv += ["--output", text, "--languages", *corpus.sides]
    argv += ["--valid", str(corpus.valid_groups), "--test", str(corpus.test_groups)]
    argv += ["--references", str(corpus.references)]
    outputs = tuple(text / name for name in _names(SPLITS, corpus.sides))
    more = tuple(all_references(corpus, text / f"test.{corpus.target}")[1:])
    return Command(
        tuple(argv), outputs=(*outputs, *more), comment="no test sentence is in the training text"
    )


def all_references(corpus: Corpus, first: Path) -> list[Path]:
    """Return the files of all references of the test set, given that of the first."""
    more = range(2, corpus.references + 1)
    return [first, *(first.with_name(f"{first.name}.{number}") for number in more)]


def _tokenise(kind: str, side: str, text: Path, tokens: Path, split: str, comment: str) -> Command:
    """Return the command that splits the sentences of a language into tokens."""
    source, target = text / f"{split}.{side}", tokens / f"{split}.{side}"
    if kind == "moses":
        workers = ("-j", CORES) if split == "train" else ()
        argv: tuple[Argument, ...] = ("sacremoses", "-l", side, *workers, "-q", "tokenize", "-a")
        return Command(argv, stdin=(source,), stdout=target, comment=comment)
    if kind == "jieba":
        argv = ("python", "-m", "jieba", "-q", "-d", " ", source)
        return Command(argv, stdout=target, comment=comment)
    return Command(("cp", source, target), outputs=(target,), comment=comment)


def _clean(corpus: Corpus, text: Path, tokens: Path, clean: Path) -> Command:
    """Return the command that leaves out and holds out sentences."""
    sides = corpus.sides
    argv: list[Argument] = ["fairseq-sparse", "corpus", "clean", "--input", tokens]
    argv += ["--output-folder", clean, "--languages", *sides]
    if corpus.max_tokens:
        argv += ["--max-tokens", str(corpus.max_tokens)]
    if corpus.max_ratio:
        argv += ["--max-ratio", f"{corpus.max_ratio:g}"]
    if corpus.hold_out:
        argv += ["--hold-out", str(corpus.hold_out)]
    outputs = [clean / name for name in _names(SPLITS, sides)]
    if corpus.long_test:
        argv += ["--long-test", text]
        outputs += [folder / f"long.{side}" for folder in (clean, text) for side in sides]
    if corpus.paragraphs:
        argv += ["--paragraphs"]
    what = "leave out empty and overlong training pairs"
    if corpus.kind == "text":
        what = "one text a line"
    return Command(tuple(argv), outputs=tuple(outputs), comment=what)


def _subwords(corpus: Corpus, folder: Path, clean: Path) -> Iterable[Command]:
    """Yield the commands that learn BPE on the training text and apply it."""
    sides = corpus.sides
    keep: tuple[str, ...] = ()
    text = clean
    if corpus.paragraphs:
        keep = ("--glossaries", LINE_BREAK)
        text = folder / "words"
        for side in sides:
            argv = ("sed", f"s/ {LINE_BREAK} / /g", clean / f"train.{side}")
            yield Command(argv, stdout=text / f"train.{side}", comment="the words to learn BPE on")
    codes = {side: bpe_codes(corpus, folder, side) for side in sides}
    groups = [(side,) for side in sides] if corpus.separate_bpe else [sides]
    for group in groups:
        yield Command(
            ("subword-nmt", "learn-bpe", "-s", str(corpus.bpe_merges)),
            stdin=tuple(text / f"train.{side}" for side in group),
            stdout=codes[group[0]],
            comment="BPE" if group is groups[0] else "",
        )
    for name in _names(_splits(corpus), sides):
        side = name.rpartition(".")[2]
        yield Command(
            ("subword-nmt", "apply-bpe", "-c", codes[side], *keep),
            stdin=(clean / name,),
            stdout=folder / "bpe" / name,
        )


def bpe_codes(corpus: Corpus, folder: Path, side: str) -> Path:
    """Return the file of the merges of a language."""
    return folder / (f"bpe.codes.{side}" if corpus.separate_bpe else "bpe.codes")


def _splits(corpus: Corpus) -> tuple[str, ...]:
    return (*SPLITS, "long") if corpus.long_test else SPLITS


def _to_binary(recipe: Recipe) -> Iterable[Command]:
    """Yield the commands that binarise the sentences."""
    corpus, folder, target = recipe.corpus, recipe.prepared, recipe.binary
    units = folder / ("bpe" if corpus.bpe_merges else "tokenized")
    if corpus.kind == "inflection":
        units = folder / "characters"
    argv: list[Argument] = ["fairseq-preprocess"]
    if corpus.kind == "text":
        argv += ["--only-source"]
        names = {split: units / f"{split}.{corpus.source}" for split in SPLITS}
    else:
        argv += ["--source-lang", corpus.source, "--target-lang", corpus.target]
        if corpus.joined_dictionary:
            argv += ["--joined-dictionary"]
        names = {split: units / split for split in _splits(corpus)}
    argv += ["--trainpref", names["train"], "--validpref", names["valid"]]
    tests = [names["test"], *([names["long"]] if "long" in names else [])]
    argv += ["--testpref", ",".join(map(str, tests)), "--destdir", target, "--workers", CORES]
    # It refuses a folder with dictionaries, as an interrupted one has.
    yield Command(("rm", "-rf", target), comment="the binary format of fairseq")
    yield Command(tuple(argv))

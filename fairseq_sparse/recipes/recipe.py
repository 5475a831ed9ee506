"""Every setting of a run, in one frozen object, which is also its ``run.json``."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Optional, Union

# The flags of a command of fairseq: name without dashes -> value, or True for a flag without one.
Flags = dict[str, Union[str, int, float, bool]]


@dataclass(frozen=True)
class RawFile:
    """A file to download.

    Attributes:
        name: its name in the folder of raw files.
        address: http or https.
        checksum: sha256 (64 digits) or md5 (32); empty if none has been published.
    """

    name: str
    address: str
    checksum: str = ""


@dataclass(frozen=True)
class Take:
    """Sentences of a pair of files, which are added to a split.

    Attributes:
        split: ``train``, ``valid`` or ``test``.
        format: of the files, as ``corpus extract`` calls it: ``text``, ``seg``, ...
        source, target: FILE or ARCHIVE!MEMBER, in the folder of raw files; of a text without
            translation, both are the same.
    """

    split: str
    format: str
    source: str
    target: str

    @property
    def files(self) -> tuple[str, ...]:
        """The names of the files or archives."""
        return tuple(re.split("[!#]", place)[0] for place in (self.source, self.target))


@dataclass(frozen=True)
class Corpus:
    """The data: where they come from, and how they become the input of fairseq-preprocess.

    Attributes:
        kind: ``parallel``, ``inflection`` or ``text`` (for language models).
        source, target: languages, the endings of fairseq's files.
        files: what is downloaded; empty if a program makes them (``made_by``) or if they are the
            user's own.
        take: the sentences of each split; empty for ``inflection``.
        made_by: the arguments of a Python program in ``examples/`` that writes the raw files; its
            first argument is their folder.
        tokens: for each language ``moses``, ``space`` (already tokenised) or ``jieba``.
        remove_diacritics: languages whose text, references too, loses Romanian diacritics.
        max_tokens, max_ratio: training pairs with more tokens on a side, or more than so many times
            as many as on the other, are left out.
        long_test: whether what ``max_tokens`` leaves out is a second test set.
        hold_out: every N-th training pair (text: 1/N of the paragraphs at the end, twice) is held
            out for validation.
        valid_groups, test_groups: numbers of groups of translations, which the training pairs are
            split into (see ``corpora/groups.py``), that are held out; the other splits are empty.
        references: of a test sentence, with ``test_groups``.
        bpe_merges: 0 for whole tokens.
        separate_bpe: whether each language has merges of its own.
        joined_dictionary: whether both sides share a dictionary.
        paragraphs: of a text: whether lines between empty ones are one text.
        setting, languages: of ``inflection``: ``medium`` or ``high``, and the languages (empty:
            all that have training data of the setting).
        language_count: of ``inflection``: how many languages there must be, 0 for any number.
        gold_alignment, gold_words: files of the gold alignments of the test set, and of the words
            that they number (without ``.LANG``), in the folder of raw files; or empty.
    """

    kind: str
    source: str
    target: str
    files: tuple[RawFile, ...] = ()
    take: tuple[Take, ...] = ()
    made_by: tuple[str, ...] = ()
    tokens: dict[str, str] = field(default_factory=dict)
    remove_diacritics: tuple[str, ...] = ()
    max_tokens: int = 0
    max_ratio: float = 0.0
    long_test: bool = False
    hold_out: int = 0
    valid_groups: int = 0
    test_groups: int = 0
    references: int = 1
    bpe_merges: int = 0
    separate_bpe: bool = False
    joined_dictionary: bool = True
    paragraphs: bool = False
    setting: str = ""
    languages: tuple[str, ...] = ()
    language_count: int = 0
    gold_alignment: str = ""
    gold_words: str = ""

    @property
    def sides(self) -> tuple[str, ...]:
        """The languages of the text: its own, or those of source and target."""
        return (self.source,) if self.kind == "text" else (self.source, self.target)

    def tokenizer(self, side: str) -> str:
        """Return the --tokenizer with which fairseq restores, or reads, the text of a language."""
        return "space" if self.tokens.get(side) == "space" else "moses"


@dataclass(frozen=True)
class Model:
    """What distinguishes the runs of a table: output and attention.

    Attributes:
        output: ``--output-transform``.
        output_alpha: 1 softmax, 1.5 1.5-entmax and 1.5-ReLU, 2 sparsemax, or ``--output-alpha``.
        output_tau: ``--output-tau``, or empty.
        output_algorithm: ``--output-algorithm``.
        attention, attention_enc, attention_dec, attention_cross: the flags of these names;
            ``softmax``, and empty where the place follows ``attention``.
        attention_alpha: of entmax attention, by any of its names; 1 for softmax; None for others.
        flags: all flags of output, attention and loss, for fairseq-train.
    """

    output: str
    output_alpha: float
    output_tau: str = ""
    output_algorithm: str = "newton"
    attention: str = "softmax"
    attention_enc: str = ""
    attention_dec: str = ""
    attention_cross: str = ""
    attention_alpha: Optional[float] = 1.0
    flags: Flags = field(default_factory=dict)


@dataclass(frozen=True)
class Training:
    """fairseq-train, and what of it is kept.

    Attributes:
        flags: architecture, optimiser, schedule; not those of the model's output, attention and
            loss, of the task, of the batch and of the device.
        batch, unit: the batch of an update, whatever the number of devices, in ``tokens`` (of the
            longer side, as fairseq counts them) or ``sentences``.
        device_batch: what one device holds at once, in tokens or sentences.
        checkpoints: ``last`` (the average of the last epochs), ``updates`` (the average of the last
            checkpoints saved by updates) or ``best``.
        average: number of checkpoints in the average.
        exponential: whether the exponential average of ``--store-ema`` is used.
    """

    flags: Flags
    batch: int
    unit: str
    device_batch: int
    checkpoints: str = "last"
    average: int = 1
    exponential: bool = False


@dataclass(frozen=True)
class Decoding:
    """Decoding, scoring and analysis of the test set.

    Attributes:
        flags: of fairseq-generate (of language models: of fairseq-interactive, which samples).
        score: ``bleu``, ``accuracy`` (inflection) or ``measures`` (language models).
        score_flags: of ``fairseq-sparse score``.
        max_tokens: of the analyses.
        validation: whether the validation set is analysed as well, between tokens.
        evaluate: flags of fairseq-eval-lm.
        prompts: of language models: texts to continue.
    """

    flags: Flags
    score: str = "bleu"
    score_flags: Flags = field(default_factory=dict)
    max_tokens: int = 4000
    validation: bool = False
    evaluate: Flags = field(default_factory=dict)
    prompts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Recipe:
    """A run: data set, model and training, and where it is.

    Attributes:
        dataset, variant, settings: names in the catalogue; settings may be empty.
        config: ``cpu`` or ``gpu``.
        label: what tables call the model; empty for the variant's name.
        note: what a reader of its scores must know.
        seed: of the training.
        task: flags of the task, for every command of fairseq that needs one.
        data_dir, run_dir: absolute.
        raw_dir: a folder of the user's that has the raw files, or None to download them.
    """

    dataset: str
    variant: str
    settings: str
    config: str
    seed: int
    label: str
    note: str
    task: Flags
    corpus: Corpus
    model: Model
    training: Training
    decoding: Decoding
    data_dir: Path
    run_dir: Path
    raw_dir: Optional[Path] = None

    @property
    def prepared(self) -> Path:
        """The folder of the prepared data."""
        return self.data_dir / "prepared"

    @property
    def binary(self) -> Path:
        """The folder that fairseq-preprocess writes."""
        return self.prepared / "bin"

    @property
    def own_raw(self) -> Optional[Path]:
        """The user's folder of raw files; None if they are downloaded or made here."""
        return None if self.corpus.made_by else self.raw_dir

    @property
    def raw(self) -> Path:
        """The folder of the raw files."""
        return self.own_raw or self.data_dir / "raw"

    @property
    def score_file(self) -> Path:
        """The file of the test set's score."""
        return self.run_dir / f"{self.decoding.score}.json"

    @property
    def device(self) -> list[str]:
        """The flag of the device."""
        return ["--cpu"] if self.config == "cpu" else []

    def as_json(self) -> dict[str, Any]:
        """Return what ``run.json`` has: all fields, with paths as text."""
        return {
            name: str(value) if isinstance(value, Path) else value
            for name, value in asdict(self).items()
        }

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Recipe:
        """Return the recipe in a ``run.json``; fields of another version are an error.

        Raises:
            TypeError: a field is missing, or unknown.
        """
        corpus = dict(content["corpus"])
        corpus["files"] = [RawFile(**file) for file in corpus["files"]]
        corpus["take"] = [Take(**take) for take in corpus["take"]]
        parts = {"corpus": Corpus(**_with_tuples(corpus)), "model": Model(**content["model"])}
        parts |= {"training": Training(**content["training"])}
        parts |= {"decoding": Decoding(**_with_tuples(content["decoding"]))}
        folders = ("data_dir", "run_dir", "raw_dir")
        paths = {name: Path(content[name]) if content[name] else None for name in folders}
        return cls(**{**content, **parts, **paths})


def _with_tuples(content: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(x) if isinstance(x, list) else x for key, x in content.items()}


@dataclass(frozen=True)
class Options:
    """What the command line, or a row of a table, may change in an entry of the catalogue.

    None and empty values change nothing.

    Attributes:
        settings: a paper's hyperparameters, over those of the data set.
        attention, ..., attention_cross: the flags of these names; any goes with any output.
        epochs, updates: ``--max-epoch`` and ``--max-update``.
        batch, device_batch: in the unit of the data set's batch.
        overrides: of ``--set``: a flag of fairseq-train by its name, of fairseq-generate as
            ``generate.FLAG``, a field of the corpus as ``corpus.FIELD``; later than all else.
        raw_dir, data_dir, run_dir: folders in place of the default ones.
    """

    settings: str = ""
    config: str = "cpu"
    seed: int = 1
    attention: str = ""
    attention_enc: str = ""
    attention_dec: str = ""
    attention_cross: str = ""
    output_alpha: Optional[float] = None
    attention_alpha: Optional[float] = None
    output_tau: str = ""
    output_algorithm: str = ""
    label_smoothing: Optional[float] = None
    epochs: Optional[int] = None
    updates: Optional[int] = None
    batch: Optional[int] = None
    device_batch: Optional[int] = None
    average: Optional[int] = None
    bpe_merges: Optional[int] = None
    languages: tuple[str, ...] = ()
    overrides: dict[str, str] = field(default_factory=dict)
    raw_dir: Optional[Path] = None
    data_dir: Optional[Path] = None
    run_dir: Optional[Path] = None

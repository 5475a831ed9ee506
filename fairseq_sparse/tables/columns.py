"""The results of the recipes' runs side by side, from their ``summary.json``."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple, Optional

from fairseq_sparse.files import read_json

Summary = dict[str, Any]

_REMEDY = "make it again with the stage analyze"


@dataclass(frozen=True)
class Quantity:
    """The quantity behind a figure: two figures can be compared only if it is the same.

    Attributes:
        metric: a column of ``COLUMNS``, or one of ``METRICS``.
        split: ``train``, ``valid`` or ``test``; None for figures that need no data.
        languages: number of languages averaged over, in inflection.
    """

    metric: str
    split: Optional[str]
    languages: Optional[int] = None


# Names of metrics, precise enough to tell them apart.
METRICS = {
    "bleu": "detokenised, cased sacreBLEU (13a)",
    "tokenized_bleu": "tokenised BLEU",
    "word_accuracy": "word accuracy",
    "empty_is_best": "p(empty) > p(best)",
    "training_speed": "training speed as a ratio to softmax",
    "decoding_speed": "decoding speed as a ratio to softmax",
    "decoding_speed_alone": "decoding speed, one sentence at a time, as a ratio to softmax",
    "hours": "hours of training",
    "minutes": "minutes of training",
}


class Shown(Enum):
    """When a table has a column that was not asked for."""

    ALWAYS = "always"
    IF_KNOWN = "if a run has a value"
    NEVER = "never"


class Column(NamedTuple):
    """A column of tables of runs.

    Attributes:
        heading: its heading.
        path: where its value is in ``summary.json``; attention has one for each of its places.
        format: the format of the value.
        shown: when a table has the column unasked.
        of_texts: whether the default table of language models has it instead.
        unit: the unit of the heading, as a multiple of that in ``summary.json``.
        metric: what it measures, if that is not the name of the column; see :class:`Quantity`.
        split: on what it is measured; see :class:`Quantity`.
        spread: whether means over seeds have their deviation beside them.
    """

    heading: str
    path: str
    format: str
    shown: Shown = Shown.ALWAYS
    of_texts: bool = False
    unit: int = 1
    metric: Optional[str] = None
    split: Optional[str] = "test"
    spread: bool = False


_IF_KNOWN, _NEVER = Shown.IF_KNOWN, Shown.NEVER


def _of_validation(what: str, path: str, form: str, metric: str) -> Column:
    """Return a column for a measure of the validation set."""
    heading = f"{what}, validation set"
    return Column(heading, f"valid.{path}", form, _NEVER, metric=metric, split="valid")


COLUMNS = {
    "variant": Column("variant", "variant", "{}", of_texts=True),
    "bleu": Column("BLEU", "bleu.bleu", "{:.2f}", _IF_KNOWN, spread=True),
    "chrf": Column("chrF2", "bleu.chrf", "{:.2f}", _NEVER, spread=True),
    "tokenized_bleu": Column(
        "BLEU of tokens", "bleu.tokenized_bleu", "{:.2f}", _NEVER, spread=True
    ),
    "lowercased_bleu": Column(
        "BLEU of lower-cased tokens", "bleu.lowercased_bleu", "{:.2f}", _NEVER, spread=True
    ),
    "long_bleu": Column("BLEU of long sentences", "long.bleu", "{:.2f}", _NEVER, spread=True),
    "valid_accuracy": Column(
        "validation accuracy (%)",
        "training.valid.accuracy",
        "{:.2f}",
        _NEVER,
        metric="accuracy",
        split="valid",
        spread=True,
    ),
    "word_accuracy": Column(
        "word accuracy (%)", "inflection.accuracy", "{:.2f}", _IF_KNOWN, spread=True
    ),
    "edit_distance": Column(
        "edit distance", "inflection.edit_distance", "{:.2f}", _IF_KNOWN, spread=True
    ),
    "eps_ppl": Column("ε-perplexity", "test.eps_ppl", "{:.1f}", _IF_KNOWN, of_texts=True),
    "best_eps_ppl": Column(
        "ε-perplexity, best ε", "test.best_eps_ppl", "{:.1f}", _IF_KNOWN, of_texts=True
    ),
    "sparsemax_score": Column(
        "sparsemax score", "test.sparsemax_score", "{:.4f}", _IF_KNOWN, of_texts=True
    ),
    "js_divergence": Column(
        "JS divergence", "test.js_divergence", "{:.4f}", _IF_KNOWN, of_texts=True
    ),
    "nonzeros": Column("nonzeros", "test.nonzeros", "{:.1f}", of_texts=True),
    "valid_nonzeros": _of_validation("nonzeros", "nonzeros", "{:.1f}", "nonzeros"),
    "valid_attended": _of_validation(
        "attended positions", "attention.cross.nonzeros", "{:.2f}", "attended"
    ),
    "valid_single": _of_validation(
        "a single hypothesis", "search.single", "{:.1%}", "single_hypothesis"
    ),
    "valid_exact": _of_validation("beam proven exact", "search.exact", "{:.1%}", "proven_exact"),
    "valid_optimal": _of_validation(
        "first proven best", "search.optimal", "{:.1%}", "proven_optimal"
    ),
    "tau": Column("τ", "test.tau", "{:.3f}", _NEVER, split="train"),
    "prob_sum": Column("Σp", "test.prob_sum", "{:.3f}"),
    "gold_zero": Column("gold at p=0 (%)", "test.gold_zero", "{:.1f}", of_texts=True),
    "accuracy": Column("accuracy (%)", "test.accuracy", "{:.1f}"),
    "sparsity": Column("zeros in attention (%)", "attention.sparsity", "{:.1f}"),
    "null": Column("null attention (%)", "attention.null", "{:.1f}"),
    "first": Column("attention on the first token (%)", "attention.first", "{:.1f}", _NEVER),
    "eos": Column("attention on EOS (%)", "attention.eos", "{:.1f}", _NEVER),
    "aer": Column(
        "AER, best layer by the test set", "alignment.aer", "{:.3f}", _NEVER, spread=True
    ),
    "aol": Column("AER, mean of layers", "alignment.aol", "{:.3f}", _NEVER, spread=True),
    "optimal": Column(
        "proven optimal", "generation.optimal", "{:.1%}", _NEVER, metric="proven_optimal"
    ),
    "empty": Column("empty", "bleu.empty_translations", "{:.4g}", _IF_KNOWN),
    "empty_is_best": Column(
        "p(empty) > p(best)", "empty.empty_is_best", "{:.2%}", _NEVER, spread=True
    ),
    "empty_is_impossible": Column(
        "p(empty) = 0", "empty.empty_is_impossible", "{:.2%}", _NEVER, spread=True
    ),
    "parameters": Column(
        "parameters", "training.parameters", "{:,.0f}", _NEVER, of_texts=True, split=None
    ),
    "updates": Column("updates", "training.updates", "{:,.0f}", of_texts=True, split="train"),
    "words_per_second": Column(
        "words/s",
        "training.words_per_second",
        "{:,.0f}",
        of_texts=True,
        metric="training_speed",
        split="train",
    ),
    "training": Column(
        "training (min)",
        "training.seconds",
        "{:.1f}",
        of_texts=True,
        unit=60,
        metric="minutes",
        split="train",
    ),
    "hours": Column("training (h)", "training.seconds", "{:.2f}", _NEVER, unit=3600, split="train"),
    "watt_hours": Column("energy (Wh)", "training.watt_hours", "{:,.1f}", _IF_KNOWN, split="train"),
    "sentences_per_second": Column(
        "decoding (sentences/s)",
        "generation.sentences_per_second",
        "{:.1f}",
        metric="decoding_speed",
    ),
}
# The parts of scripts/benchmark/training_step.py and decoding.py that measure these speeds.
SPEEDS = {"words_per_second": "training", "sentences_per_second": "beam"}

_CONDITIONS = (
    ("data", "dataset"),
    ("note on the data", "dataset_note"),
    ("sacreBLEU", "bleu.signature"),
    ("CPU", "hardware.cpu"),
    ("CPU threads", "hardware.threads"),
    ("GPUs", "hardware.gpus"),
    ("versions", "versions"),
)


_TEXTS = ("variant", "variant_name", "settings", "dataset", "bleu.signature", "empty.subset")


def read_summary_file(path: Path) -> Summary:
    """Read a ``summary.json``; its figures are numbers.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not a summary; the message names the file and the field.
    """
    summary = read_json(path)
    fields = dict.fromkeys(_TEXTS, str)
    places = summary.get("attention")
    for name in (column.path for column in COLUMNS.values()):
        first, _, rest = name.partition(".")
        if first == "attention":
            fields["attention"] = dict
            for place in places if isinstance(places, dict) else ():
                fields[f"attention.{place}.{rest}"] = (int, float)
        else:
            fields.setdefault(name, (int, float))
    fields["inflection.languages"] = (list, dict)
    for field, kind in fields.items():
        value: Any = summary
        for name in field.split("."):
            if value is not None and not isinstance(value, dict):
                raise ValueError(f"{path}: {name} of {field} is missing: {_REMEDY}")
            value = None if value is None else value.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, kind)):
            raise ValueError(f"{path}: {field} is {value!r:.40}, of another type: {_REMEDY}")
    return summary


def look_up(summary: Summary, path: str) -> Any:
    """Return the value at a dotted path, or None."""
    value: Any = summary
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def number(summary: Summary, column: str) -> Any:
    """Return what a run has in a column of a single number, in the unit of its heading, or None."""
    value = look_up(summary, COLUMNS[column].path)
    unit = COLUMNS[column].unit
    return value / unit if unit != 1 and value is not None else value


def quantity_of(summary: Summary, column: str) -> Quantity:
    """Return what a column of a run's summary measures.

    BLEU on tokens (``tok:none`` in the signature) is a different metric from detokenised BLEU, and
    so is BLEU without case, or with any other tokeniser than 13a.
    """
    if column == "bleu":
        parts = (look_up(summary, "bleu.signature") or "").split("|")
        if "case:lc" in parts or "c:lc" in parts:
            return Quantity("lower-cased BLEU", "test")
        tokeniser = next((part for part in parts if part.startswith("tok:")), "tok:?")
        names = {"tok:13a": "bleu", "tok:none": "tokenized_bleu"}
        return Quantity(names.get(tokeniser, f"BLEU ({tokeniser})"), "test")
    if column == "word_accuracy":
        return Quantity(column, "test", len(look_up(summary, "inflection.languages") or ()) or None)
    if column in ("empty_is_best", "empty_is_impossible"):
        return Quantity(column, look_up(summary, "empty.subset") or "test")
    return Quantity(COLUMNS[column].metric or column, COLUMNS[column].split)


def columns_of(summaries: Sequence[Summary]) -> list[str]:
    """Return the names in ``COLUMNS`` of a table's default columns."""
    if all(look_up(summary, "test.eps_ppl") is not None for summary in summaries):
        return [name for name, column in COLUMNS.items() if column.of_texts]
    return [
        name
        for name, column in COLUMNS.items()
        if column.shown is Shown.ALWAYS
        or column.shown is Shown.IF_KNOWN
        and any(look_up(summary, column.path) is not None for summary in summaries)
    ]


def cell(summary: Summary, name: str, baseline: Optional[Summary] = None) -> str:
    """Return one cell of the table, ``-`` if unknown; speeds have their ratio to the baseline's.

    Args:
        summary: the summary of a run, perhaps with results of the benchmarks in ``measured``.
        name: a key of ``COLUMNS``.
        baseline: the summary that the speed is compared with.
    """
    path, form = COLUMNS[name].path, COLUMNS[name].format
    if path.startswith("attention."):
        rate = path.removeprefix("attention.")
        places = summary.get("attention", {}).values()
        rates = [place[rate] for place in places if rate in place]
        return " / ".join(form.format(100 * value) for value in rates) or "-"
    measured = summary.get("measured", {}).get(name)
    if measured:  # side by side: the ratio is the median of several rounds
        text = form.format(measured["rate"])
        if baseline is None:
            return f"{text} ({measured['speed']:.2f})"
        base = baseline["measured"].get(name)
        if base is None or base["file"] != measured["file"]:  # ratios to different models
            return text
        return f"{text} ({measured['speed'] / base['speed']:.2f})"
    value = number(summary, name)
    if value is None:
        return "-"
    if name == "variant":
        value = summary.get("variant_name") or value
        if summary.get("settings"):
            value = f"{value}, settings of {summary['settings']}"
    text = form.format(value)
    if name not in SPEEDS:
        return text
    base = look_up(baseline, path) if baseline else None
    return f"{text} ({value / base:.2f})" if base else text


def conditions(summaries: Sequence[Summary]) -> list[tuple[str, str]]:
    """Return the known conditions of the figures as pairs of a name and a text."""
    found = []
    for label, path in _CONDITIONS:
        values = {_describe(look_up(summary, path)) for summary in summaries} - {""}
        if values:
            found.append((label, "; ".join(sorted(values))))
    return found


def _describe(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {version}" for name, version in value.items())
    if isinstance(value, list):
        return ", ".join(str(item) for item in value)
    return str(value or "")

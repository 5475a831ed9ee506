"""The results of the recipes' runs side by side, from their ``summary.json``."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Optional

Summary = dict[str, Any]


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


class Column(NamedTuple):
    """A column of tables of runs.

    Attributes:
        heading: its heading.
        path: where its value is in a summary; attention has one for each of its places.
        format: the format of the value.
        metric: what it measures, if that is not the name of the column; see :class:`Quantity`.
        split: on what it is measured; see :class:`Quantity`.
        default: whether a table has the column unasked, if a run has a value.
        spread: whether means over seeds have their deviation beside them.
        unit: the unit of the heading, as a multiple of that in the summary.
    """

    heading: str
    path: str
    format: str
    metric: Optional[str] = None
    split: Optional[str] = "test"
    default: bool = False
    spread: bool = False
    unit: int = 1

    @property
    def rate(self) -> str:
        """The rate that each place of attention has, or nothing for other columns."""
        first, _, rest = self.path.partition(".")
        return rest if first == "attention" and "." not in rest else ""


COLUMNS = {
    "run": Column("run", "run", ""),
    "variant": Column("variant", "variant", "", default=True),
    "bleu": Column("BLEU", "bleu.bleu", ".2f", default=True, spread=True),
    "chrf": Column("chrF2", "bleu.chrf", ".2f", spread=True),
    "tokenized_bleu": Column("BLEU of tokens", "bleu.tokenized_bleu", ".2f", spread=True),
    "lowercased_bleu": Column(
        "BLEU of lower-cased tokens", "bleu.lowercased_bleu", ".2f", spread=True
    ),
    "long_bleu": Column("BLEU of long sentences", "long.bleu", ".2f", spread=True),
    "valid_accuracy": Column(
        *("validation accuracy (%)", "training.valid.accuracy", ".2f", "accuracy", "valid"),
        spread=True,
    ),
    "word_accuracy": Column(
        "word accuracy (%)", "inflection.accuracy", ".2f", default=True, spread=True
    ),
    "edit_distance": Column(
        "edit distance", "inflection.edit_distance", ".2f", default=True, spread=True
    ),
    "eps_ppl": Column("ε-perplexity", "test.eps_ppl", ".1f", default=True),
    "best_eps_ppl": Column("ε-perplexity, best ε", "test.best_eps_ppl", ".1f", default=True),
    "sparsemax_score": Column("sparsemax score", "test.sparsemax_score", ".4f", default=True),
    "js_divergence": Column("JS divergence", "test.js_divergence", ".4f", default=True),
    "nonzeros": Column("nonzeros", "test.nonzeros", ".1f", default=True),
    "valid_nonzeros": Column(
        "nonzeros, validation set", "valid.nonzeros", ".1f", "nonzeros", "valid"
    ),
    "valid_attended": Column(
        *("attended positions, validation set", "valid.attention.cross.nonzeros", ".2f"),
        *("attended", "valid"),
    ),
    "valid_single": Column(
        *("a single hypothesis, validation set", "valid.search.single", ".1%"),
        *("single_hypothesis", "valid"),
    ),
    "valid_exact": Column(
        *("beam proven exact, validation set", "valid.search.exact", ".1%"),
        *("proven_exact", "valid"),
    ),
    "valid_optimal": Column(
        *("first proven best, validation set", "valid.search.optimal", ".1%"),
        *("proven_optimal", "valid"),
    ),
    "tau": Column("τ", "test.tau", ".3f", split="train"),
    "prob_sum": Column("Σp", "test.prob_sum", ".3f", default=True),
    "gold_zero": Column("gold at p=0 (%)", "test.gold_zero", ".1f", default=True),
    "accuracy": Column("accuracy (%)", "test.accuracy", ".1f", default=True),
    "sparsity": Column("zeros in attention (%)", "attention.sparsity", ".1f", default=True),
    "null": Column("null attention (%)", "attention.null", ".1f", default=True),
    "attended": Column("attended positions", "attention.cross.nonzeros", ".2f"),
    "first": Column("attention on the first token (%)", "attention.first", ".1f"),
    "eos": Column("attention on EOS (%)", "attention.eos", ".1f"),
    "aer": Column("AER, best layer by the test set", "alignment.aer", ".3f", spread=True),
    "aol": Column("AER, mean of layers", "alignment.aol", ".3f", spread=True),
    "optimal": Column("proven optimal", "generation.optimal", ".1%", "proven_optimal"),
    "empty": Column("empty", "bleu.empty_translations", ".4g", default=True),
    "empty_is_best": Column("p(empty) > p(best)", "empty.empty_is_best", ".2%", spread=True),
    "empty_is_impossible": Column("p(empty) = 0", "empty.empty_is_impossible", ".2%", spread=True),
    "parameters": Column("parameters", "training.parameters", ",.0f", split=None),
    "updates": Column("updates", "training.updates", ",.0f", split="train", default=True),
    "words_per_second": Column(
        "words/s", "training.words_per_second", ",.0f", "training_speed", "train"
    ),
    "training": Column(
        *("training (min)", "training.seconds", ".1f", "minutes", "train"), default=True, unit=60
    ),
    "hours": Column("training (h)", "training.seconds", ".2f", split="train", unit=3600),
    "watt_hours": Column("energy (Wh)", "training.watt_hours", ",.1f", split="train", default=True),
    "sentences_per_second": Column(
        "decoding (sentences/s)", "generation.sentences_per_second", ".1f", "decoding_speed"
    ),
}
# The parts of scripts/benchmark/training_step.py and decoding.py that measure these speeds.
SPEEDS = {"words_per_second": "training", "sentences_per_second": "beam"}

_CONDITIONS = (
    ("data", "dataset"),
    ("note on the data", "dataset_note"),
    ("sacreBLEU", "bleu.signature"),
    ("attention measured between", "attention_between"),
    ("CPU", "hardware.cpu"),
    ("CPU threads", "hardware.threads"),
    ("GPUs", "hardware.gpus"),
    ("versions", "versions"),
)


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


def values_of(summary: Summary, columns: Sequence[str]) -> dict[str, Any]:
    """Return the figures of a run; attention has one for each of its places."""
    values = {name: number(summary, name) for name in columns}
    for name in columns:
        if rate := COLUMNS[name].rate:
            places = summary.get("attention", {})
            values[name] = {place: part.get(rate) for place, part in places.items()} or None
        elif measured := summary.get("measured", {}).get(name):
            values[name] = measured["rate"]
    if "variant" in columns:
        values["variant"] = cell(summary, "variant")
    return values


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
    """Return the names in ``COLUMNS`` of a table's default columns: those for which a run has a
    value, and speeds only if they were measured side by side."""
    return [
        name
        for name, column in COLUMNS.items()
        if any(
            name in summary.get("measured", ()) or column.default and cell(summary, name) != "-"
            for summary in summaries
        )
    ]


def cell(summary: Summary, name: str, baseline: Optional[Summary] = None) -> str:
    """Return one cell of the table, ``-`` if unknown; speeds have their ratio to the baseline's.

    Args:
        summary: of a run, perhaps with results of the benchmarks in ``measured``.
        name: a key of ``COLUMNS``.
    """
    form = COLUMNS[name].format
    if name == "run":
        return summary.get("run", "-")
    if name == "variant":
        value = summary.get("variant_name") or summary.get("variant") or summary.get("run", "-")
        return f"{value}, settings of {summary['settings']}" if summary.get("settings") else value
    if rate := COLUMNS[name].rate:
        places = summary.get("attention", {}).values()
        rates = [format(100 * place[rate], form) for place in places if rate in place]
        return " / ".join(rates) or "-"
    measured = summary.get("measured", {}).get(name)
    if measured:  # side by side: the ratio is the median of several rounds
        base = baseline["measured"].get(name) if baseline else {**measured, "speed": 1}
        text = format(measured["rate"], form)
        if base is None or base["file"] != measured["file"]:  # ratios to different models
            return text
        return f"{text} ({measured['speed'] / base['speed']:.2f})"
    value = number(summary, name)
    if value is None:
        return "-"
    text = format(value, form)
    base = number(baseline, name) if baseline and name in SPEEDS else None
    return f"{text} ({value / base:.2f})" if base else text


def conditions(summaries: Sequence[Summary], columns: Sequence[str] = ()) -> list[tuple[str, str]]:
    """Return the known conditions of the figures, and remarks that some columns need, as pairs of a
    name and a text."""
    found = []
    for label, path in _CONDITIONS:
        values = {_describe(look_up(summary, path)) for summary in summaries} - {""}
        if values:
            found.append((label, "; ".join(sorted(values))))
    improving = [part for part in summaries if look_up(part, "training.improving")]
    if improving:
        names = [f"{part.get('run')} ({part['training']['improving']})" for part in improving]
        found.append(("still improving at the end of training", ", ".join(names)))
    logged = [name for name in SPEEDS if name in columns]
    if any(
        number(part, name) and name not in part.get("measured", ())
        for part in summaries
        for name in logged
    ):
        text = "from the logs: wall clock of a machine that may have had other work to do; "
        found.append(("speeds", f"{text}scripts/benchmark measures side by side"))
    return found


def _describe(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {version}" for name, version in value.items())
    if isinstance(value, list):
        return ", ".join(str(item) for item in value)
    return str(value or "")

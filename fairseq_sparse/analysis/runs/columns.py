"""The results of the recipes' runs side by side, from their ``summary.json``."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Optional

Summary = dict[str, Any]


@dataclass(frozen=True)
class Measure:
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

# name: heading, path in summary.json, format; attention has a value for each of its places
COLUMNS = {
    "variant": ("variant", "variant", "{}"),
    "bleu": ("BLEU", "bleu.bleu", "{:.2f}"),
    "chrf": ("chrF2", "bleu.chrf", "{:.2f}"),
    "tokenized_bleu": ("BLEU of tokens", "bleu.tokenized_bleu", "{:.2f}"),
    "lowercased_bleu": ("BLEU of lower-cased tokens", "bleu.lowercased_bleu", "{:.2f}"),
    "long_bleu": ("BLEU of long sentences", "long.bleu", "{:.2f}"),
    "valid_accuracy": ("validation accuracy (%)", "training.valid.accuracy", "{:.2f}"),
    "word_accuracy": ("word accuracy (%)", "inflection.accuracy", "{:.2f}"),
    "edit_distance": ("edit distance", "inflection.edit_distance", "{:.2f}"),
    "eps_ppl": ("ε-perplexity", "test.eps_ppl", "{:.1f}"),
    "best_eps_ppl": ("ε-perplexity, best ε", "test.best_eps_ppl", "{:.1f}"),
    "sparsemax_score": ("sparsemax score", "test.sparsemax_score", "{:.4f}"),
    "js_divergence": ("JS divergence", "test.js_divergence", "{:.4f}"),
    "nonzeros": ("nonzeros", "test.nonzeros", "{:.1f}"),
    "valid_nonzeros": ("nonzeros, validation set", "valid.nonzeros", "{:.1f}"),
    "valid_attended": (
        "attended positions, validation set",
        "valid.attention.cross.nonzeros",
        "{:.2f}",
    ),
    "valid_single": ("a single hypothesis, validation set", "valid.search.single", "{:.1%}"),
    "valid_exact": ("beam proven exact, validation set", "valid.search.exact", "{:.1%}"),
    "valid_optimal": ("first proven best, validation set", "valid.search.optimal", "{:.1%}"),
    "tau": ("τ", "test.tau", "{:.3f}"),
    "prob_sum": ("Σp", "test.prob_sum", "{:.3f}"),
    "gold_zero": ("gold at p=0 (%)", "test.gold_zero", "{:.1f}"),
    "accuracy": ("accuracy (%)", "test.accuracy", "{:.1f}"),
    "sparsity": ("zeros in attention (%)", "attention.sparsity", "{:.1f}"),
    "null": ("null attention (%)", "attention.null", "{:.1f}"),
    "first": ("attention on the first token (%)", "attention.first", "{:.1f}"),
    "eos": ("attention on EOS (%)", "attention.eos", "{:.1f}"),
    "aer": ("AER, best layer", "alignment.aer", "{:.3f}"),
    "optimal": ("proven optimal", "generation.optimal", "{:.1%}"),
    "empty": ("empty", "bleu.empty_translations", "{:.4g}"),
    "empty_is_best": ("p(empty) > p(best)", "empty.empty_is_best", "{:.2%}"),
    "empty_is_impossible": ("p(empty) = 0", "empty.empty_is_impossible", "{:.2%}"),
    "parameters": ("parameters", "training.parameters", "{:,.0f}"),
    "updates": ("updates", "training.updates", "{:,.0f}"),
    "words_per_second": ("words/s", "training.words_per_second", "{:,.0f}"),
    "training": ("training (min)", "training.seconds", "{:.1f}"),
    "hours": ("training (h)", "training.seconds", "{:.2f}"),
    "watt_hours": ("energy (Wh)", "training.watt_hours", "{:,.1f}"),
    "sentences_per_second": (
        "decoding (sentences/s)",
        "generation.sentences_per_second",
        "{:.1f}",
    ),
}
# The unit of a column, in seconds.
_UNITS = {"training": 60, "hours": 3600}
# The columns of a table of language models.
_OF_TEXTS = (
    "variant",
    "eps_ppl",
    "best_eps_ppl",
    "sparsemax_score",
    "js_divergence",
    "nonzeros",
    "gold_zero",
    "parameters",
    "updates",
    "words_per_second",
    "training",
)
# Columns that not every run has: scores of other tasks, and energy, which needs NVML.
_NOT_ALWAYS = (
    *("bleu", "word_accuracy", "edit_distance", "empty", "watt_hours"),
    *("eps_ppl", "best_eps_ppl", "sparsemax_score", "js_divergence"),
)
# Columns that are shown on request only.
_ON_REQUEST = (
    "chrf",
    "tokenized_bleu",
    "lowercased_bleu",
    "long_bleu",
    "tau",
    "valid_accuracy",
    "valid_nonzeros",
    "valid_attended",
    "valid_single",
    "valid_exact",
    "valid_optimal",
    "first",
    "eos",
    "aer",
    "optimal",
    "empty_is_best",
    "empty_is_impossible",
    "parameters",
    "hours",
)
# Columns with another metric than their name, or another split than the test set.
_MEASURES = {
    "valid_accuracy": Measure("accuracy", "valid"),
    "valid_nonzeros": Measure("nonzeros", "valid"),
    "valid_attended": Measure("attended", "valid"),
    "valid_single": Measure("single_hypothesis", "valid"),
    "valid_exact": Measure("proven_exact", "valid"),
    "valid_optimal": Measure("proven_optimal", "valid"),
    "optimal": Measure("proven_optimal", "test"),
    "tau": Measure("tau", "train"),
    "parameters": Measure("parameters", None),
    "updates": Measure("updates", "train"),
    "words_per_second": Measure("training_speed", "train"),
    "training": Measure("minutes", "train"),
    "hours": Measure("hours", "train"),
    "watt_hours": Measure("watt_hours", "train"),
    "sentences_per_second": Measure("decoding_speed", "test"),
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


def look_up(summary: Summary, path: str) -> Any:
    """Return the value at a dotted path, or None."""
    value: Any = summary
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def number(summary: Summary, column: str) -> Any:
    """Return what a run has in a column of a single number, in the unit of its heading, or None."""
    value = look_up(summary, COLUMNS[column][1])
    return value / _UNITS[column] if column in _UNITS and value is not None else value


def measure_of(summary: Summary, column: str) -> Measure:
    """Return what a column of a run's summary measures.

    BLEU on tokens (``tok:none`` in the signature) is a different metric from detokenised BLEU, and
    so is BLEU without case, or with any other tokeniser than 13a.
    """
    if column == "bleu":
        parts = (look_up(summary, "bleu.signature") or "").split("|")
        if "case:lc" in parts or "c:lc" in parts:
            return Measure("lower-cased BLEU", "test")
        tokeniser = next((part for part in parts if part.startswith("tok:")), "tok:?")
        names = {"tok:13a": "bleu", "tok:none": "tokenized_bleu"}
        return Measure(names.get(tokeniser, f"BLEU ({tokeniser})"), "test")
    if column == "word_accuracy":
        return Measure(column, "test", len(look_up(summary, "inflection.languages") or ()) or None)
    if column in ("empty_is_best", "empty_is_impossible"):
        return Measure(column, look_up(summary, "empty.subset") or "test")
    return _MEASURES.get(column) or Measure(column, "test")


def columns_of(summaries: Sequence[Summary]) -> list[str]:
    """Return the names in ``COLUMNS`` of a table's default columns."""
    if all(look_up(summary, "test.eps_ppl") is not None for summary in summaries):
        return list(_OF_TEXTS)
    return [
        name
        for name, (_, path, _) in COLUMNS.items()
        if name not in _ON_REQUEST
        and (
            name not in _NOT_ALWAYS
            or any(look_up(summary, path) is not None for summary in summaries)
        )
    ]


def cell(summary: Summary, name: str, baseline: Optional[Summary] = None) -> str:
    """Return one cell of the table, ``-`` if unknown; speeds have their ratio to the baseline's.

    Args:
        summary: the summary of a run, perhaps with results of the benchmarks in ``measured``.
        name: a key of ``COLUMNS``.
        baseline: the summary that the speed is compared with.
    """
    _, path, form = COLUMNS[name]
    if path.startswith("attention."):
        rate = path.removeprefix("attention.")
        places = summary.get("attention", {}).values()
        rates = [place[rate] for place in places if rate in place]
        return " / ".join(form.format(100 * value) for value in rates) or "-"
    measured = summary.get("measured", {}).get(name)
    if measured:  # side by side: the ratio is the median of several rounds
        base = (baseline or {}).get("measured", {}).get(name, {}).get("speed", 1)
        return f"{form.format(measured['rate'])} ({measured['speed'] / base:.2f})"
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

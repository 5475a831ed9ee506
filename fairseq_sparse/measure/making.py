"""How each measurement of :class:`~fairseq_sparse.measure.cache.Measurements` is made.

A function has the name of its measurement, and returns what is kept. It is called only if there is
no file to read, and may load the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional

from fairseq_sparse.errors import AnalysisError
from fairseq_sparse.files import lines_of
from fairseq_sparse.measure.attention.attention_statistics import (
    AttentionStatistics,
    find_attention,
)
from fairseq_sparse.measure.attention.null_by_previous import null_rates_by_previous
from fairseq_sparse.measure.attention.shuffled_references import derange, with_reordered_references
from fairseq_sparse.measure.attention.subword_merging import SubwordMerger, subword_merger
from fairseq_sparse.measure.cache import Measurements
from fairseq_sparse.measure.model_loading import load_subset
from fairseq_sparse.measure.output.empty_translations import (
    count_empty_translations,
    scores_to_compare,
)
from fairseq_sparse.measure.output.gold_by_frequency import WordClasses, measure_gold
from fairseq_sparse.measure.output.output_statistics import count_certified, measure_steps
from fairseq_sparse.measure.sentences import describe_sentences
from fairseq_sparse.measure.translator import (
    Translator,
    with_best_translations,
    with_references,
)


def output(of: Measurements) -> dict[str, Any]:
    """Measure the steps of the references."""
    batches = of.batches(of.translator, "references")
    found = measure_steps(of.translator, batches, of.subset)
    return {**_described(of, found), "of": "references"}


def decoded(of: Measurements, beam: int) -> dict[str, Any]:
    """Measure the steps of the translations that beam search finds."""
    batches = of.batches(of.translator, "translations")
    own = with_best_translations(of.translator, batches, beam)
    return {**_described(of, measure_steps(of.translator, own, of.subset)), "of": "translations"}


def empty(of: Measurements, beam: int) -> list[dict[str, Any]]:
    """Compare the empty translation with those of the beam."""
    rows = []
    for name, translator in scores_to_compare(of.translator).items():
        batches = of.batches(translator, f"empty translation, {name}")
        found = count_empty_translations(translator, batches, beam)
        rows.append({**_described(of, found), "scores": name})
    return rows


def certified(of: Measurements, beams: Sequence[int]) -> dict[str, Any]:
    """Count the sentences for which beams of these sizes prove their results."""
    shares = {}
    for beam in beams:
        batches = of.batches(of.translator, f"beam {beam}") if of.translator.is_sparse else []
        shares[str(beam)] = count_certified(of.translator, batches, beam)
    return _described(of, {"beams": shares})


def gold(of: Measurements, subwords: str, training: Path) -> dict[str, Any]:
    """Measure rank and support of gold by the frequency of its word."""
    classes = WordClasses(of.translator.task.target_dictionary, training, subwords)
    batches = of.batches(of.translator, "gold by frequency")
    found = measure_gold(of.translator, batches, of.subset, classes)
    return {**_described(of, found), "subwords": subwords}


def attention(of: Measurements, subwords: str) -> dict[str, Any]:
    """Measure the attention on the references."""
    found = {"subset": of.subset, "subwords": subwords}
    if not any(find_attention(of.translator.model).values()):
        return {**found, "attention": {}}
    statistics = _statistics(of, of.translator, subwords, "attention")
    counts = {"sentences": statistics.sentences, "left_out": _left_out(of, statistics.sentences)}
    return {**found, **counts, "attention": statistics.rates()}


def shuffled(of: Measurements, subwords: str, seed: int) -> dict[str, Any]:
    """Measure the attention on references that have changed places."""
    order = derange(len(load_subset(of.translator.task, of.subset)), seed)
    translator = with_reordered_references(of.translator, order)
    statistics = _statistics(of, translator, subwords, "references shuffled", diversity=False)
    return {
        "shuffled_seed": seed,
        "shuffled_sentences": statistics.sentences,
        "shuffled": statistics.rates(),
    }


def previous(of: Measurements, subwords: str, top: int, tags: Optional[Path]) -> dict[str, Any]:
    """Measure the null rates of cross-attention by the preceding word, or its tag.

    Raises:
        AnalysisError: the tags do not fit the sentences.
    """
    task = of.translator.task
    sentences = len(load_subset(task, of.subset))
    names = tags and [line.split() for line in lines_of(tags)]
    if names is not None and len(names) != sentences:
        raise AnalysisError(f"{tags} has {len(names)} lines for {sentences} sentences")
    merger = SubwordMerger(task.source_dictionary, task.target_dictionary, subwords)
    batches = of.batches(of.translator, "null rates by the word before")
    batches = with_references(batches, of.subset)
    return null_rates_by_previous(of.translator.model, batches, merger, names, top)


def sentences(of: Measurements, count: int) -> dict[str, Any]:
    """Describe attention and alternatives in the first sentences."""
    batches = of.batches(of.translator, f"first {count} sentences", range(count))
    return describe_sentences(of.translator, batches, of.subset)


def _statistics(
    of: Measurements, translator: Translator, subwords: str, what: str, diversity: bool = True
) -> AttentionStatistics:
    """Measure the attention of a model on the references."""
    padding = translator.task.source_dictionary.pad()
    merger = subword_merger(translator.task, subwords)
    statistics = AttentionStatistics(translator.model, padding, diversity, merger=merger)
    for sample in with_references(of.batches(translator, what), of.subset):
        statistics.add_batch(sample["net_input"])
    return statistics


def _described(of: Measurements, found: dict[str, Any]) -> dict[str, Any]:
    """Add the kind of output and of data to a result."""
    result = {"output": of.translator.describe_output(), "subset": of.subset, **found}
    if "sentences" in found:
        result["left_out"] = _left_out(of, found["sentences"])
    return result


def _left_out(of: Measurements, sentences: int) -> int:
    """Count the sentences that are too long for the model, given how many were read."""
    there = len(of.translator.task.dataset(of.subset))
    return (there if of.first is None else min(there, of.first)) - sentences

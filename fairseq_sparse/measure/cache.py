"""The report's measurements of a model, computed once and kept in the folder of its run."""

import json
from collections.abc import Callable, Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

from fairseq_sparse.files import sha256_of, write_json
from fairseq_sparse.measure.attention.attention_statistics import (
    AttentionStatistics,
    attention_modules,
)
from fairseq_sparse.measure.attention.shuffled_references import derange, with_reordered_references
from fairseq_sparse.measure.attention.subword_merging import subword_merger
from fairseq_sparse.measure.output.empty_translations import (
    count_empty_translations,
    scores_to_compare,
)
from fairseq_sparse.measure.output.output_statistics import follow_translations, force_references
from fairseq_sparse.measure.run_folders import Run
from fairseq_sparse.measure.sentences import describe_sentences
from fairseq_sparse.measure.translator import Translator, load_translator

BEAM = 5
MAX_TOKENS = 4000
SHUFFLED_SEED = 1
# Raise it when the measurements change, so that files of earlier versions are replaced.
FORMAT = 2

# Wraps batches in a progress bar with a label.
Progress = Callable[[Iterable[Any], str], Iterable[Any]]


class Measurements:
    """The measurements of one model; each is in a file of ``Run.measured`` once it is complete.

    A file made from another checkpoint or from other data is replaced.

    Args:
        run: the model.
        data: folder that ``fairseq-preprocess`` made.
        subset: part of the data.
        subwords: how words were split (see :func:`subword_merger`): attention is measured between
            words; ``none``: between tokens.
        cpu: do not use a GPU.
        progress: see ``Progress``.
    """

    def __init__(
        self, run: Run, data: str, subset: str, subwords: str, cpu: bool, progress: Progress
    ):
        self.run, self.data, self.subset, self.cpu = run, data, subset, cpu
        self.subwords, self.progress = subwords, progress

    def output(self) -> dict[str, Any]:
        """Return the result of ``OutputStatistics`` at the steps of the references."""

        def compute() -> dict[str, Any]:
            batches = self._batches(self._translator, "output")
            statistics, sentences = force_references(self._translator, batches, self.subset)
            left_out = len(self._translator.task.dataset(self.subset)) - sentences
            return {**self._description, "sentences": sentences, "left_out": left_out, **statistics}

        return {**self._kept("output", compute), "name": self.run.name}

    def decoded(self) -> dict[str, Any]:
        """Return the result of ``OutputStatistics`` at the steps of the model's translations."""

        def compute() -> dict[str, Any]:
            batches = self._batches(self._translator, "output at the steps of decoding")
            found, _ = follow_translations(self._translator, batches, self.subset, BEAM)
            return {**self._description, "of": "translations", **found}

        return {**self._kept("decoded", compute, beam=BEAM), "name": self.run.name}

    def empty(self) -> list[dict[str, Any]]:
        """Return how often the empty translation is best, by p and (if Σp is not fixed) p / Σp."""

        def compute() -> list[dict[str, Any]]:
            rows = []
            for name, translator in scores_to_compare(self._translator).items():
                batches = self._batches(translator, f"empty translation, {name}")
                found = count_empty_translations(translator, batches, BEAM)
                rows.append({**self._description, "scores": name, **found})
            return rows

        return [{**row, "name": self.run.name} for row in self._kept("empty", compute, beam=BEAM)]

    def attention(self) -> dict[str, Any]:
        """Return the rates of ``AttentionStatistics``, empty without the attention of a Transformer
        or an LSTM.

        If any attention is null, the rates with shuffled references are under ``shuffled``. The
        format is that of ``fairseq-sparse analyze attention --json``.
        """

        def compute() -> dict[str, Any]:
            if not self._has_attention:
                return {"attention": {}}
            statistics = self._attention_statistics(self._translator, "attention")
            result = {
                "subset": self.subset,
                "subwords": self.subwords,
                "sentences": statistics.sentences,
                "attention": statistics.rates(),
            }
            sentences = len(self._translator.task.dataset(self.subset))
            if sentences > 1 and any(part["null"] > 0 for part in result["attention"].values()):
                order = derange(sentences, SHUFFLED_SEED)
                shuffled = with_reordered_references(self._translator, order)
                label = "attention, references shuffled"
                statistics = self._attention_statistics(shuffled, label, diversity=False)
                result["shuffled"] = statistics.rates()
            return result

        return self._kept("attention", compute, subwords=self.subwords)

    def sentences(self, count: int) -> dict[str, Any]:
        """Return the result of :func:`describe_sentences` for the first sentences."""

        def compute() -> dict[str, Any]:
            chosen = self._load(range(count))
            batches = self._batches(chosen, f"first {count} sentences")
            return describe_sentences(chosen, batches, self.subset, self._has_attention)

        return self._kept("sentences", compute, sentences=count)

    def _attention_statistics(
        self, translator: Translator, what: str, diversity: bool = True
    ) -> AttentionStatistics:
        (model,), task = translator.models, translator.task
        padding, merger = task.source_dictionary.pad(), subword_merger(task, self.subwords)
        statistics = AttentionStatistics(model, padding, diversity, merger=merger)
        for sample in self._batches(translator, what):
            statistics.add_batch(sample["net_input"])
        return statistics

    @cached_property
    def _translator(self) -> Translator:
        return self._load(None)

    def _load(self, chosen) -> Translator:
        checkpoint = str(self.run.checkpoint)
        return load_translator(checkpoint, self.data, self.cpu, chosen, self.run.name)

    @property
    def _description(self) -> dict[str, Any]:
        return {"output": self._translator.describe_output(), "subset": self.subset}

    @property
    def _has_attention(self) -> bool:
        try:
            return any(attention_modules(self._translator.models[0]).values())
        except ValueError:
            return False

    def _batches(self, translator: Translator, what: str) -> Iterable[Any]:
        batches = translator.batches(self.subset, MAX_TOKENS)
        return self.progress(batches, f"{self.run.name}: {what}")

    @cached_property
    def _source(self) -> dict[str, Any]:
        """Identification of the checkpoint, the data and the format."""
        data = sorted(
            path
            for pattern in ("dict.*", f"{self.subset}.*")
            for path in Path(self.data).glob(pattern)
        )
        return {
            "checkpoint": sha256_of(self.run.checkpoint),
            "data": sha256_of(*data),
            "subset": self.subset,
            "format": FORMAT,
        }

    def _kept(self, name: str, compute: Callable[[], Any], **settings: Any) -> Any:
        """Return the content of the measurement's file, which is first updated if out of date.

        Raises:
            OSError: the file cannot be written.
        """
        path = self.run.measured / f"{name}-{self.subset}.json"
        made_from = {**self._source, **settings}
        try:
            kept = json.loads(path.read_text(encoding="utf-8"))
            if kept["made_from"] == made_from:
                return kept["result"]
        except (OSError, ValueError, KeyError, TypeError):
            pass  # the file is missing, or not written by this class
        result = compute()
        path.parent.mkdir(exist_ok=True)
        write_json(path, {"made_from": made_from, "result": result})
        return result

"""Measurements of a model, each made once and kept in the folder of its run.

Nothing heavy is imported before a measurement has to be made, by the function of its name in
``making``.
"""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

from fairseq_sparse.errors import AnalysisError
from fairseq_sparse.files import sha256_of, write_json

if TYPE_CHECKING:
    from fairseq_sparse.measure.run_folders import Run
    from fairseq_sparse.measure.translator import Translator

BEAM = 5
MAX_TOKENS = 4000
SHUFFLED_SEED = 1
# Raise it when the measurements change, so that files of earlier versions are replaced.
FORMAT = 4

# Wraps batches in a progress bar with a label.
Progress = Callable[[Iterable[Any], str], Iterable[Any]]


def measurement_file(checkpoint: Path, name: str, subset: str) -> Path:
    """Return the file of a measurement: ``measurements/NAME-SUBSET.json`` beside ``average.pt``,
    ``measurements-STEM/NAME-SUBSET.json`` beside another checkpoint."""
    own = "" if checkpoint.name == "average.pt" else f"-{checkpoint.stem}"
    return checkpoint.parent / f"measurements{own}" / f"{name}-{subset}.json"


@dataclass
class Measurements:
    """The measurements of one model on one part of the data.

    Each is read from its file (:func:`measurement_file`) if that was made from this checkpoint,
    these data and with these settings; otherwise it is made, and replaces the file. A message says
    what is read, and what cannot be written. Results of an ensemble (``A.pt:B.pt``) and of the
    first sentences alone are not kept.

    Attributes:
        data: folder that ``fairseq-preprocess`` made.
        subwords: how words were split (see :func:`subword_merger`): attention is measured between
            words, which also have the frequencies of :meth:`gold`; ``none``: tokens are words.
        max_tokens: largest number of tokens in a batch.
        first: measure only this many sentences, the first ones; None for all.
    """

    run: Run
    data: str
    subset: str
    subwords: str
    cpu: bool
    progress: Progress
    max_tokens: int = MAX_TOKENS
    first: Optional[int] = None

    def on(self, subset: str) -> Measurements:
        """Return the measurements of the same model, loaded or not, on another part."""
        other = copy.copy(self)
        other.subset = subset
        return other

    def output(self) -> dict[str, Any]:
        """Return the statistics of the output at the steps of the references."""
        return {**self._model, **self._kept("output")}

    def decoded(self, beam: int = BEAM) -> dict[str, Any]:
        """Return the statistics of the output at the steps of the model's translations."""
        return {**self._model, **self._kept("decoded", beam=beam)}

    def empty(self, beam: int = BEAM) -> list[dict[str, Any]]:
        """Return how often the empty translation is best, by p and (if Σp is not fixed) p / Σp."""
        return [{**self._model, **row} for row in self._kept("empty", beam=beam)]

    def certified(self, beams: Sequence[int]) -> dict[str, Any]:
        """Return under ``beams`` how often each beam size proves its result."""
        return {**self._model, **self._kept("certified", beams=list(beams))}

    def gold(self, training: Path) -> dict[str, Any]:
        """Return rank and support of the references' tokens by the frequency of their words in a
        training text, which is tokenised as the data."""
        found = self._kept("gold", subwords=self.subwords, training=training)
        return {**self._model, **found}

    def attention(self) -> dict[str, Any]:
        """Return :meth:`own_attention`, with :meth:`shuffled` if any attention is null."""
        result = self.own_attention()
        null = any(part["null"] > 0 for part in result["attention"].values())
        if null and result["sentences"] + result["left_out"] > 1:
            return {**result, **self.shuffled(SHUFFLED_SEED)}
        return result

    def own_attention(self) -> dict[str, Any]:
        """Return the rates of ``AttentionStatistics`` under ``attention``; empty without the
        attention of a Transformer or an LSTM."""
        return self._kept("attention", subwords=self.subwords)

    def shuffled(self, seed: int) -> dict[str, Any]:
        """Return the rates under ``shuffled``, with each source beside another's reference."""
        return self._kept("shuffled", subwords=self.subwords, seed=seed)

    def by_previous(self, top: int, tags: Optional[Path] = None) -> dict[str, Any]:
        """Return the null rates of heads after the ``top`` most frequent words, or tags.

        The file of tags has a line per sentence, a tag for each target word.
        """
        return self._kept("previous", subwords=self.subwords, top=top, tags=tags)

    def sentences(self, count: int) -> dict[str, Any]:
        """Return attention and alternatives in each of the first sentences."""
        return self._kept("sentences", count=count)

    @cached_property
    def translator(self) -> Translator:
        from fairseq_sparse.measure.translator import load_translator

        return load_translator(str(self.run.checkpoint), self.data, self.cpu, self.run.name)

    def batches(
        self, translator: Translator, what: str, chosen: Optional[Sequence[int]] = None
    ) -> Iterable[Any]:
        """Return the batches of the sentences to measure, with a progress bar."""
        if self.first is not None:
            chosen = range(self.first)
        batches = translator.batches(self.subset, self.max_tokens, chosen)
        return self.progress(batches, f"{self.run.name}, {self.subset}: {what}")

    @property
    def _model(self) -> dict[str, Any]:
        path = self.run.checkpoint
        paths = [str(path)] if path.is_file() else str(path).split(":")
        return {"name": self.run.name, "checkpoints": paths}

    def _kept(self, name: str, **settings: Any) -> Any:
        """Return the content of the measurement's file, which is first updated if out of date."""
        if not self.run.checkpoint.is_file() or self.first is not None:
            return self._make(name, settings)
        path = measurement_file(self.run.checkpoint, name, self.subset)
        made_from = self._made_from(settings)
        try:
            kept = json.loads(path.read_text(encoding="utf-8"))
            if kept["made_from"] == made_from:
                print(f"read {path}", file=sys.stderr)
                return kept["result"]
        except (OSError, ValueError, KeyError, TypeError):
            pass  # the file is missing, or not written by this class
        result = self._make(name, settings)
        if sha256_of(self.run.checkpoint) != self._digest:
            raise AnalysisError(
                f"{self.run.checkpoint} has changed while it was measured: measure a copy"
            )
        try:
            path.parent.mkdir(exist_ok=True)
            write_json(path, {"made_from": made_from, "result": result})
        except OSError as error:
            print(f"not kept, {path} cannot be written: {error.strerror}", file=sys.stderr)
        return result

    def _make(self, name: str, settings: dict[str, Any]) -> Any:
        from fairseq_sparse.measure import making

        return getattr(making, name)(self, **settings)

    @cached_property
    def _digest(self) -> str:
        """The SHA-256 of the checkpoint, which is loaded once for all measurements."""
        return sha256_of(self.run.checkpoint)

    def _made_from(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Identify checkpoint, data, settings (files by their content) and format."""
        data = sorted(
            path
            for pattern in ("dict.*", f"{self.subset}.*")
            for path in Path(self.data).glob(pattern)
        )
        return {
            "checkpoint": self._digest,
            "data": sha256_of(*data),
            "subset": self.subset,
            "format": FORMAT,
            **{
                name: sha256_of(value) if isinstance(value, Path) else value
                for name, value in settings.items()
            },
        }

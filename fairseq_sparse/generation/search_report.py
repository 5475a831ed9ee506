"""Reports what the search proved about a data set: counts, and one line per sentence."""

import json
import logging
import math
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Optional

logger = logging.getLogger(__name__)

# Fields of a hypothesis that describe the search for it, besides its score.
_FINDINGS = ("exact", "optimal", "dropped_mass", "bound", "proven_length", "nodes")
# Seconds between two progress messages of a long search.
_PROGRESS_INTERVAL = 10.0


class SearchReport:
    """Counts of what the search proved or failed to find, which :meth:`finish` logs.

    Args:
        path: file to overwrite, once there is something to write, with one JSON object per
            sentence; None for no file. An object has the ``id`` of the sentence, the number of
            ``hypotheses``, the ``score`` of the best and its ``unit`` (nats; fairseq prints bits),
            ``incomplete``, ``impossible_prefix``, and those of ``exact``, ``optimal``,
            ``dropped_mass``, ``bound``, ``proven_length`` and ``nodes`` that the generator provides
            (null if infinite, or if the search cannot tell).
        continues_prompts: whether the outputs are texts of a language model, which need not end,
            rather than translations.

    Raises:
        ValueError: the file cannot be written, or exists and is not a report.
    """

    def __init__(self, path: Optional[str] = None, continues_prompts: bool = False):
        self.path = path
        self.continues_prompts = continues_prompts
        self.begin_anew()
        self.reset()
        if path is not None:
            with self._naming_the_file():
                if not _may_be_replaced(Path(path)):
                    raise ValueError(
                        f"--search-report {path} exists and is no search report: choose a new name"
                    )
                open(path, "a").close()

    @contextmanager
    def _naming_the_file(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ValueError(f"--search-report {self.path}: {error.strerror}") from error

    def begin_anew(self) -> None:
        """Let the next sentences replace those in the file."""
        self._begun = False

    def reset(self) -> None:
        """Reset all counts."""
        self.decoded = self.counted = self.incomplete = self.impossible = 0
        self.judged = self.unjudged = self.exact = self.optimal = 0
        self._last_progress = time.monotonic()

    def add(
        self,
        ids: Iterable[int],
        hypotheses: list[list[dict[str, Any]]],
        total: Optional[int] = None,
    ) -> None:
        """Count the n-best lists of a batch, and write them to the file at once.

        Args:
            ids: the numbers of the sentences.
            hypotheses: the n-best list of each sentence.
            total: number of sentences in the whole search; if given, the progress is logged.

        Raises:
            ValueError: the file cannot be written.
        """
        best = [hypos[0] for hypos in hypotheses]
        counted = (
            [hypo for hypos in hypotheses for hypo in hypos] if self.continues_prompts else best
        )
        self.decoded += len(best)
        self.counted += len(counted)
        self.incomplete += sum(hypo.get("incomplete", False) for hypo in counted)
        self.impossible += sum(hypo.get("impossible_prefix", False) for hypo in best)
        self.judged += sum(hypo.get("exact") is not None for hypo in best)
        self.unjudged += sum(hypo.get("exact", False) is None for hypo in best)
        self.exact += sum(bool(hypo.get("exact")) for hypo in best)
        self.optimal += sum(bool(hypo.get("optimal")) for hypo in best)
        if total is not None and time.monotonic() - self._last_progress > _PROGRESS_INTERVAL:
            self._last_progress = time.monotonic()
            logger.info(
                f"{self.decoded} of {total} sentences searched, {self.optimal} proven optimal"
            )
        if self.path is not None:
            mode = "a" if self._begun else "w"
            self._begun = True
            with self._naming_the_file(), open(self.path, mode, encoding="utf-8") as report:
                for sentence, hypos in zip(ids, hypotheses, strict=True):
                    report.write(json.dumps(_line(sentence, hypos)) + "\n")

    def finish(self) -> None:
        """Log the counts, and reset them."""
        if self.incomplete > 0 and self.continues_prompts:
            logger.info(
                f"{self.incomplete} of {self.counted} texts are cut off at the length limit "
                "(--max-len-a, --max-len-b), or where no token has nonzero probability"
            )
        elif self.incomplete > 0:
            logger.warning(
                f"{self.incomplete} of {self.decoded} sentences had no complete translation of "
                "non-zero probability within the length limits (--min-len, --max-len-a, "
                "--max-len-b); their best prefix, if any, is given instead. A larger --beam may "
                "find one."
            )
        if self.impossible > 0:
            logger.info(
                f"{self.impossible} of {self.decoded} forced prefixes have a token of probability "
                "0: the prefix is kept, and the score of such a token is 0"
            )
        if self.judged > 0:
            logger.info(
                f"certified: {self._share(self.exact)} exact (the list has every translation that "
                f"the model and the options allow), {self._share(self.optimal)} optimal (nothing "
                "has a better score than the first)"
            )
        if self.unjudged > 0 and not self.continues_prompts:
            logger.info(
                "certified: nothing, because this kind of search cannot tell what it leaves out; "
                "plain beam search and --exact-search can"
            )
        if self.path is not None and self.decoded > 0:
            logger.info(f"{self.path}: scores in nats (lines H, D and P are in bits)")
        self.reset()

    def _share(self, count: int) -> str:
        return f"{count} of {self.judged} sentences ({100 * count / self.judged:.1f} %)"


def _line(sentence: int, hypos: list[dict[str, Any]]) -> dict[str, Any]:
    best = hypos[0]
    findings = {name: best[name] for name in _FINDINGS if name in best}
    line = {
        "id": sentence,
        "hypotheses": len(hypos),
        "score": float(best["score"]),
        "unit": "nats",
        "incomplete": best.get("incomplete", False),
        "impossible_prefix": best.get("impossible_prefix", False),
        **findings,
    }
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in line.items()
    }


def _may_be_replaced(path: Path) -> bool:
    """Return whether a path is unused, an empty file, a report, or no regular file (a pipe)."""
    if not path.is_file():
        return True
    with open(path, "rb") as file:
        start = file.readline(1 << 16)
    if not start:
        return True
    try:
        line = json.loads(start)
    except ValueError:
        return False
    return isinstance(line, dict) and "hypotheses" in line

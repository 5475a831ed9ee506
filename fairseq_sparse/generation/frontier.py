"""The prefixes that an exact search has still to expand."""

import heapq
from typing import NamedTuple

import numpy as np

# Number of continuations (16 bytes each) above which the least probable ones are discarded.
LARGEST = 4_000_000


class Prefix(NamedTuple):
    """The beginning of a translation."""

    tokens: tuple[int, ...]
    log_probs: tuple[float, ...]  # of each token
    total: float = 0.0

    def longer(self, token: int, log_prob: float) -> "Prefix":
        """Return the prefix with one more token."""
        return Prefix((*self.tokens, token), (*self.log_probs, log_prob), self.total + log_prob)


class _Continuations:
    """The continuations of one prefix, the most probable first."""

    def __init__(self, prefix: Prefix, tokens: np.ndarray, log_probs: np.ndarray):
        order = np.argsort(-log_probs, kind="stable")
        self.prefix, self.tokens, self.log_probs = prefix, tokens[order], log_probs[order]
        self.length = len(prefix.tokens) + 1
        self.next = 0

    @property
    def total(self) -> float:
        """The log-probability of the next continuation."""
        return self.prefix.total + float(self.log_probs[self.next])

    def totals(self) -> np.ndarray:
        """Return the log-probabilities of all continuations."""
        return self.prefix.total + self.log_probs

    def take(self) -> Prefix:
        """Return the next continuation and go on to the one after it."""
        place, self.next = self.next, self.next + 1
        return self.prefix.longer(int(self.tokens[place]), float(self.log_probs[place]))


class Frontier:
    """A queue of prefixes, the most probable first.

    A prefix can have as many continuations as the vocabulary has tokens, nearly all of which are
    never expanded. They are kept as arrays, with only the first of each array in the queue.
    """

    def __init__(self):
        self._queue: list[tuple[float, int, _Continuations]] = []
        self._count = self._size = 0
        self._discarded: list[tuple[float, int]] = []

    def __bool__(self) -> bool:
        return bool(self._queue)

    def add(self, prefix: Prefix, tokens: np.ndarray, log_probs: np.ndarray) -> None:
        """Add the continuations of a prefix by each of *tokens*."""
        if len(tokens):
            self._size += len(tokens)
            self._push(_Continuations(prefix, tokens, log_probs))

    def _push(self, continuations: _Continuations) -> None:
        self._count += 1  # breaks ties
        heapq.heappush(self._queue, (-continuations.total, self._count, continuations))

    def first(self) -> tuple[float, int]:
        """Return the log-probability and the length of the most probable prefix."""
        continuations = self._queue[0][2]
        return continuations.total, continuations.length

    def pop(self) -> Prefix:
        """Remove and return the most probable prefix."""
        continuations = heapq.heappop(self._queue)[2]
        found = continuations.take()
        if continuations.next < len(continuations.tokens):
            self._push(continuations)
        return found

    def drop(self) -> None:
        """Remove the most probable prefix, and all that differ from it only in a less probable last
        token: if the first is of no use, the others are not either."""
        heapq.heappop(self._queue)

    def shrink(self, wanted: int) -> None:
        """Discard all but the first *wanted* prefixes if there are too many; keep their bounds."""
        if not self._queue or self._size <= max(LARGEST, 2 * wanted):
            return
        parts = [continuations for _, _, continuations in self._queue]
        totals = np.concatenate([part.totals()[part.next :] for part in parts])
        least = -np.partition(-totals, wanted)[wanted] if wanted < len(totals) else -np.inf
        self._queue.clear()
        for part in parts:
            end = int((part.totals() >= least).sum())
            if end < len(part.tokens):
                lost = part.totals()[max(end, part.next)]
                self._discarded.append((float(lost), part.length))
            part.tokens, part.log_probs = part.tokens[:end].copy(), part.log_probs[:end].copy()
            if part.next < end:
                self._push(part)
        self._size = sum(len(part.tokens) for _, _, part in self._queue)

    def remaining(self) -> list[tuple[float, int]]:
        """Return the log-probability and length of the most probable prefix of each length that
        was neither popped nor dropped, including those that :meth:`shrink` discarded."""
        best: dict[int, float] = {}
        queued = [(part.total, part.length) for _, _, part in self._queue]
        for total, length in queued + self._discarded:
            best[length] = max(best.get(length, total), total)
        return [(total, length) for length, total in best.items()]

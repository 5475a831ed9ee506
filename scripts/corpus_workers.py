"""Processing of a corpus in several processes, with results in order and few in memory."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait
from pathlib import Path

ITEMS_PER_TASK = 500
TASKS_PER_WORKER = 4
BYTES_PER_COUNT = 1 << 25


class WorkerLost(Exception):
    """Error after a process of the pool was killed; the message says what to do."""


_work_on: Callable | None = None


def _start(start: Callable[..., Callable], arguments: tuple) -> None:
    """Initialise this process, and make it end with the process that started it."""
    global _work_on
    parent = multiprocessing.parent_process()
    assert parent is not None

    def end_with_parent() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
    _work_on = start(*arguments)


def _work(task: object) -> object:
    assert _work_on is not None
    return _work_on(task)


def map_tasks(
    tasks: Iterable, start: Callable[..., Callable], arguments: tuple, workers: int
) -> Iterator:
    """Yield the results of tasks in order, from the function that ``start(*arguments)`` returns in
    each worker.

    Only a few tasks and results are in memory at a time.

    Raises:
        WorkerLost: a worker was killed.
    """
    tasks = iter(tasks)
    pool = ProcessPoolExecutor(workers, initializer=_start, initargs=(start, arguments))
    waiting: deque = deque()
    try:
        for task in itertools.islice(tasks, TASKS_PER_WORKER * workers):
            waiting.append(pool.submit(_work, task))
        while waiting:
            result = waiting.popleft().result()
            for task in itertools.islice(tasks, 1):
                waiting.append(pool.submit(_work, task))
            yield result
    except BrokenProcessPool as error:
        raise WorkerLost(
            "a process of the preparation failed (see above) or was killed, perhaps for lack of "
            "memory: run the same command again to go on from there, with a smaller --workers "
            "(WORKERS) if need be"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _start_each(start: Callable[..., Callable], arguments: tuple) -> Callable[[list], list]:
    work = start(*arguments)
    return lambda items: [work(item) for item in items]


def map_items(
    items: Iterable, start: Callable[..., Callable], arguments: tuple, workers: int
) -> Iterator:
    """Map many small items like the tasks of ``map_tasks``, several at a time."""
    items = iter(items)
    lists = iter(lambda: list(itertools.islice(items, ITEMS_PER_TASK)), [])
    for results in map_tasks(lists, _start_each, (start, arguments), workers):
        yield from results


def _start_counting() -> Callable[[tuple[Path, int, int]], Counter]:
    return _count_part


def _count_part(part: tuple[Path, int, int]) -> Counter:
    """Count the words of the lines of a file that begin in a range of its bytes."""
    path, first, end = part
    words: Counter = Counter()
    with open(path, "rb") as handle:
        if first:
            handle.seek(first - 1)
            first += len(handle.readline()) - 1
        while first < end and (line := handle.readline()):
            first += len(line)
            words.update(line.strip(b"\r\n ").split(b" "))
    del words[b""]
    return words


def count_words(paths: Iterable[Path], workers: int) -> Counter:
    """Count how often each word, between single spaces, occurs in UTF-8 text files."""
    parts = [
        (path, first, first + BYTES_PER_COUNT)
        for path in paths
        for first in range(0, path.stat().st_size, BYTES_PER_COUNT)
    ]
    total: Counter = Counter()
    for words in map_tasks(parts, _start_counting, (), workers):
        total.update(words)
    return total


if __name__ == "__main__":
    raise SystemExit("corpus_workers.py is not a command: it is a part of prepare_text.py")

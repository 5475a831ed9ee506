"""scripts/corpus_workers.py: order of results, processes that die, and word counts."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import corpus_workers

SCRIPTS = Path(corpus_workers.__file__).parent


def start_doubling(fatal: int | None = None):
    def double(number: int) -> int:
        if number == fatal:
            os.kill(os.getpid(), signal.SIGKILL)
        return 2 * number

    return double


def start_failing():
    raise OSError("no such file: bpe.codes")


@pytest.mark.parametrize("count", [0, 1, 499, 5001])
def test_results_come_in_the_order_of_the_items(count: int) -> None:
    results = corpus_workers.map_items(range(count), start_doubling, (), workers=2)
    assert list(results) == [2 * number for number in range(count)]


def test_killed_worker_is_an_error_that_says_what_to_do() -> None:
    results = corpus_workers.map_items(range(9000), start_doubling, (7000,), workers=2)
    with pytest.raises(corpus_workers.WorkerLost, match="killed.*same command.*--workers"):
        list(results)


def test_worker_that_cannot_start_is_an_error() -> None:
    with pytest.raises(corpus_workers.WorkerLost):
        list(corpus_workers.map_items(range(9), start_failing, (), workers=2))


def test_workers_end_with_the_process_that_started_them() -> None:
    program = (
        "import corpus_workers, os, time\n"
        "def start():\n"
        "    os.write(1, f'{os.getpid()}\\n'.encode())\n"  # one write: lines cannot mix
        "    return time.sleep\n"
        "list(corpus_workers.map_tasks([600, 600], start, (), 2))\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], cwd=SCRIPTS, stdout=subprocess.PIPE, encoding="utf-8"
    )
    for _ in range(2):
        assert int(process.stdout.readline()) > 0
    process.kill()
    # The pipe closes when no process is left that could write into it.
    assert process.communicate(timeout=300)[0] == ""


@pytest.mark.parametrize("part", [1, 7, 64, 10_000])
def test_words_are_counted_wherever_a_file_is_cut(part: int, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(corpus_workers, "BYTES_PER_COUNT", part)
    draw = random.Random(1)
    expected: Counter = Counter()
    paths = [tmp_path / "de", tmp_path / "en"]
    for path in paths:
        lines = [
            " ".join(
                draw.choices(["größer", "läuft", "a", "\u2028", "x\xa0y"], k=draw.randrange(6))
            )
            for _ in range(20)
        ]
        path.write_bytes("\n".join(lines).encode() + b"\n" * draw.randrange(2))
        expected.update(word for line in lines for word in line.split(" ") if word)
    found = corpus_workers.count_words(paths, workers=2)
    assert {word.decode(): count for word, count in found.items()} == expected

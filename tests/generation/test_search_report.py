import json
import logging
import math
from argparse import Namespace
from pathlib import Path

import pytest

from automata import Table, TableModel, make_dictionary, make_sample
from fairseq_sparse.generation import search_report
from fairseq_sparse.generation.search_report import SearchReport
from fairseq_sparse.tasks import TranslationSparseConfig, TranslationSparseTask


@pytest.mark.parametrize(
    "content", [b"PK\x03\x04\xff", b'{"bleu": 31}\n', b'"hypotheses"\n', b"ein Satz\n", b"\n"]
)
def test_a_file_of_another_kind_is_not_overwritten(content, tmp_path):
    path = tmp_path / "checkpoint_best.pt"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="choose a new name"):
        SearchReport(str(path))
    assert path.read_bytes() == content


def test_a_report_is_written_anew(tmp_path):
    path = tmp_path / "report.jsonl"
    for score in (-1.5, -2.5):
        SearchReport(str(path)).add([7], [[{"score": score}]])
        SearchReport(str(path))  # and fails before it has translated a sentence
        (line,) = map(json.loads, path.read_text().splitlines())
        assert (line["id"], line["hypotheses"], line["score"]) == (7, 1, score)
    path.write_text("")
    SearchReport(str(path))


def test_a_pipe_may_be_written_to():
    SearchReport("/dev/null")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_named():
    report = SearchReport("/dev/full")
    with pytest.raises(ValueError, match="--search-report /dev/full: No space left"):
        report.add([7], [[{"score": -1.5}]])


def test_a_line_names_the_unit_of_its_score(tmp_path):
    path = tmp_path / "report.jsonl"
    SearchReport(str(path)).add([7], [[{"score": -math.log(2)}]])
    line = json.loads(path.read_text())
    assert line["score"] == pytest.approx(-math.log(2)) and line["unit"] == "nats"


@pytest.mark.parametrize(
    ("options", "certifies"),
    [
        ({}, True),
        ({"no_repeat_ngram_size": 2}, True),
        ({"sampling": True}, False),
        ({"diverse_beam_groups": 2}, False),
        ({"match_source_len": True}, False),
    ],
)
def test_a_search_that_cannot_certify_says_so(options, certifies, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    path = tmp_path / "report.jsonl"
    words = make_dictionary(12)
    task = TranslationSparseTask(TranslationSparseConfig(search_report=str(path)), words, words)
    models = [TableModel(words, Table(12, branching=3, eos=0.5, dead_end=0.0))]
    generator = task.build_generator(models, Namespace(beam=2, max_len_b=5, **options))
    task.inference_step(generator, models, make_sample(list(range(4, 12))))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(lines) == 8
    for line in lines:
        assert isinstance(line["exact"], bool) == isinstance(line["optimal"], bool) == certifies
    log = caplog.text
    assert ("of 8 sentences (" in log) == certifies
    assert ("certified: nothing, because this kind of search" in log) != certifies
    assert "scores in nats" in log


def test_progress_is_logged_now_and_then(caplog, monkeypatch):
    caplog.set_level(logging.INFO)
    now = [0.0]
    monkeypatch.setattr(search_report.time, "monotonic", lambda: now[0])
    report = SearchReport()
    for number in range(60):
        now[0] += 1.0
        report.add([number], [[{"score": -1.0, "exact": False, "optimal": number % 2 == 0}]], 60)
    found = [record.getMessage() for record in caplog.records]
    assert 3 <= len(found) <= 6
    assert found[0].endswith("of 60 sentences searched, 6 proven optimal")

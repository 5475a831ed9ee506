import json
from pathlib import Path

import pytest

from fairseq_sparse.generation.search_report import SearchReport


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

"""A summary whose figures are of the wrong type is named, with its field and a remedy."""

import json

import pytest

from fairseq_sparse.commands import cli
from fairseq_sparse.tables.columns import COLUMNS
from fairseq_sparse.tables.summaries import read_summary

WRONG = ["text", [1], {"a": 1}, True]
GOOD = {
    "variant": "softmax",
    "bleu": {"bleu": 30.5, "signature": "tok:13a"},
    "test": {},
    "attention": {"cross": {"sparsity": 0.5}},
}


def with_value(path, value):
    summary = json.loads(json.dumps(GOOD))
    *parents, last = path.split(".")
    part = summary
    for name in parents:
        part = part.setdefault(name, {})
    part[last] = value
    return summary


@pytest.mark.parametrize("value", WRONG, ids=repr)
def test_wrong_types_are_named_with_file_and_field(tmp_path, value):
    paths = [
        f"attention.cross.{column.rate}" if column.rate else column.path
        for column in COLUMNS.values()
    ]
    paths += [path.partition(".")[0] for path in paths if "." in path]
    for path in set(paths):
        if (path in ("run", "variant") and value == "text") or (
            "." not in path and isinstance(value, dict)
        ):
            continue
        file = tmp_path / "summary.json"
        file.write_text(json.dumps(with_value(path, value)))
        with pytest.raises(ValueError, match="summary.json"):
            read_summary(tmp_path)


@pytest.mark.parametrize("value", WRONG, ids=repr)
def test_a_table_leaves_such_a_run_out(tmp_path, capsys, value):
    for name, summary in {"good": GOOD, "bad": with_value("bleu.bleu", value)}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "summary.json").write_text(json.dumps(summary))
    assert cli.run("table results", [str(tmp_path / "good"), str(tmp_path / "bad")]) == 1
    captured = capsys.readouterr()
    assert "30.50" in captured.out and f"left out {tmp_path / 'bad'}" in captured.err
    assert cli.run("table results", [str(tmp_path / "bad")]) == 1


@pytest.mark.parametrize("results", [5, [5], [{}], [{"model": "a", "part": "b", "speed": "fast"}]])
def test_speeds_of_the_wrong_type_are_named(tmp_path, capsys, results):
    (tmp_path / "summary.json").write_text(json.dumps(GOOD))
    speeds = tmp_path / "speeds.json"
    speeds.write_text(json.dumps({"benchmark": "decoding", "results": results}))
    assert cli.run("table results", [str(tmp_path), "--speeds", str(speeds)]) == 1
    assert "speeds.json" in capsys.readouterr().err

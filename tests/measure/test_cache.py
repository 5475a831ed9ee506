"""Measurements are made once, and again when anything that they depend on has changed."""

import json
from pathlib import Path

import pytest

from fairseq_sparse.errors import AnalysisError
from fairseq_sparse.measure import making
from fairseq_sparse.measure.cache import Measurements
from fairseq_sparse.measure.run_folders import Run


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replace the functions that measure, and return the names of those called."""
    calls: list[str] = []

    def fake(name):
        def make(of, **settings):
            calls.append(name)
            return {"number": len(calls)}

        return make

    for name in ("output", "decoded", "certified", "attention", "shuffled", "previous"):
        monkeypatch.setattr(making, name, fake(name))
    return calls


def measurements(folder: Path, checkpoint: str = "average.pt", **settings) -> Measurements:
    """Return the measurements of a model in a folder, which need not be one."""
    for name in ("average.pt", "checkpoint3.pt", "dict.de.txt", "test.de-en.de.bin"):
        path = folder / name
        if not path.exists():
            path.write_text(name)
    run = Run("a model", folder / checkpoint, folder)
    return Measurements(run, str(folder), "test", "none", True, lambda x, _: x, **settings)


def test_a_second_call_reads_what_the_first_has_written(made, tmp_path, capsys):
    first = measurements(tmp_path).decoded()
    path = tmp_path / "measurements" / "decoded-test.json"
    assert json.loads(path.read_text())["result"] == {"number": 1}
    assert not capsys.readouterr().err
    assert measurements(tmp_path).decoded() == first and made == ["decoded"]
    assert str(path) in capsys.readouterr().err


def test_each_checkpoint_and_each_part_has_its_own_files(made, tmp_path):
    found = measurements(tmp_path)
    found.output()
    found.on("valid").output()
    measurements(tmp_path, "checkpoint3.pt").output()
    assert len(made) == 3
    files = {str(path.relative_to(tmp_path)) for path in tmp_path.glob("m*/*")}
    assert files == {
        "measurements/output-test.json",
        "measurements/output-valid.json",
        "measurements-checkpoint3/output-test.json",
    }


@pytest.mark.parametrize("changed", ["average.pt", "dict.de.txt", "test.de-en.de.bin", "tags"])
def test_what_was_made_from_another_file_is_replaced(changed, made, tmp_path):
    tags = tmp_path / "tags"
    tags.write_text("NN")
    for count in (1, 2):
        found = measurements(tmp_path)
        for _ in range(2):
            found.by_previous(5, tags)
        assert len(made) == count
        (tmp_path / changed).write_text("changed")


def test_a_checkpoint_that_is_replaced_meanwhile_has_no_measurements(
    made, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = measurements(tmp_path)
    found.output()
    (tmp_path / "average.pt").write_text("of the next epoch")
    with pytest.raises(AnalysisError, match="average.pt has changed"):
        found.decoded()  # with the model that was loaded for the output
    assert measurements(tmp_path).decoded() == {**found._model, "number": 3}


def test_other_settings_and_damaged_files_are_measured_again(made, tmp_path):
    found = measurements(tmp_path)
    for beam in (5, 5, 4):
        found.decoded(beam)
    found.shuffled(1)
    found.shuffled(2)
    assert made == ["decoded"] * 2 + ["shuffled"] * 2
    path = tmp_path / "measurements" / "decoded-test.json"
    for text in ("", '{"made_from"', "[]", "null", '{"made_from": {}, "result": 1}'):
        path.write_text(text)
        before = len(made)
        found.decoded(4)
        assert len(made) == before + 1


def test_ensembles_and_first_sentences_are_not_kept(made, tmp_path):
    found = measurements(tmp_path, f"average.pt:{tmp_path}/checkpoint3.pt")
    assert found.output()["checkpoints"] == [
        *(str(tmp_path / name) for name in ("average.pt", "checkpoint3.pt"))
    ]
    measurements(tmp_path, first=3).output()
    found.output()
    assert len(made) == 3 and not list(tmp_path.glob("measurements*"))


def test_where_nothing_can_be_written_it_is_measured_and_said(made, tmp_path, capsys):
    found = measurements(tmp_path)
    (tmp_path / "measurements").write_text("a file")
    for count in (1, 2):
        assert found.output()["number"] == count
        printed = capsys.readouterr().err
        assert "not kept" in printed and str(tmp_path / "measurements") in printed
        assert "Errno" not in printed and "Traceback" not in printed

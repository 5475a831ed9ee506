"""Checkpoints of released versions, from both environments, load and give the same results."""

import json
import sys

import pytest

import frozen_checkpoints as frozen

FROZEN = sorted(frozen.FOLDER.glob("*/*.pt.gz"))
ENVIRONMENT = "py310" if sys.version_info < (3, 11) else "py311"


def test_every_kind_of_model_is_there_in_both_environments():
    for environment in ("py310", "py311"):
        names = {path.name for path in FROZEN if path.parent.name.endswith(environment)}
        assert names >= {f"{name}.pt.gz" for name in frozen.FLAGS}


def recorded(path):
    return json.loads((path.parent / "expected.json").read_text())[path.name[: -len(".pt.gz")]]


def named(path):
    return f"{path.parent.name}/{path.name[: -len('.pt.gz')]}"


@pytest.mark.parametrize("path", FROZEN, ids=named)
def test_a_frozen_checkpoint_predicts_what_it_predicted(path, tmp_path):
    expected, checkpoint = recorded(path), frozen.unpack(path, tmp_path)
    rows = frozen.probabilities(frozen.DATA, checkpoint)
    for row, before in zip(rows, expected["probabilities"], strict=True):
        assert row == pytest.approx(before, abs=2e-6)
    if not expected["translations"]:  # a language model's
        return
    found = frozen.translations(frozen.DATA, checkpoint)
    for (score, words), (old_score, old_words) in zip(found, expected["translations"], strict=True):
        assert words == old_words and score == pytest.approx(old_score, abs=2e-4)


@pytest.mark.parametrize(
    "path", [path for path in FROZEN if path.parent.name.endswith(ENVIRONMENT)], ids=named
)
def test_training_goes_on_from_a_frozen_checkpoint_as_it_did(path, tmp_path):
    """In the environment that made it: the other has other optimizer states and batches."""
    name, expected = path.name[: -len(".pt.gz")], recorded(path)["more_training"]
    checkpoint = frozen.unpack(path, tmp_path)
    found = frozen.more_training(name, frozen.DATA, checkpoint, tmp_path / "more")
    taus = [key for key in expected if key.endswith(".tau")]
    assert len(taus) == name.count("alpha_relu")
    assert [found.pop(key) for key in taus] == [expected.pop(key) for key in taus]
    assert found == pytest.approx(expected, rel=1e-3)

"""What the tests of several scripts need."""

from pathlib import Path

import pytest

import toy


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small task, as ``fairseq-preprocess`` leaves it."""
    return toy.binarised_text(tmp_path_factory.mktemp("text"))

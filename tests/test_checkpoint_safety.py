"""Loading checkpoints without running code of the file."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from checkpoints import make_state, write
from fairseq_sparse.checkpoint_averaging import average_checkpoints
from fairseq_sparse.checkpoint_safety import (
    CheckpointError,
    allow_fairseq_checkpoints,
    load_checkpoint,
)


@pytest.mark.parametrize("part", [0.1, 0.5, 0.9, 0.99])
def test_truncated_files_are_refused(tmp_path, part):
    (path,) = write(tmp_path, [make_state()])
    content = Path(path).read_bytes()
    Path(path).write_bytes(content[: int(len(content) * part)])
    with pytest.raises(CheckpointError, match="truncated"):
        average_checkpoints([path])


class Attack:
    """Unpickled by an unrestricted pickle, it makes a folder."""

    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (self.folder,)


@pytest.mark.parametrize("place", ["model", "extra_state"])
def test_a_file_that_would_run_code_is_refused(tmp_path, place):
    state = make_state()
    state[place]["attack"] = Attack(str(tmp_path / "attacked"))
    (path,) = write(tmp_path, [state])
    with pytest.raises(CheckpointError, match="refused.*mkdir"):
        load_checkpoint(path)
    assert not (tmp_path / "attacked").exists()
    torch.load(path, weights_only=False)  # the attack itself works
    assert (tmp_path / "attacked").exists()


def test_what_fairseq_saves_loads_the_same(tmp_path):
    (path,) = write(tmp_path, [make_state(1.5)])
    allow_fairseq_checkpoints()
    allow_fairseq_checkpoints()
    states = [load_checkpoint(path)]
    if hasattr(torch.serialization, "add_safe_globals"):
        states.append(torch.load(path, weights_only=True))
    for state in states:
        assert state["cfg"]["model"] == make_state()["cfg"]["model"]
        assert state["extra_state"]["val_loss"] == 2.5
        np.testing.assert_array_equal(state["extra_state"]["counts"], [4, 5])
        assert torch.equal(state["model"]["decoder.half"], torch.full((2, 3), 1.5).half())

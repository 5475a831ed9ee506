"""A truncated checkpoint_last.pt does not prevent a training from resuming."""

import os
import shutil
import struct
import zipfile

import pytest
import torch

import checkpoints
from fairseq_sparse.checkpoints.names import LAST
from fairseq_sparse.checkpoints.recovery import (
    is_damaged,
    recover_last_checkpoint,
    remove_outdated,
)
from fairseq_sparse.commands import cli


def state(updates, weight=0.0):
    return checkpoints.make_state(weight) | {"optimizer_history": [{"num_updates": updates}]}


def save(folder, **updates):
    """Write checkpoints with the given numbers of updates, by stem."""
    for stem, number in updates.items():
        torch.save(state(number, weight=number), folder / f"{stem}.pt")


def updates_of(path):
    return torch.load(path, weights_only=False)["optimizer_history"][-1]["num_updates"]


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def flip_a_bit_of_a_tensor(content):
    place = content.index(struct.pack("<f", 100.0))
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


def flip_a_bit_after(signature, bytes_after):
    def damage(content):
        place = content.rindex(signature) + bytes_after
        return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]

    return damage


DAMAGES = {
    "empty": lambda content: b"",
    "one byte": lambda content: content[:1],
    "half": lambda content: content[: len(content) // 2],
    "all but one byte": lambda content: content[:-1],
    "zeros, as after a power failure": lambda content: bytes(len(content)),
    "an end of zeros": lambda content: content[:2000] + bytes(len(content) - 2000),
    "one bit": flip_a_bit_of_a_tensor,
    # In the directory of a zip archive, and in what says where that is.
    "one bit: encrypted": flip_a_bit_after(b"PK\x01\x02", 8),
    "one bit: beyond the end": flip_a_bit_after(b"PK\x06\x06", 50),
    "one bit: on several disks": flip_a_bit_after(b"PK\x06\x07", 4),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_the_newest_whole_checkpoint_takes_its_place(damage, tmp_path):
    save(tmp_path, checkpoint9=90, checkpoint10=100, checkpoint_10_96=96, checkpoint_last=100)
    last = tmp_path / LAST
    last.write_bytes(DAMAGES[damage](last.read_bytes()))
    before = contents(tmp_path)
    recovery = recover_last_checkpoint(tmp_path)
    after = contents(tmp_path)
    assert after.pop(f"{LAST}.damaged") == before[LAST]
    assert after == before | {LAST: before["checkpoint10.pt"]}
    assert str(tmp_path / "checkpoint10.pt") in str(recovery) and "update 100" in str(recovery)
    assert "\n" not in str(recovery)
    assert recover_last_checkpoint(tmp_path) is None


def test_what_cannot_be_resumed_from_is_passed_over(tmp_path):
    save(tmp_path, checkpoint_best=20, checkpoint3=30, checkpoint_last=40)
    half = (tmp_path / "checkpoint3.pt").read_bytes()
    (tmp_path / "checkpoint3.pt").write_bytes(half[: len(half) // 2])
    without_optimizer = state(50)
    del without_optimizer["last_optimizer_state"]
    torch.save(without_optimizer, tmp_path / "checkpoint5.pt")
    torch.save(state(60), tmp_path / "average.pt")  # not a name that fairseq gives
    (tmp_path / LAST).write_bytes(b"PK")
    assert recover_last_checkpoint(tmp_path).updates == 20
    assert updates_of(tmp_path / LAST) == 20


def test_without_any_state_of_an_optimizer_the_newest_is_taken(tmp_path):
    """Such checkpoints are saved with --no-save-optimizer-state."""
    for updates in (30, 50):
        without_optimizer = state(updates)
        del without_optimizer["last_optimizer_state"]
        torch.save(without_optimizer, tmp_path / f"checkpoint{updates // 10}.pt")
    (tmp_path / LAST).write_bytes(b"PK")
    assert recover_last_checkpoint(tmp_path).updates == 50


def test_without_another_checkpoint_training_starts_anew(tmp_path):
    (tmp_path / LAST).write_bytes(b"PK")
    assert "starts anew" in str(recover_last_checkpoint(tmp_path))
    assert contents(tmp_path) == {f"{LAST}.damaged": b"PK"}


@pytest.mark.parametrize("stems", [(), ("checkpoint1",), ("checkpoint1", "checkpoint_last")])
def test_what_is_in_order_is_left_alone(stems, tmp_path):
    # This includes folders without checkpoint_last.pt, where fairseq starts anew.
    save(tmp_path, **{stem: 10 for stem in stems})
    before = contents(tmp_path)
    assert recover_last_checkpoint(tmp_path) is None
    assert contents(tmp_path) == before


def test_a_checkpoint_with_a_strange_history_does_not_prevent_the_recovery_from_another(tmp_path):
    save(tmp_path, checkpoint2=10)
    torch.save(state(1) | {"optimizer_history": [None]}, tmp_path / "checkpoint1.pt")
    (tmp_path / LAST).write_bytes(b"PK")
    assert recover_last_checkpoint(tmp_path).updates == 10


def test_a_checkpoint_without_checksums_is_not_called_damaged(tmp_path):
    path = tmp_path / LAST
    torch.save(state(1), path, _use_new_zipfile_serialization=False)
    assert not zipfile.is_zipfile(path)
    assert not is_damaged(path) and recover_last_checkpoint(tmp_path) is None


@pytest.mark.parametrize("allowed", range(4))
def test_a_recovery_that_was_killed_is_done_again(allowed, tmp_path, monkeypatch):
    save(tmp_path, checkpoint1=10)
    (tmp_path / LAST).write_bytes(b"PK")
    done = []

    def killed(function):
        def call(source, target):
            if len(done) == allowed:
                raise KeyboardInterrupt
            done.append(target)
            return function(source, target)

        return call

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("shutil.copyfileobj", killed(shutil.copyfileobj))
        patch.setattr("os.replace", killed(os.replace))
        recover_last_checkpoint(tmp_path)
    assert is_damaged(tmp_path / LAST)
    assert recover_last_checkpoint(tmp_path).updates == 10
    assert updates_of(tmp_path / LAST) == 10


def test_a_folder_without_a_last_checkpoint_is_named(tmp_path, capsys):
    assert cli.run("recover", [str(tmp_path)]) == 0
    assert str(tmp_path) in capsys.readouterr().out
    assert cli.run("recover", [str(tmp_path), "--quiet"]) == 0 and not capsys.readouterr().out


def test_command_line(tmp_path, capsys):
    save(tmp_path, checkpoint1=10)
    (tmp_path / LAST).write_bytes(b"")
    assert cli.run("recover", [str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "checkpoint1.pt, after update 10" in printed and printed.count("\n") == 1
    assert cli.run("recover", [str(tmp_path), "--quiet"]) == 0
    assert capsys.readouterr().out == ""
    assert cli.run("recover", [str(tmp_path / "none")]) == 1


def save_keeping(folder, **settings):
    """Write checkpoints at the end of three epochs and at one update within each."""
    save(folder, checkpoint9=90, checkpoint10=100, checkpoint11=110)
    save(folder, checkpoint_9_88=88, checkpoint_10_98=98, checkpoint_11_108=108)
    last = state(110)
    last["cfg"]["checkpoint"] = settings
    for name in ("checkpoint_best.pt", LAST):
        torch.save(last, folder / name)


def test_what_fairseq_could_not_delete_any_more_is_deleted(tmp_path, capsys):
    save_keeping(tmp_path, keep_last_epochs=2, keep_interval_updates=1)
    assert cli.run("recover", [str(tmp_path)]) == 0
    kept = {f"checkpoint{name}.pt" for name in ("10", "11", "_11_108", "_best", "_last")}
    assert set(contents(tmp_path)) == kept
    printed = capsys.readouterr().out
    assert all(f"checkpoint{name}.pt" in printed for name in ("9", "_10_98", "_9_88"))
    assert remove_outdated(tmp_path) == []


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"keep_last_epochs": -1},
        {"keep_last_epochs": 3},
        {"keep_last_epochs": "2"},  # not a number
        {"keep_interval_updates": 1, "keep_interval_updates_pattern": 49},
    ],
)
def test_what_the_training_keeps_is_left_alone(settings, tmp_path):
    save_keeping(tmp_path, **settings)
    before = contents(tmp_path)
    assert remove_outdated(tmp_path) == []
    (tmp_path / LAST).write_bytes(before[LAST][:100])
    assert remove_outdated(tmp_path) == []
    (tmp_path / LAST).unlink()
    assert remove_outdated(tmp_path) == []
    del before[LAST]
    assert contents(tmp_path) == before

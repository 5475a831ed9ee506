"""What a terminal shows while a stage works, and what goes into logs."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import termios

import pytest

from engines import Engine, lines, plan, stage
from fairseq_sparse.recipes import progress, supervisor
from fairseq_sparse.recipes.plan import Command

RECORD = (
    '2026-01-01 00:00:00 | INFO | train_inner | {"epoch": 3, "update": %s, "loss": "4.125", '
    '"wps": "12345.6", "ups": "2", "num_updates": "%d", "wall": "80"}\n'
)


def told(tmp_path, text, *flags, start=0):
    (tmp_path / "log").write_bytes(text.encode())
    return progress.describe(["fairseq-train", "bin", *flags], tmp_path / "log", start)


@pytest.mark.parametrize(
    ("flags", "total", "left"),
    [
        (["--max-update", "1000"], "of 1,000,", "0:06:40"),
        (["--max-update=900", "--max-update", "1000", "--max-epoch", "90"], "of 1,000,", "0:06:40"),
        (["--max-epoch", "10"], "of 800,", "0:05:00"),
        (["--max-epoch", "10", "--max-update", "0"], "of 800,", "0:05:00"),
    ],
)
def test_updates_loss_speed_and_time_left_of_a_training(tmp_path, flags, total, left):
    text = "$ fairseq-train\n" + RECORD % (1.25, 100) + RECORD % (2.5, 200) + "some warning\n"
    shown = told(tmp_path, text, *flags)
    for part in ("200", total, "4.125", "12,346 words/s", left):
        assert part in shown
    assert "left" not in told(tmp_path, text)


def test_records_of_an_earlier_start_are_not_shown(tmp_path):
    text = RECORD % (1, 100)
    assert told(tmp_path, text + "loading\n", start=len(text)) == "loading"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("first\nlast\n\n", "last"),
        ("10%\r20%\r30%", "30%"),
        ("2026-01-01 00:00:00 | INFO | fairseq_cli.preprocess | [de] 3 sents\n", "[de] 3 sents"),
        ("| train_inner | {broken\n", "| train_inner | {broken"),
        ("", ""),
    ],
)
def test_of_other_commands_the_last_line_is_shown(tmp_path, text, shown):
    assert told(tmp_path, text) == shown


@pytest.mark.parametrize(
    ("text", "columns", "shown"),
    [("abcdef", 3, "abc"), ("日本語", 5, "日本"), ("\x1b[31mred\x07", 9, "red"), ("ab", 2, "ab")],
)
def test_a_line_fits_into_the_terminal(text, columns, shown):
    assert progress.shortened(text, columns) == shown


def training(tmp_path):
    """Return a plan whose command writes a record of training, and works on for a moment."""
    script = tmp_path / "train.py"
    script.write_text(f"import time\nprint({RECORD % (1, 100)!r}, flush=True)\ntime.sleep(0.2)")
    command = Command(("python", script, "--max-update", "1000"))
    return plan(stage(tmp_path, command, name="train"))


def test_a_terminal_has_a_line_that_moves_and_logs_have_not(tmp_path, monkeypatch):
    monkeypatch.setattr(supervisor, "PERIOD", 0.02)
    terminal, device = pty.openpty()
    fcntl.ioctl(device, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 40, 0, 0))
    process = Engine(training(tmp_path), os.ttyname(device))
    assert process.wait() == 0
    shown = os.read(terminal, 1 << 16).decode()
    moving = [re.sub(r"\x1b\[K.*", "", line) for line in re.split(r"[\r\n]", shown)]
    assert any(line.startswith("[train] update 100 of 1,000") for line in moving)
    assert all(len(line) < 40 for line in moving if "\n" not in line)
    assert "[train] finished" in shown and "begun" not in shown
    assert "\x1b" not in (tmp_path / "logs" / "train.log").read_text()


def test_without_a_terminal_a_stage_has_a_line_at_its_begin_and_its_end(tmp_path):
    assert Engine(training(tmp_path), tmp_path / "errors").wait() == 0
    begun, finished = lines(tmp_path / "errors")
    assert begun == "[train] begun" and re.fullmatch(r"\[train\] finished in \d\.\d s", finished)

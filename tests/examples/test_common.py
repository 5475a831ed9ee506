"""The functions that the recipes share."""

import signal
import subprocess
from pathlib import Path

import pytest

COMMON = Path(__file__).resolve().parents[2] / "examples" / "stages" / "common.sh"


def run(code, *arguments, timeout=100):
    command = ["bash", "-c", f'set -eu; source "{COMMON}"\n{code}', "recipe", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout)


def test_a_file_is_written_beside_itself_without_following_a_link(tmp_path):
    precious, settings = tmp_path / "precious", tmp_path / "my settings"
    precious.write_text("mine")
    (tmp_path / "my settings.partial").symlink_to(precious)
    done = run('umask 027; write_settings "$1" new; : > "$2"', settings, tmp_path / "ordinary")
    assert done.returncode == 0, done.stderr
    assert settings.read_text() == "new\n" and precious.read_text() == "mine"
    assert settings.stat().st_mode == (tmp_path / "ordinary").stat().st_mode
    assert len(list(tmp_path.iterdir())) == 4


def test_two_writers_have_a_file_each_and_nothing_is_left_of_one_that_fails(tmp_path):
    code = 'begin_file "$1"; a="$partial"; begin_file "$1"; [[ "$a" != "$partial" ]]; fail "no"'
    done = run(code, tmp_path / "table.txt")
    assert done.returncode == 1 and "no" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("artefact", "record", "settings", "current"),
    [
        ("average.pt", "train", "lr 1\nseed 2", True),
        ("average.pt", "train", "lr 1\nseed 3", False),
        ("average.pt", "train", "lr 1", False),
        ("average.pt", "train", "lr 1\nseed 2\ndropout 0", False),
        ("missing.pt", "train", "lr 1\nseed 2", False),
        ("average.pt", "missing", "lr 1\nseed 2", False),
    ],
)
def test_what_was_made_with_the_same_settings_is_current(
    tmp_path, artefact, record, settings, current
):
    (tmp_path / "average.pt").touch()
    code = 'write_settings "$1/train" $\'lr 1\\nseed 2\'; cd -- "$1"; is_current "$2" "$3" "$4"'
    done = run(code, tmp_path, artefact, record, settings)
    assert (done.returncode == 0) == current and not done.stderr


def test_new_settings_are_recorded_once_and_cost_the_old_results(tmp_path):
    for name in ("average.pt", "summary.json"):
        (tmp_path / name).touch()
    code = """RUN_DIR="$1"; set -- "$1/average.pt" "$1/settings/average" 'last 5'
    begin_anew "$@"; [[ ! -e "$1" && ! -e "$RUN_DIR/summary.json" ]]; is_current "$@" && exit 3
    : > "$1"; skip_if_done "${@:1:2}" 'last 6'; echo "goes on"; skip_if_done "$@"; exit 4"""
    done = run(code, tmp_path)
    assert done.returncode == 0 and done.stdout == "goes on\n"
    assert "was: last 5" in done.stderr and "now: last 6" in done.stderr


@pytest.mark.parametrize("ending", ["exit 5", "false", "kill $$", 'fail "no"'])
def test_what_a_script_has_started_ends_with_it(tmp_path, ending):
    """The output is read until its end, and a child of a child could still write to it."""
    code = """at_exit() { echo "at the end"; }
    (sleep 60 & : > "$1/started"; wait) &
    until [[ -e "$1/started" ]]; do sleep 0.01; done
    """
    done = run(f"{code}{ending}", tmp_path, timeout=30)
    assert done.returncode in (5, 1, -signal.SIGTERM) and done.stdout == "at the end\n"

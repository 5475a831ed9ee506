"""The functions that the recipes share."""

import subprocess
from pathlib import Path

COMMON = Path(__file__).resolve().parents[2] / "examples" / "stages" / "common.sh"


def run(code, *arguments):
    command = ["bash", "-c", f'set -eu; source "{COMMON}"\n{code}', "recipe", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=100)


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

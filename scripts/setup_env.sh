#!/usr/bin/env bash
# Makes the environment that the package is tested in.
set -euo pipefail

usage() {
    cat <<'EOF'
usage: bash scripts/setup_env.sh [--python PYTHON] [--venv FOLDER]
       bash scripts/setup_env.sh --active

Without --active: makes .venv at the repository root with the tested, pinned versions of
requirements/, and installs this package in it, editable, with its test, dev and plot extras.
Running it again is quick if nothing has changed.

  --python PYTHON  the interpreter to make .venv with (default: that of an existing .venv, else
                   python3); Python 3.10 gets fairseq 0.12.2, a later one fairseq-fixed
  --venv FOLDER    another folder instead of .venv
  --active         install into the environment of the `python` on the PATH instead; torch and
                   fairseq stay unchanged if they are already installed, even fairseq from source
EOF
}

fail() {
    printf 'setup_env.sh: error: %s\n' "$*" >&2
    exit 1
}

say() {
    printf 'setup_env.sh: %s\n' "$*"
}

# Prints the name of the pin files of an interpreter: py310 or py311.
pins_of() {
    [[ "$("$1" -c 'print(3)' 2>/dev/null)" == 3 ]] || fail "$1 is not a Python: name another"
    "$1" -c '
import sys
if sys.version_info < (3, 10):
    sys.exit(f"setup_env.sh: error: Python 3.10 or later is needed, {sys.executable} is "
             + sys.version.split()[0])
print("py310" if sys.version_info < (3, 11) else "py311")
'
}

# Prints what .venv is made from: the folder, the interpreter, and a checksum of the pins.
description_of() {
    "$1" - "$PWD" "$2" <<'EOF'
import hashlib, pathlib, platform, sys
folder, pins = sys.argv[1:]
files = [f"requirements/{pins}-build.txt", f"requirements/{pins}.txt", "setup.py"]
content = b"\0".join(pathlib.Path(name).read_bytes() for name in files)
print("folder", folder)
print("python", platform.python_version())
print("pins", hashlib.sha256(content).hexdigest())
EOF
}

# True if the interpreter can find a module; it is not imported.
has_module() {
    "$1" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec(sys.argv[1]) is None)' \
        "$2"
}

pip_install() {
    local python="$1"
    shift
    "$python" -m pip install --quiet --disable-pip-version-check "$@"
}

# Installs all pinned packages, and this package.
install_pinned() {
    local python="$1" pins="$2"
    if [[ "$pins" == py311 ]]; then
        say "1/3 installing torch and the packages to build fairseq"
        pip_install "$python" -r requirements/py311-build.txt
        say "2/3 building fairseq and installing the rest (some minutes)"
        pip_install "$python" --no-build-isolation -r requirements/py311.txt
    else
        say "1/3 installing a pip that can install fairseq 0.12.2, and what it is built with"
        pip_install "$python" 'pip<24.1' -r requirements/py310-build.txt
        say "2/3 installing torch, building fairseq and installing the rest (some minutes)"
        PIP_CONSTRAINT=requirements/py310-build.txt \
            pip_install "$python" -r requirements/py310.txt
    fi
    say "3/3 installing fairseq_sparse"
    pip_install "$python" --no-build-isolation --no-deps --editable .
    "$python" -m pip check
}

# Installs the pinned fairseq beside an already installed torch.
install_fairseq() {
    local python="$1" pins="$2" pin
    pin="$(grep '^fairseq' "requirements/$pins.txt")"
    say "installing $pin beside the installed torch"
    if [[ "$pins" == py311 ]]; then
        pip_install "$python" numpy cython wheel 'setuptools<80'
        pip_install "$python" --no-build-isolation "$pin"
    else
        pip_install "$python" 'pip<24.1' 'numpy<2'
        pip_install "$python" "$pin" 'numpy<2'
    fi
}

setup_active() {
    local python pins without_fairseq=0
    python="$(command -v python || command -v python3)" || fail "there is no python on the PATH"
    pins="$(pins_of "$python")"
    say "installing into the environment of $python"
    if has_module "$python" fairseq; then
        say "fairseq and torch are installed: they stay as they are"
        without_fairseq=1
    elif has_module "$python" torch; then
        install_fairseq "$python" "$pins"
    else
        install_pinned "$python" "$pins"
        return
    fi
    say "installing fairseq_sparse and missing packages"
    FAIRSEQ_SPARSE_WITHOUT_FAIRSEQ="$without_fairseq" \
        pip_install "$python" --editable '.[test,dev,plot]'
}

# Makes an environment, in place of an earlier one of this script, which has a stamp.
make_venv() {
    local python="$1" venv="$2" stamp="$3"
    [[ -d "$venv" || ! -e "$venv" ]] || fail "$venv is not a folder: name another with --venv"
    [[ -f "$stamp" || -z "$(ls -A "$venv" 2>/dev/null)" ]] ||
        fail "$venv was not made by this script, and would be emptied: name a new folder with" \
            "--venv, or activate that environment and give --active"
    say "making $venv with $python"
    mkdir -p "$venv"
    echo unfinished >"$stamp" # stays until all is installed
    find "$venv/" -mindepth 1 ! -name "${stamp##*/}" -delete
    "$python" -m venv "$venv"
}

setup_venv() {
    local python="$1" venv="$2"
    local stamp="$venv/fairseq_sparse.stamp"
    local requested pins description old=""
    if [[ -z "$python" && -x "$venv/bin/python" ]]; then
        python="$(readlink -f "$venv/bin/python")" # a venv cannot recreate itself
    fi
    requested="${python:-python3}"
    python="$(command -v "$requested")" ||
        fail "there is no $requested: give another interpreter with --python"
    pins="$(pins_of "$python")"
    description="$(description_of "$python" "$pins")"
    if [[ -f "$stamp" ]]; then
        old="$(<"$stamp")"
    fi
    if [[ "$old" == "$description" ]] && has_module "$venv/bin/python" fairseq; then
        say "$venv is up to date"
        return
    fi
    # The scripts of an environment name its folder, so it cannot be moved.
    if [[ "${old%pins*}" != "${description%pins*}" ]]; then
        make_venv "$python" "$venv" "$stamp"
    fi
    echo unfinished >"$stamp"
    install_pinned "$venv/bin/python" "$pins"
    printf '%s\n' "$description" >"$stamp.new"
    mv "$stamp.new" "$stamp"
    say "$venv is ready after $SECONDS s; to use it: source $venv/bin/activate"
}

main() {
    local python="" venv="" active=0
    while (($# > 0)); do
        case "$1" in
            --active) active=1 ;;
            --python)
                [[ $# -ge 2 && -n "$2" ]] || fail "--python needs an interpreter"
                python="$2"
                shift
                ;;
            --venv)
                [[ $# -ge 2 && -n "$2" ]] || fail "--venv needs a folder"
                venv="$2"
                shift
                ;;
            -h | --help)
                usage
                exit 0
                ;;
            *) fail "unknown argument $1 (see --help)" ;;
        esac
        shift
    done
    [[ "$active" == 0 || -z "$python$venv" ]] ||
        fail "--python and --venv are for a new environment: leave out --active"
    if [[ -n "$venv" && "$venv" != /* ]]; then
        venv="$PWD/$venv"
    fi
    if [[ "$python" == */* ]]; then
        [[ -f "$python" && -x "$python" ]] || fail "$python is not an interpreter"
        python="$(CDPATH='' cd -- "$(dirname -- "$python")" && pwd)/$(basename "$python")"
    fi
    CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
    if [[ "$active" == 1 ]]; then
        setup_active
    else
        setup_venv "$python" "${venv:-.venv}"
    fi
}

main "$@"

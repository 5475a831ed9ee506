#!/usr/bin/env bash
# Checks the format, lints, and runs the tests.
set -euo pipefail

usage() {
    cat <<'EOF'
usage: bash scripts/test.sh [--active | [--python PYTHON] [--venv FOLDER]] [PYTEST ARGUMENTS]

Sets up .venv (see scripts/setup_env.sh), then runs ruff, bash -n and pytest in it.

  --active         run in the environment of the `python` on the PATH, without changing it
  --python PYTHON  the interpreter to make .venv with
  --venv FOLDER    another folder instead of .venv
  other arguments  go to pytest, for example: -k tau, -m slow, -m '' (all), -n 0 (one process)

TEST_WORKERS sets the number of pytest processes (default: the number of cores, at most 4).

The tests marked browser need chromium and chromedriver; without them they are skipped.
TEST_INSTALL_BROWSER=1, which .ci/run sets, installs both with apt-get first if it runs as root;
otherwise nothing is installed.
EOF
}

fail() {
    printf 'test.sh: error: %s\n' "$*" >&2
    exit 1
}

# Installs chromium for the tests marked browser, if allowed. Without it they are skipped.
install_browser() {
    if [[ "${TEST_INSTALL_BROWSER:-0}" != 1 ]] ||
        { command -v chromium && command -v chromedriver; } >/dev/null; then
        return
    fi
    if [[ "$(id -u)" != 0 ]] || ! command -v apt-get >/dev/null; then
        echo "test.sh: no root or no apt-get: tests marked browser are skipped" >&2
        return
    fi
    echo "test.sh: installing chromium for the tests marked browser" >&2
    DEBIAN_FRONTEND=noninteractive timeout 300 bash -c \
        'apt-get update && apt-get install -y --no-install-recommends chromium chromium-driver' \
        >/dev/null 2>&1 ||
        echo "test.sh: apt-get failed: tests marked browser are skipped" >&2
}

cores() {
    # nproc would obey OMP_NUM_THREADS
    env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc 2>/dev/null ||
        getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1
}

active=0
venv=""
setup_arguments=()
while (($# > 0)); do
    case "$1" in
        --active) active=1 ;;
        --python)
            [[ $# -ge 2 && -n "$2" ]] || fail "--python needs an interpreter"
            setup_arguments+=(--python "$2")
            shift
            ;;
        --venv)
            [[ $# -ge 2 && -n "$2" ]] || fail "--venv needs a folder"
            venv="$2"
            [[ "$venv" == /* ]] || venv="$PWD/$venv"
            setup_arguments+=(--venv "$venv")
            shift
            ;;
        -h | --help)
            usage
            exit 0
            ;;
        *) break ;;
    esac
    shift
done

[[ "$active" == 0 || ${#setup_arguments[@]} == 0 ]] ||
    fail "--python and --venv are for an environment of its own: leave out --active"
root="$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)"
if [[ "$active" == 0 ]]; then
    bash "$root/scripts/setup_env.sh" "${setup_arguments[@]+"${setup_arguments[@]}"}"
    venv="${venv:-$root/.venv}"
    export VIRTUAL_ENV="$venv" PATH="$venv/bin:$PATH"
fi
cd "$root"

python -m ruff format --check .
python -m ruff check .
while IFS= read -r -d '' script; do
    bash -n "$script"
done < <(find . -name .venv -prune -o -name .git -prune -o \( -name '*.sh' -o -path './.ci/*' \) -type f -print0)

install_browser

# The suite's processes are small: several threads in each make it slower.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
workers="${TEST_WORKERS:-$(cores)}"
if [[ -z "${TEST_WORKERS:-}" ]] && ((workers > 4)); then
    workers=4
fi
# A file stays in one process, so that shared fixtures are made once. The longest files come first
# (tests/conftest.py), so that no process is left with a long one at the end.
exec python -m pytest -n "$workers" --dist loadfile --no-loadscope-reorder "$@"

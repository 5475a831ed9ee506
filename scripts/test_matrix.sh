#!/usr/bin/env bash
# Runs the tests under each supported Python.
set -euo pipefail

usage() {
    cat <<'EOT'
usage: bash scripts/test_matrix.sh [--python PYTHON]... [--table] [PYTEST ARGUMENTS]

Runs scripts/test.sh for each Python, one after another, in an environment of its own (about 5 GB
each; making it takes some minutes, once), with the tests marked slow, which scripts/test.sh leaves
out. Ends with a table of the versions and results. A Python that is not installed is skipped, with
a message. Exits with 1 if any test failed.

  --python PYTHON  an interpreter; may be given several times (default: those of Python 3.10, 3.11,
                   3.12 and 3.13 that are on the PATH or that pyenv has)
  --table          only print the table of what has been run so far
  other arguments  go to pytest, for example: -k tau, -m 'not slow', tests/ops

hypothesis draws new random examples each time here; scripts/test.sh always uses the same ones (set
HYPOTHESIS_PROFILE=tests for these).

TEST_WORKERS sets the number of pytest processes, as for scripts/test.sh. Environments, logs and
results are kept in runs/test_matrix. After an interruption or a failure, name only the remaining
Pythons: the table includes the earlier ones, with the commit that they tested.
EOT
}

VERSIONS=(3.10 3.11 3.12 3.13)

fail() {
    printf 'test_matrix.sh: error: %s\n' "$*" >&2
    exit 1
}

say() {
    printf 'test_matrix.sh: %s\n' "$*" >&2
}

# Prints the path of an interpreter of that version, if there is one.
find_python() {
    local version="$1" candidate
    for candidate in "$(command -v "python$version" || true)" \
        "${PYENV_ROOT:-$HOME/.pyenv}/versions/$version".*/bin/"python$version"; do
        # A shim of pyenv may be for a version that is not active.
        if [[ -x "$candidate" ]] && "$candidate" -c '' 2>/dev/null; then
            printf '%s\n' "$candidate"
            return
        fi
    done
}

# Runs the tests under one Python. The row of the table is there only if they ran to the end.
run_tests() {
    local python="$1" name="$2"
    shift 2
    local folder="runs/test_matrix/$name" status=0
    mkdir -p "$folder"
    rm -f "$folder/row" "$folder/results.xml"
    say "$name: setting up and testing (log: $folder/tests.log)"
    HYPOTHESIS_PROFILE="${HYPOTHESIS_PROFILE:-random}" bash scripts/test.sh --python "$python" --venv "$folder/.venv" \
        --junitxml "$folder/results.xml" -m '' "$@" >"$folder/tests.log" 2>&1 || status=$?
    tail -n 1 "$folder/tests.log" >&2
    if [[ ! -f "$folder/results.xml" ]]; then
        say "$name: the tests did not run to the end"
        return 1
    fi
    "$folder/.venv/bin/python" - "$folder/results.xml" "$(revision)" "$*" >"$folder/row.new" \
        <<'EOT'
import platform, sys
from importlib.metadata import PackageNotFoundError, version
from xml.etree import ElementTree

path, revision, arguments = sys.argv[1:]
suites = list(ElementTree.parse(path).getroot().iter("testsuite"))
total, skipped, failed, errors = (
    sum(int(suite.get(name)) for suite in suites)
    for name in ("tests", "skipped", "failures", "errors")
)
try:
    fairseq = "fairseq-fixed " + version("fairseq-fixed")
except PackageNotFoundError:
    fairseq = "fairseq " + version("fairseq")
minutes = sum(float(suite.get("time")) for suite in suites) / 60
row = [
    platform.python_version(), fairseq, version("torch"), version("numpy"),
    total - skipped - failed - errors, skipped, failed + errors, f"{minutes:.0f}",
    revision + (f", `{arguments}`" if arguments else ""),
]
print("|", " | ".join(map(str, row)), "|")
EOT
    mv "$folder/row.new" "$folder/row"
    return "$status"
}

# The commit, with a plus if files differ from it.
revision() {
    local commit
    commit="$(git rev-parse --short HEAD 2>/dev/null)" || { printf 'no commit'; return; }
    git diff --quiet HEAD 2>/dev/null || commit="$commit+"
    printf '%s' "$commit"
}

print_table() {
    local row
    printf '| Python | fairseq | torch | numpy | passed | skipped | failed | minutes | commit |\n'
    printf '|---|---|---|---|---|---|---|---|---|\n'
    for row in runs/test_matrix/*/row; do
        if [[ -f "$row" ]]; then cat "$row"; fi
    done
}

main() {
    local pythons=() python version name failed=0 table=0
    while (($# > 0)); do
        case "$1" in
            --python)
                [[ $# -ge 2 && -n "$2" ]] || fail "--python needs an interpreter"
                python="$(command -v "$2")" || fail "there is no $2"
                pythons+=("$(CDPATH='' cd -- "$(dirname -- "$python")" && pwd)/$(basename "$python")")
                shift
                ;;
            --table) table=1 ;;
            -h | --help)
                usage
                exit 0
                ;;
            *) break ;;
        esac
        shift
    done
    CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
    if ((table)); then
        print_table
        return
    fi
    if ((${#pythons[@]} == 0)); then
        for version in "${VERSIONS[@]}"; do
            python="$(find_python "$version")"
            if [[ -n "$python" ]]; then
                pythons+=("$python")
            else
                say "Python $version is skipped: there is no python$version (PATH, pyenv)"
            fi
        done
    fi
    ((${#pythons[@]})) || fail "there is no Python to run: name one with --python"
    for python in "${pythons[@]}"; do
        name="$("$python" -c 'import platform; print(platform.python_version())' 2>/dev/null)" &&
            [[ "$name" == 3.* ]] || fail "$python is not a Python: name another with --python"
        run_tests "$python" "$name" "$@" || failed=1
    done
    print_table
    return "$failed"
}

main "$@"

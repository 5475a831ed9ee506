#!/usr/bin/env bash
# Runs the tests on imitations of other machines, and under each supported Python.
set -euo pipefail

# The name and variables of each setting, with | between them. Libraries and compilers can be told to
# use fewer instructions than this processor has.
SETTINGS=(
    "plain"
    "avx512|ONEDNN_MAX_CPU_ISA=AVX512_CORE|CC=cc -mno-avx512bf16"
    "avx2|ATEN_CPU_CAPABILITY=avx2|MKL_ENABLE_INSTRUCTIONS=AVX2|ONEDNN_MAX_CPU_ISA=AVX2|CC=cc -mno-avx512f"
    "sse|ATEN_CPU_CAPABILITY=default|MKL_ENABLE_INSTRUCTIONS=SSE4_2|ONEDNN_MAX_CPU_ISA=SSE41|CC=cc -mno-avx"
    "no-compiler|CC=/bin/false"
    "threads|TEST_THREADS=2|OMP_NUM_THREADS=2"
    "seed|TEST_SEED=2"
    "full|PYTEST_ADDOPTS=-m ''|HYPOTHESIS_PROFILE=random"
)
VERSIONS=(3.10 3.11 3.12 3.13)

usage() {
    cat <<EOT
usage: bash scripts/test_matrix.sh [--python PYTHON]... [--setting NAME]... [--table]
                                   [PYTEST ARGUMENTS]

Runs scripts/test.sh under several settings, one after another, and ends with a table of results.
By default: every setting but "full" in .venv, then "full" under each supported Python. Exits with 1
if any test failed.

  --python PYTHON  an interpreter; may be given several times. It gets an environment of its own
                   (about 5 GB; making it takes some minutes, once). Default: .venv, and those of
                   Python ${VERSIONS[*]} that are on the PATH or that pyenv has
  --setting NAME   one of those below; may be given several times. Default with --python: full
  --table          only print the table of what has been run so far
  other arguments  go to pytest, for example: -k tau, tests/ops

Settings, with their variables; "full" adds the tests marked slow, and draws new random examples:
$(printf '  %s\n' "${SETTINGS[@]}")

TEST_WORKERS sets the number of pytest processes, as for scripts/test.sh. Environments, logs and
results are kept in runs/test_matrix: after an interruption, name only what remains.
EOT
}

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

# Prints the line of SETTINGS that has this name.
setting_of() {
    local setting
    for setting in "${SETTINGS[@]}"; do
        [[ "${setting%%|*}" != "$1" ]] || { printf '%s\n' "$setting"; return; }
    done
    fail "there is no setting $1 (see --help)"
}

# Runs the tests under one Python ("" for .venv) and setting.
run_tests() {
    local python="$1" setting name=.venv venv=.venv flags=() folder closing status=0
    IFS='|' read -r -a setting <<<"$2"
    shift 2
    if [[ -n "$python" ]]; then
        name="$("$python" -c 'import platform; print(platform.python_version())' 2>/dev/null)" &&
            [[ "$name" == 3.* ]] || fail "$python is not a Python: name another with --python"
        venv="runs/test_matrix/$name/.venv"
        flags=(--python "$python" --venv "$venv")
    fi
    folder="runs/test_matrix/$name/${setting[0]}"
    mkdir -p "$folder"
    rm -f "$folder/row"
    say "$folder: setting up and testing (log: $folder/log)"
    env TEST_SETTING="${setting[@]}" bash scripts/test.sh "${flags[@]+"${flags[@]}"}" "$@" \
        >"$folder/log" 2>&1 || status=$?
    tail -n "$((status ? 200 : 1))" "$folder/log" >&2
    closing="$(tail -n 1 "$folder/log" | sed -En 's/^=* ?(.* in [0-9.]+s( \([0-9:]+\))?) ?=*$/\1/p')"
    [[ -n "$closing" ]] || { say "$folder: the tests did not run to the end"; return 1; }
    printf '| %s | %s | %s | %s |\n' "$("$venv/bin/python" -c '
import importlib.metadata, platform
print(platform.python_version(), "|", importlib.metadata.version("torch"))')" "${setting[0]}" "$closing" \
        "$(git describe --always --dirty 2>/dev/null)${*:+, \`$*\`}" >"$folder/row"
    return "$status"
}

print_table() {
    printf '| Python | torch | setting | result | commit |\n|---|---|---|---|---|\n'
    cat runs/test_matrix/*/*/row runs/test_matrix/.*/*/row 2>/dev/null || true
}

main() {
    local pythons=() settings=() python setting version failed=0 table=0
    while (($# > 0)); do
        case "$1" in
            --python)
                [[ $# -ge 2 && -n "$2" ]] || fail "--python needs an interpreter"
                python="$(command -v "$2")" || fail "there is no $2"
                pythons+=("$(CDPATH='' cd -- "$(dirname -- "$python")" && pwd)/$(basename "$python")")
                shift
                ;;
            --setting)
                [[ $# -ge 2 ]] || fail "--setting needs a name"
                settings+=("$(setting_of "$2")")
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
        for setting in "${settings[@]:-${SETTINGS[@]::${#SETTINGS[@]}-1}}"; do
            run_tests "" "$setting" "$@" || failed=1
        done
    fi
    if ((${#pythons[@]} + ${#settings[@]} == 0)); then
        for version in "${VERSIONS[@]}"; do
            python="$(find_python "$version")"
            [[ -n "$python" ]] || say "Python $version is skipped: it is not on the PATH or in pyenv"
            pythons+=(${python:+"$python"})
        done
    fi
    for python in "${pythons[@]+"${pythons[@]}"}"; do
        for setting in "${settings[@]:-$(setting_of full)}"; do
            run_tests "$python" "$setting" "$@" || failed=1
        done
    done
    print_table
    return "$failed"
}

main "$@"

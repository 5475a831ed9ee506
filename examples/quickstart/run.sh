#!/usr/bin/env bash
# The first ten minutes: sets up .venv and starts run.py; --help lists the options. PYTHON=... uses
# that Python, and sets up nothing.
set -euo pipefail
examples="$(dirname -- "${BASH_SOURCE[0]}")/.."
[[ -n "${PYTHON:-}" || " $* " =~ " "(-h|--help)" " ]] || bash "$examples/../scripts/setup_env.sh"
source "$examples/python.sh"
exec "$PYTHON" "$examples/quickstart/run.py" "$@"

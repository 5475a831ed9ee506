#!/usr/bin/env bash
# The first ten minutes: sets up .venv and starts run.py; --help lists the options. PYTHON=... uses
# that Python, and sets up nothing.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.."
[[ -n "${PYTHON:-}" || " $* " == *" --help "* ]] || bash scripts/setup_env.sh
source examples/python.sh
exec "$PYTHON" examples/quickstart/run.py "$@"

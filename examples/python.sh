# Sets PYTHON, unless it is set, to the Python of .venv or else to python3, and puts its folder on the
# PATH. The package need not be installed. Source it.
root="$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)"
if [[ -z "${PYTHON:-}" ]]; then
  PYTHON=python3
  if [[ -x "$root/.venv/bin/python" ]]; then PYTHON="$root/.venv/bin/python"; fi
fi
PATH="$(dirname -- "$(command -v -- "$PYTHON")"):$PATH"
export PATH PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"

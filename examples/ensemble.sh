#!/usr/bin/env bash
# Decode the test set with several trained models together, and score it. See --help.
source "$(dirname -- "${BASH_SOURCE[0]}")/stages/common.sh"
STAGE=ensemble

usage() {
  cat <<HELP
usage: ensemble.sh RUN_DIR RUN_DIR... --run-dir DIR [options]

The models of finished runs on one data set, of several seeds say, decode together: the probability
of a token is the mean of theirs.

  --run-dir DIR    where the decoded test set and the results go
  --data-dir DIR   prepared data (default: data/DATASET)
  --cpu, --gpu     where to decode (default: as the first run)
  --help           this text
HELP
}

RUNS=()
OPTIONS=()
RUN_DIR=""
while (( $# )); do
  case "$1" in
    -h | --help) usage; exit 0 ;;
    --cpu | --gpu) OPTIONS+=("$1") ;;
    --run-dir | --data-dir)
      option_value "$@"
      if [[ "$1" == --run-dir ]]; then RUN_DIR="$2"; fi
      OPTIONS+=("$1" "$2")
      shift
      ;;
    -*) bad_usage "unknown option '$1'" ;;
    *) RUNS+=("$1") ;;
  esac
  shift
done
(( ${#RUNS[@]} > 1 )) || bad_usage "at least two runs are needed"
[[ -n "$RUN_DIR" ]] || bad_usage "--run-dir is needed"

ENSEMBLE=""
for run in "${RUNS[@]}"; do
  [[ -f "$run/summary.json" && -f "$run/average.pt" ]] \
    || fail "$run is not a finished run: it has no summary.json or no average.pt"
  [[ ! "$run" -ef "$RUN_DIR" ]] || fail "--run-dir must not be one of the runs: $run"
  run="$(CDPATH='' cd -- "$run" && pwd)"
  check_folder "$run"
  ENSEMBLE="$ENSEMBLE${ENSEMBLE:+:}$run/average.pt"
done

# What the runs have in common, and what to call them together.
recipe="$("$PYTHON" - "${RUNS[@]}" <<'PY'
import json, sys
from pathlib import Path

runs = [json.loads((Path(path) / "summary.json").read_text("utf-8")) for path in sys.argv[1:]]
for name in ("dataset", "settings"):
    values = {run.get(name, "") for run in runs}
    if len(values) > 1:
        sys.exit(f"the runs differ in {name}: {', '.join(sorted(values))}")
variants = list(dict.fromkeys(run.get("variant_name") or run["variant"] for run in runs))
first = runs[0]
print(first["dataset"], first["variant"], first["config"], first.get("settings", ""), sep="\n")
print(f"ensemble of {len(runs)}: {' + '.join(variants)}")
PY
)" || fail "the runs are no ensemble (see above)"
{ read -r DATASET; read -r VARIANT; read -r CONFIG; read -r SETTINGS; read -r VARIANT_NAME; } <<<"$recipe"

ENSEMBLE="$ENSEMBLE" bash "$EXAMPLES/run.sh" "$DATASET" "$VARIANT" --stages generate "--$CONFIG" \
  ${SETTINGS:+--settings "$SETTINGS"} "${OPTIONS[@]}"
export DATASET VARIANT VARIANT_NAME SETTINGS CONFIG
"$PYTHON" "$ROOT/scripts/summarize_run.py" ensemble "$RUN_DIR" \
  || fail "the results could not be summarised (see above)"
"$PYTHON" "$ROOT/scripts/results_table.py" "$RUN_DIR" >&2

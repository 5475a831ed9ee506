#!/usr/bin/env bash
# Decode the test set with several trained models together, and score it. See --help.
source "$(dirname -- "${BASH_SOURCE[0]}")/stages/common.sh"
STAGE=ensemble

usage() {
  cat <<HELP
usage: ensemble.sh RUN_DIR RUN_DIR... --run-dir DIR [options]

The models of finished runs on one data set, for example of several seeds, decode together: the
probability of a token is the mean over the models.

  --run-dir DIR    where the decoded test set and the results go
  --data-dir DIR   prepared data (default: data/DATASET)
  --cpu, --gpu     where to decode (default: like the first run)
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

MODELS=() MEMBERS=""
for run in "${RUNS[@]}"; do
  check_finished "$run"
  [[ ! -f "$run/measures.json" ]] || fail "$run is a language model: only models that translate or" \
    "inflect can decode together"
  [[ ! "$run" -ef "$RUN_DIR" ]] || fail "--run-dir must not be one of the runs: $run"
  for path in ${MODELS[@]+"${MODELS[@]}"}; do
    [[ ! "$run/average.pt" -ef "$path" ]] || fail "the same model was given twice: $run"
  done
  run="$(CDPATH='' cd -- "$run" && pwd)"
  check_folder "$run"
  MODELS+=("$run/average.pt")
  MEMBERS="$MEMBERS${MEMBERS:+:}${run##*/}"
done
recipe_of "${RUNS[@]}"
VARIANT_NAME="ensemble of ${#RUNS[@]}: $VARIANT_NAME"

ENSEMBLE="$(IFS=':'; printf '%s' "${MODELS[*]}")" \
  bash "$EXAMPLES/run.sh" "$DATASET" "$VARIANT" --stages generate "--$CONFIG" \
  ${SETTINGS:+--settings "$SETTINGS"} "${OPTIONS[@]}"
export DATASET DATASET_NOTE VARIANT VARIANT_NAME SETTINGS CONFIG MEMBERS
"$PYTHON" "$ROOT/scripts/summarize_run.py" ensemble "$RUN_DIR" \
  || fail "the results could not be summarised (see above)"
"$PYTHON" -m fairseq_sparse table results "$RUN_DIR" >&2

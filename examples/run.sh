#!/usr/bin/env bash
# Runs all stages from raw text to a score, for one data set and one variant. See --help.
source "$(dirname -- "${BASH_SOURCE[0]}")/stages/common.sh"

STAGE_FILES=("$EXAMPLES"/stages/[0-9]*_*.sh)

stage_list() {
  local path name list=""
  for path in "${STAGE_FILES[@]}"; do
    name="${path##*/}"
    name="${name%.sh}"
    list="$list ${name%%_*}=${name#*_}"
  done
  printf '%s' "${list# }"
}

# Fold a long line into several, indented for the help.
folded() {
  fold -s -w 88 | sed -e '2,$s/^/           /' -e 's/ *$//'
}

usage() {
  cat <<HELP
usage: run.sh DATASET VARIANT [options]

data sets: $(names_in "$EXAMPLES/datasets" | folded)
variants:  $(names_in "$EXAMPLES/variants" | folded)
settings:  $(names_in "$EXAMPLES/settings")
stages:    $(stage_list)

  --stages LIST    names, numbers or ranges, e.g. prepare,train  2-4  train-generate (default: all)
  --cpu, --gpu     which configuration of the data set (default: gpu if PyTorch sees one, else cpu)
  --settings NAME  hyperparameters of a paper, over those of the data set
  --data-dir DIR   prepared data, shared by the variants (default: data/DATASET)
  --run-dir DIR    logs, checkpoints, results (default: runs/DATASET/VARIANT-cpu or -gpu,
                   with settings VARIANT-SETTINGS-cpu or -gpu)
  --help           this text

The default folders are in the project's folder. A finished stage is skipped, an interrupted one
resumes, and changed settings are reported. docs/recipes.md lists the environment variables
(RAW_DIR, PYTHON, TRAIN_FLAGS, ...).
HELP
}

# Print the position in STAGE_FILES of a stage given by name or number.
stage_position() {
  local position name
  for position in "${!STAGE_FILES[@]}"; do
    name="${STAGE_FILES[$position]##*/}"
    name="${name%.sh}"
    if [[ "$1" == "${name%%_*}" || "$1" == "${name#*_}" ]]; then
      printf '%s' "$position"
      return
    fi
  done
  return 1
}

# Mark in SELECTED every stage that the list names.
select_stages() {
  local part first last position parts
  IFS=',' read -r -a parts <<<"$1"
  for part in "${parts[@]}"; do
    [[ "$part" != *-*-* ]] || bad_usage "'$part' is not a range of stages"
    first="${part%%-*}"
    last="${part##*-}"
    first="$(stage_position "$first")" || bad_usage "unknown stage '$part'"
    last="$(stage_position "$last")" || bad_usage "unknown stage '$part'"
    (( first <= last )) || bad_usage "empty range of stages '$part'"
    for (( position = first; position <= last; position++ )); do SELECTED[position]=yes; done
  done
}

NAMES=()
STAGES=""
CONFIG=""
DATA_DIR=""
RUN_DIR=""
SETTINGS=""
while (( $# )); do
  case "$1" in
    -h | --help) usage; exit 0 ;;
    --cpu | --gpu) CONFIG="${1#--}" ;;
    --stages) option_value "$@"; STAGES="$2"; shift ;;
    --settings) option_value "$@"; SETTINGS="$2"; shift ;;
    --data-dir) option_value "$@"; DATA_DIR="$2"; shift ;;
    --run-dir) option_value "$@"; RUN_DIR="$2"; shift ;;
    -*) bad_usage "unknown option '$1'" ;;
    *) NAMES+=("$1") ;;
  esac
  shift
done
(( ${#NAMES[@]} == 2 )) || bad_usage "a data set and a variant are needed"
DATASET="${NAMES[0]}"
VARIANT="${NAMES[1]}"
known datasets "$DATASET" || bad_usage "unknown data set '$DATASET'"
known variants "$VARIANT" || bad_usage "unknown variant '$VARIANT'"
[[ -z "$SETTINGS" ]] || known settings "$SETTINGS" || bad_usage "unknown settings '$SETTINGS'"
SELECTED=()
select_stages "${STAGES:-$(printf '%s' "$(stage_list)" | tr ' ' '\n' | sed 's/=.*//' | paste -sd, -)}"

missing="$("$PYTHON" - fairseq torch sacrebleu sacremoses subword_nmt fairseq_sparse <<'PY'
import importlib.util, sys
print(*[name for name in sys.argv[1:] if importlib.util.find_spec(name) is None])
PY
)" || fail "PYTHON: cannot run $PYTHON"
[[ -z "$missing" ]] || fail "$PYTHON does not have: $missing. Run scripts/setup_env.sh, or set PYTHON" \
  "to a Python that has them"

CONFIG="${CONFIG:-$(default_config)}"
check_folder "$ROOT"
DATA_DIR="$(make_absolute "${DATA_DIR:-$ROOT/data/$DATASET}" --data-dir)"
RUN_DIR="${RUN_DIR:-$ROOT/runs/$DATASET/$VARIANT${SETTINGS:+-$SETTINGS}-$CONFIG}"
RUN_DIR="$(make_absolute "$RUN_DIR" --run-dir)"
check_folder "$DATA_DIR" # also checks the parent of a relative path
check_folder "$RUN_DIR"
export DATASET VARIANT SETTINGS CONFIG DATA_DIR RUN_DIR

say "$DATASET, $VARIANT, ${SETTINGS:+settings of $SETTINGS, }$CONFIG configuration"
say "data: $DATA_DIR"
say "run:  $RUN_DIR"
mkdir -p -- "$RUN_DIR/logs"
for position in "${!STAGE_FILES[@]}"; do
  [[ -n "${SELECTED[position]:-}" ]] || continue
  name="${STAGE_FILES[$position]##*/}"
  name="${name%.sh}"
  log="$RUN_DIR/logs/$name.log"
  STAGE="${name#*_}" bash "${STAGE_FILES[$position]}" 2>&1 | drop_noise | tee -a -- "$log" \
    || fail "the stage ${name#*_} failed; its log: $log"
done
say "finished: $RUN_DIR"

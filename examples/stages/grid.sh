#!/usr/bin/env bash
# Trains and scores the runs of a list, several at a time, and names those that failed at the end:
# grid.sh LIST JOBS. Used by sweep.sh and reproduce.sh, which set CONFIG and STAGE, the prefix of
# messages.
#
# A line of LIST is a run: seed, data set, variant, settings, variables of the variant (NAME=VALUE
# NAME=VALUE), --data-dir and --run-dir, separated by tabs, with "-" for none. JOBS is the number of
# simultaneous runs; 0 means one per GPU (or RUNS_PER_GPU), and 1 on a CPU. If ANALYSIS is set, that
# command of fairseq-sparse analyze output is run with each model on the validation set, as in SUE,
# Table 2.
#
# Each run is a process of its own, which xargs starts as "grid.sh --one NUMBER". It finds in the
# environment: LIST, the copy of the list; COUNT, the number of its lines; JOBS; SLOTS, a folder with
# a file per simultaneous run that names its GPUs, the directory NUMBER.taken while it is in use, and
# the lists "unprepared" (data folders) and "failed" (runs); CONFIG, STAGE and ANALYSIS.
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

# Read the fields of a run of LIST, by its number from 1.
read_run() {
  IFS=$'\t' read -r SEED DATASET VARIANT SETTINGS VARIABLES DATA_DIR RUN_DIR \
    < <(sed -n "$1p" "$LIST")
  NAME="$DATASET, $VARIANT"
  if [[ "$VARIABLES" == - ]]; then VARIABLES=""; else NAME="$NAME $VARIABLES"; fi
  if [[ "$SETTINGS" == - ]]; then SETTINGS=""; else NAME="$NAME, settings of $SETTINGS"; fi
  NAME="$NAME, seed $SEED"
}

# Run the recipe of the current run; arguments are further options, such as --stages.
recipe() {
  local variables
  read -r -a variables <<<"$VARIABLES" || true
  env SEED="$SEED" ${variables[@]+"${variables[@]}"} bash "$EXAMPLES/run.sh" "$DATASET" "$VARIANT" \
    "--$CONFIG" ${SETTINGS:+--settings "$SETTINGS"} --data-dir "$DATA_DIR" --run-dir "$RUN_DIR" "$@"
}

analysis() {
  local result="$RUN_DIR/$ANALYSIS.json" record="$RUN_DIR/settings/$ANALYSIS" flags=() settings
  if [[ "$CONFIG" == cpu ]]; then flags=(--cpu); fi
  settings="valid $(sha256_of "$RUN_DIR/average.pt")"
  ! is_current "$result" "$record" "$settings" || ! grep -qs '"subset": "valid"' "$result" || return 0
  rm -f -- "$record"
  "$PYTHON" -m fairseq_sparse analyze output "$ANALYSIS" "$DATA_DIR/prepared/bin" --subset valid \
    --path "$RUN_DIR/average.pt" --json "$result" ${flags[@]+"${flags[@]}"} || return 1
  write_settings "$record" "$settings"
}

# Do one run in a process of its own, on devices that no other run uses.
one() {
  local slot=1 gpus
  read_run "$1"
  if grep -qsxF -- "$DATA_DIR" "$SLOTS/unprepared"; then
    printf '%s: no data, see above\n' "$NAME" >> "$SLOTS/failed"
    exit 1
  fi
  until mkdir -- "$SLOTS/$slot.taken" 2>/dev/null; do
    slot=$(( slot % JOBS + 1 ))
    (( slot > 1 )) || sleep 1
  done
  TAKEN="$SLOTS/$slot.taken"
  at_exit() { rmdir -- "$TAKEN"; }
  gpus="$(cat -- "$SLOTS/$slot")"
  if [[ -n "$gpus" ]]; then export CUDA_VISIBLE_DEVICES="$gpus"; fi
  mkdir -p -- "$RUN_DIR"
  say "run $1 of $COUNT: $NAME${gpus:+, GPU $gpus}, in $RUN_DIR"
  if { recipe && { [[ -z "${ANALYSIS:-}" ]] || analysis; }; } > "$RUN_DIR/run.log" 2>&1; then
    say "$NAME: done"
  else
    printf '%s: %s\n' "$NAME" "$RUN_DIR/run.log" >> "$SLOTS/failed"
    tail -n 3 -- "$RUN_DIR/run.log" >&2
    say "$NAME failed; its log: $RUN_DIR/run.log"
    exit 1
  fi
}

# Make the slots: files with the GPUs for the run that takes the slot.
share_devices() {
  local count slot first many gpus each="${RUNS_PER_GPU:-1}"
  if [[ "$CONFIG" == gpu ]]; then
    count="$("$PYTHON" -c 'import torch; print(torch.cuda.device_count())')"
    (( count > 0 )) || fail "--gpu: PyTorch sees no GPU; use --cpu, or check CUDA_VISIBLE_DEVICES"
    if (( JOBS == 0 )); then JOBS=$(( count * each )); fi
    (( JOBS <= count * each )) \
      || fail "--jobs $JOBS: there are only $count GPUs$( (( each == 1 )) || printf ', for %s runs each' "$each")"
    IFS=',' read -r -a gpus <<<"${CUDA_VISIBLE_DEVICES:-$(seq -s , 0 $(( count - 1 )))}"
    for (( slot = 1; slot <= JOBS; slot++ )); do
      first=$(( (slot - 1) * count / JOBS ))
      many=$(( slot * count / JOBS - first ))
      (IFS=','; printf '%s' "${gpus[*]:first:many ? many : 1}") > "$SLOTS/$slot"
    done
  else
    if (( JOBS == 0 )); then JOBS=1; fi
    for (( slot = 1; slot <= JOBS; slot++ )); do : > "$SLOTS/$slot"; done
    if (( JOBS > 1 )); then
      # Otherwise each run takes all cores, and they wait for each other.
      count="$("$PYTHON" -c 'import os; print(os.cpu_count())')"
      export OMP_NUM_THREADS="${OMP_NUM_THREADS:-$(( count > JOBS ? count / JOBS : 1 ))}"
    fi
  fi
}

# Prepare each data set with its first run, before several runs need it at once.
prepare_data() {
  local number
  for number in $(awk -F '\t' '!seen[$6]++ { print NR }' "$LIST"); do
    read_run "$number"
    if ! recipe --stages prepare; then
      printf '%s\n' "$DATA_DIR" >> "$SLOTS/unprepared"
    fi
  done
}

if [[ "${1:-}" == --one ]]; then
  one "$2"
  exit 0
fi

: "${CONFIG:?grid.sh is started by sweep.sh and reproduce.sh}"
JOBS="$2"
SLOTS="$(mktemp -d)"
at_exit() { rm -rf -- "$SLOTS"; }
# Copy the list, because the same command, if started again meanwhile, overwrites it.
LIST="$SLOTS/list"
cp -- "$1" "$LIST"
share_devices
COUNT=$(( $(wc -l < "$LIST") ))
export CONFIG LIST JOBS SLOTS STAGE COUNT
prepare_data
status=0
# xargs continues after a failed run.
seq "$COUNT" | xargs -n 1 -P "$JOBS" bash "${BASH_SOURCE[0]}" --one || status=$?
if [[ -f "$SLOTS/failed" ]]; then
  say "$(( $(wc -l < "$SLOTS/failed") )) of $COUNT runs failed:"
  sed 's/^/  /' "$SLOTS/failed" >&2
fi
(( status == 0 )) || fail "start the same command again for the missing runs"

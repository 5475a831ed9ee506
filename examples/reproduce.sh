#!/usr/bin/env bash
# Trains the runs behind a table or a figure of a paper, and makes it from them. See --help.
# docs/reproduction.md lists every table and figure of the papers.
source "$(dirname -- "${BASH_SOURCE[0]}")/stages/common.sh"
STAGE=reproduce

# Print PAPER, TABLE and title of every file in tables/.
table_list() {
  local path name
  for path in "$EXAMPLES"/tables/*.sh; do
    name="${path##*/}"
    name="${name%.sh}"
    # shellcheck source=/dev/null
    (source "$path"; printf '  %-34s %s\n' "${name%_*} ${name##*_}" "$TITLE")
  done
}

usage() {
  cat <<HELP
usage: reproduce.sh PAPER TABLE [options]

Trains and scores every model behind a table or a figure, with several seeds, and writes a table and
the pictures. The paper's figures stand beside ours where data set, split and metric are the same;
notes below the table say where they differ. BLEU comes with sacreBLEU's paired bootstrap test
against the first row.

$(table_list)

  --dataset NAME   use this instead of the table's data sets; may be repeated
  --seeds N        seeds 1 to N (default: 3)
  --jobs N         number of simultaneous runs (default: one per GPU; on a CPU 1)
  --settings NAME  hyperparameters of a paper, over those of the data set: $(names_in "$EXAMPLES/settings")
                   (default: the table's for its own data sets, none for others)
  --data DIR       prepared data are in DIR/DATASET (default: data)
  --runs DIR       runs are in DIR/DATASET, tables in DIR/tables (default: runs)
  --cpu, --gpu     configuration of the data sets to use (default: gpu if PyTorch sees one)
  --dry-run        list the runs, and train nothing
  --table-only     make the table from the finished runs, and train nothing
  --help           this text

The default folders are in the project's folder. All rows of a seed come before the next seed, so
that a stopped grid still gives a table. When the same command is started again, finished runs are
skipped and interrupted ones resume; failed runs are named at the end. The environment variables of
run.sh apply to every run. With fewer jobs than GPUs, each run uses several GPUs.

GOLD_SET names the gold alignments of "rela 5" and "rela fig4", unless they are in RAW_DIR. SENTENCES
are the numbers of the sentences that "rela fig7" to "fig9" draw (default: 0 1 2), and LAYER is the
layer (default: the last; the paper: 3). "rela ranking" draws its samples from the ENDS pairs at
either end (default: 10000); the corpus must have at least twice as many.
HELP
}

# Print the default folder of run.sh for seed 1, or of sweep.sh for any seed, so that runs which
# they have trained are not trained again.
run_folder() {
  local dataset="$1" variant="$2" variables="$3" seed="$4" name suffix
  suffix="${SETTINGS:+-$SETTINGS}-$CONFIG"
  if [[ "$variables" =~ ^OUTPUT_ALPHA=([^ ]+)\ ATTENTION_ALPHA=([^ ]+)$ ]]; then
    name="sweep$suffix/output-${BASH_REMATCH[1]}-attention-${BASH_REMATCH[2]}/seed-$seed"
  else
    name="$(printf '%s' "$variant${variables:+-$variables}" | tr A-Z a-z | sed 's/[ =]/-/g')$suffix"
    if (( seed > 1 )); then name="$name-seed-$seed"; fi
  fi
  printf '%s' "$RUNS/$dataset/$name"
}

# Print the runs, one per line, in the format of stages/grid.sh.
plan() {
  local seed dataset row variant variables
  for (( seed = 1; seed <= SEEDS; seed++ )); do
    for dataset in "${DATASETS[@]}"; do
      for row in "${ROWS[@]}"; do
        variant="${row%% *}"
        variables="${row#"$variant"}"
        variables="${variables# }"
        printf '%s\t%s\t%s\t%s\t%s\t%s\t%s\n' "$seed" "$dataset" "$variant" "${SETTINGS:--}" \
          "${variables:--}" "$DATA/$dataset" \
          "$(run_folder "$dataset" "$variant" "$variables" "$seed")"
      done
    done
  done
}

show_plan() {
  local seed dataset variant settings variables data_dir run_dir state
  while IFS=$'\t' read -r seed dataset variant settings variables data_dir run_dir; do
    state="to do"
    if [[ -d "$run_dir" ]]; then state=begun; fi
    if [[ -f "$run_dir/summary.json" ]]; then state=done; fi
    if [[ "$variables" != - ]]; then variant="$variant $variables"; fi
    printf '%-6s seed %s  %s  %s  %s\n' "$state" "$seed" "$dataset" "$variant" "$run_dir"
  done
}

# Train the runs of the plan in the file $1, and fail if one of them does.
train() {
  local dataset seeds status=0
  if [[ -z "${SWEEP_ALPHAS:-}" ]]; then
    bash "$EXAMPLES/stages/grid.sh" "$1" "${JOBS:-0}"
    return
  fi
  [[ -z "$SETTINGS" ]] || fail "--settings: this table is made by sweep.sh, which takes none"
  seeds="$(seq "$SEEDS" | paste -sd ' ' -)"
  for dataset in "${DATASETS[@]}"; do
    bash "$EXAMPLES/sweep.sh" "$dataset" "--$CONFIG" --output-alphas "$SWEEP_ALPHAS" \
      --attention-alphas "$SWEEP_ALPHAS" --seeds "$seeds" ${JOBS:+--jobs "$JOBS"} \
      --data-dir "$DATA/$dataset" --sweep-dir "$RUNS/$dataset/sweep-$CONFIG" || status=1
  done
  return "$status"
}

# Run a command of fairseq-sparse, or a script of scripts/, on the device of the configuration.
run_command() {
  local command=("$@")
  case "$1" in
    benchmark/*) if [[ "$CONFIG" == gpu ]]; then command+=(--device cuda); fi ;;
    compare | sheets) ;; # no model
    *) command+=(${DEVICE[@]+"${DEVICE[@]}"}) ;;
  esac
  say "${command[*]}"
  if [[ "$1" == *.py ]]; then
    "$PYTHON" "$ROOT/scripts/${command[0]}" "${command[@]:1}"
  else
    "$PYTHON" -m fairseq_sparse "${command[@]}"
  fi
}

# Print the file of a test set's raw text: test_text DATASET 2 for the source, 3 for the reference.
test_text() {
  local prepared="$DATA/$1/prepared"
  printf '%s/reference/test.' "$prepared"
  awk -v side="$2" '$1 == "languages" { print $side }' "$prepared/settings"
}

# Print the title of a run in the table: title RUN_DIR ROW.
title() {
  "$PYTHON" - "$@" <<'PY'
import json, sys
with open(f"{sys.argv[1]}/summary.json", encoding="utf-8") as summary:
    print(json.load(summary).get("variant_name") or sys.argv[2])
PY
}

# Run the commands of FOLLOW_UP, separated by THEN, on the finished models of seed 1 of each data
# set, or with FOLLOW_UP_SEEDS=all on those of all seeds, where the seeds of a row share a name. In
# the commands, DATA, PREPARED, SOURCE and REFERENCE stand for the data and the texts of the test
# set, MODELS, NAMES, LOGS and SYSTEMS (NAME=FOLDER) for the files of the runs, GOLD for the gold
# alignments, and STEM for the beginning of the output files' names.
run_follow_up() {
  local seed dataset variant settings variables data_dir run_dir wanted word
  local models names logs systems command files
  for wanted in "${DATASETS[@]}"; do
    models=() names=() logs=() systems=() command=() files="$stem"
    if (( ${#DATASETS[@]} > 1 )); then files="$stem-$wanted"; fi
    while IFS=$'\t' read -r seed dataset variant settings variables data_dir run_dir; do
      [[ "$seed" == 1 || "$FOLLOW_UP_SEEDS" == all ]] || continue
      [[ "$dataset" == "$wanted" && -f "$run_dir/summary.json" ]] || continue
      if [[ "$variables" != - ]]; then variant="$variant $variables"; fi
      names+=("$(title "$run_dir" "$variant")")
      models+=("$run_dir/average.pt") logs+=("$run_dir/logs/2_train.log")
      systems+=("$variant=$run_dir")
    done < "$1"
    (( ${#models[@]} )) || continue
    begin_file "$files.txt"
    for word in "${FOLLOW_UP[@]}" THEN; do
      case "$word" in
        DATA) command+=("$DATA/$wanted/prepared/bin") ;;
        PREPARED) command+=("$DATA/$wanted/prepared") ;;
        MODELS) command+=("${models[@]}") ;;
        NAMES) command+=("${names[@]}") ;;
        LOGS) command+=("${logs[@]}") ;;
        SYSTEMS) command+=("${systems[@]}") ;;
        SOURCE) command+=("$(test_text "$wanted" 2)") ;;
        REFERENCE) command+=("$(test_text "$wanted" 3)") ;;
        GOLD) command+=("$GOLD") ;;
        THEN)
          run_command "${command[@]}" >> "$partial" || return 1
          command=()
          ;;
        STEM*) command+=("$files${word#STEM}") ;;
        *) command+=("$word") ;;
      esac
    done
    mv -f -- "$partial" "$files.txt"
    cat -- "$files.txt"
  done
}

# Print the path of the gold alignments for FOLLOW_UP; checked early, so that a missing path is
# reported before the training.
find_gold() {
  local place
  for place in "${GOLD_SET:-}" ${RAW_DIR:+"$RAW_DIR/DeEnGoldAlignment.tar.gz" "$RAW_DIR/DeEn"}; do
    if [[ -n "$place" && -e "$place" ]]; then printf '%s' "$place"; return; fi
  done
  fail "GOLD_SET must name the gold alignments, the archive DeEnGoldAlignment.tar.gz or its folder" \
    "DeEn; https://www-i6.informatik.rwth-aachen.de/goldAlignment/ gives them to anyone who fills in a form"
}

absolute() {
  check_folder "$1"
  if [[ "$1" == /* ]]; then printf '%s' "$1"; else printf '%s/%s' "$PWD" "$1"; fi
}

# Read the command line and the table's file, and check them.
parse_options() {
  local own dataset
  NAMES=() CHOSEN=()
  SEEDS=3 JOBS="" CONFIG="" DATA="$ROOT/data" RUNS="$ROOT/runs" ACTION=all CHOSEN_SETTINGS=""
  while (( $# )); do
    case "$1" in
      -h | --help) usage; exit 0 ;;
      --cpu | --gpu) CONFIG="${1#--}" ;;
      --dry-run | --table-only) ACTION="${1#--}" ;;
      --dataset) option_value "$@"; CHOSEN+=("$2"); shift ;;
      --seeds) option_value "$@"; SEEDS="$2"; shift ;;
      --jobs) option_value "$@"; JOBS="$2"; shift ;;
      --settings) option_value "$@"; CHOSEN_SETTINGS="$2"; shift ;;
      --data) option_value "$@"; DATA="$2"; shift ;;
      --runs) option_value "$@"; RUNS="$2"; shift ;;
      -*) bad_usage "unknown option '$1'" ;;
      *) NAMES+=("$1") ;;
    esac
    shift
  done
  (( ${#NAMES[@]} == 2 )) || bad_usage "a paper and a table are needed"
  PAPER="${NAMES[0]}" TABLE="${NAMES[1]}"
  [[ "$PAPER/$TABLE" =~ ^[a-z0-9_]+/[a-z0-9]+$ && -f "$EXAMPLES/tables/${PAPER}_$TABLE.sh" ]] \
    || bad_usage "there is no table '$TABLE' of a paper '$PAPER'"
  [[ "$SEEDS" =~ ^[1-9][0-9]*$ ]] || bad_usage "--seeds must be a positive number, got '$SEEDS'"
  [[ "$JOBS" =~ ^([1-9][0-9]*)?$ ]] || bad_usage "--jobs must be a positive number, got '$JOBS'"
  (( ${#SEEDS} < 5 && ${#JOBS} < 5 )) || bad_usage "--seeds and --jobs must be below 10000"
  SETTINGS="" ANALYSIS="" NOTE="" EARLY=1 FOLLOW_UP_SEEDS="" GOLD="" SHOW=""
  [[ "$TABLE" != fig* ]] || SHOW=none
  DRAW=() FOLLOW_UP=() COMMAND=() DATASETS=() ROWS=() DEVICE=()
  # shellcheck source=/dev/null
  source "$EXAMPLES/tables/${PAPER}_$TABLE.sh"
  # The table's settings apply only to its own data sets.
  if (( ${#CHOSEN[@]} )); then
    if [[ -n "$SETTINGS" && -z "$CHOSEN_SETTINGS" ]]; then
      own=0
      for dataset in "${CHOSEN[@]}"; do
        [[ " ${DATASETS[*]-} " != *" $dataset "* ]] || own=$(( own + 1 ))
      done
      (( own == 0 || own == ${#CHOSEN[@]} )) || bad_usage "--dataset: some of these are the\
 table's own and have its settings, $SETTINGS, others have none: run them separately, or give\
 --settings"
      (( own )) || SETTINGS=""
    fi
    DATASETS=("${CHOSEN[@]}")
  fi
  SETTINGS="${CHOSEN_SETTINGS:-$SETTINGS}"
  [[ -z "$SETTINGS" ]] || known settings "$SETTINGS" || bad_usage "unknown settings '$SETTINGS'"
}

# Make a table or figure of formulas or untrained models: it needs no runs and no data.
make_from_command() {
  local stem word command=()
  (( ${#CHOSEN[@]} == 0 )) || bad_usage "--dataset: this table needs no data"
  RUNS="$(absolute "$RUNS")"
  stem="$RUNS/tables/${PAPER}_$TABLE"
  for word in "${COMMAND[@]}"; do
    if [[ "$word" == STEM* ]]; then word="$stem${word#STEM}"; fi
    command+=("$word")
  done
  if [[ "$ACTION" == dry-run ]]; then
    printf 'to do  fairseq-sparse %s\n' "${command[*]}"
    exit 0
  fi
  mkdir -p -- "$RUNS/tables" || fail "--runs: this folder cannot be made (see above); choose another"
  begin_file "$stem.txt"
  "$PYTHON" -m fairseq_sparse "${command[@]}" > "$partial" \
    || fail "${command[*]:0:2} failed (see above)"
  mv -f -- "$partial" "$stem.txt"
  cat -- "$stem.txt"
  say "$TITLE: $stem.*"
}

# Train the runs, and make the table and the pictures from those that are finished.
make_from_runs() {
  local repeated dataset stem failed=""
  repeated="$(printf '%s\n' "${DATASETS[@]}" | sort | uniq -d)"
  [[ -z "$repeated" ]] || bad_usage "--dataset is given more than once with '$repeated'"
  for dataset in "${DATASETS[@]}"; do
    known datasets "$dataset" \
      || bad_usage "unknown data set '$dataset'; there are: $(names_in "$EXAMPLES/datasets")"
  done

  CONFIG="${CONFIG:-$(default_config)}"
  RUNS="$(absolute "$RUNS")"
  DATA="$(absolute "$DATA")"
  if [[ "$ACTION" == dry-run ]]; then
    plan | show_plan
    (( ${#FOLLOW_UP[@]} == 0 )) || printf 'then   %s\n' "${FOLLOW_UP[*]}"
    exit 0
  fi
  if [[ " ${FOLLOW_UP[*]-} " == *" GOLD "* ]]; then GOLD="$(find_gold)"; fi
  stem="$RUNS/tables/${PAPER}_$TABLE${SETTINGS:+-$SETTINGS}-$CONFIG"
  if (( ${#CHOSEN[@]} )); then stem="$stem$(printf -- '-%s' "${CHOSEN[@]}")"; fi
  mkdir -p -- "$RUNS/tables" || fail "--runs: this folder cannot be made (see above); choose another"
  begin_file "$stem.plan"
  plan > "$partial"
  mv -f -- "$partial" "$stem.plan"
  export CONFIG STAGE ANALYSIS
  if [[ "$CONFIG" == cpu ]]; then DEVICE=(--cpu); fi
  if [[ "$ACTION" == all ]]; then
    say "$TITLE: ${#ROWS[@]} rows, ${#DATASETS[@]} data set(s), $SEEDS seed(s), $CONFIG configuration"
    train "$stem.plan" || failed=yes
  fi
  "$PYTHON" "$ROOT/scripts/reproduce_table.py" "$stem.plan" --paper "$PAPER" --title "$TITLE" \
    --columns "$(IFS=','; printf '%s' "${COLUMNS[*]}")" --note "$NOTE" --output "$stem" \
    --show "$SHOW" --early "$EARLY" --draw "$(IFS=','; printf '%s' "${DRAW[*]-}")" \
    || fail "no table could be made (see above)"
  if (( ${#FOLLOW_UP[@]} )); then
    run_follow_up "$stem.plan" || fail "the command named above failed"
  fi
  say "the table: $stem.md, .tex, .json; pictures and more beside it"
  [[ -z "$failed" ]] || fail "some runs failed (see above): the table has their earlier results, if any"
}

parse_options "$@"
if (( ${#COMMAND[@]} )); then make_from_command; else make_from_runs; fi

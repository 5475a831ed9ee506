#!/usr/bin/env bash
# Trains a grid of alphas, for the output and the attention, with several seeds. See --help.
source "$(dirname -- "${BASH_SOURCE[0]}")/stages/common.sh"
STAGE=sweep

usage() {
  cat <<HELP
usage: sweep.sh DATASET [options]

Trains and scores the variant entmax for each pair of alphas (1 = softmax, 1.5 = 1.5-entmax, 2 =
sparsemax) and each seed, then decodes with the ensemble of the seeds of each pair. Writes a table
like Table 1 of "Sparse Sequence-to-Sequence Models", and a picture of the validation accuracy by
one alpha, the other fixed at 1.5, like its Fig. 4.

  --output-alphas LIST     default: "1 1.5 2"
  --attention-alphas LIST  default: "1 1.5 2"
  --seeds LIST             default: "1 2 3"
  --jobs N                 number of simultaneous runs (default: one per GPU; on a CPU 1)
  --data-dir DIR           prepared data (default: data/DATASET)
  --sweep-dir DIR          the runs, sweep.md, sweep.json, sweep.png (default: runs/DATASET/sweep-cpu
                           or -gpu)
  --cpu, --gpu             which configuration of the data set (default: gpu if PyTorch sees one)
  --help                   this text

When the same command is started again, finished runs are skipped and interrupted ones resume.
Longer lists and more seeds reuse existing runs. The environment variables of run.sh apply to every
run.
HELP
}

DATASET="" CONFIG="" DATA_DIR="" SWEEP_DIR=""
OUTPUT_ALPHAS="1 1.5 2" ATTENTION_ALPHAS="1 1.5 2" SEEDS="1 2 3" JOBS=""
while (( $# )); do
  case "$1" in
    -h | --help) usage; exit 0 ;;
    --cpu | --gpu) CONFIG="${1#--}" ;;
    --output-alphas) option_value "$@"; OUTPUT_ALPHAS="$2"; shift ;;
    --attention-alphas) option_value "$@"; ATTENTION_ALPHAS="$2"; shift ;;
    --seeds) option_value "$@"; SEEDS="$2"; shift ;;
    --jobs) option_value "$@"; JOBS="$2"; shift ;;
    --data-dir) option_value "$@"; DATA_DIR="$2"; shift ;;
    --sweep-dir) option_value "$@"; SWEEP_DIR="$2"; shift ;;
    -*) bad_usage "unknown option '$1'" ;;
    *) [[ -z "$DATASET" ]] || bad_usage "one data set, not '$DATASET' and '$1'"; DATASET="$1" ;;
  esac
  shift
done
[[ -n "$DATASET" ]] || bad_usage "a data set is needed"
known datasets "$DATASET" || bad_usage "unknown data set '$DATASET'"
[[ "$JOBS" =~ ^([1-9][0-9]*)?$ ]] || bad_usage "--jobs must be a positive number, got '$JOBS'"
read -r -a outputs <<<"$OUTPUT_ALPHAS"
read -r -a attentions <<<"$ATTENTION_ALPHAS"
read -r -a seeds <<<"$SEEDS"
(( ${#outputs[@]} && ${#attentions[@]} && ${#seeds[@]} )) || bad_usage "a list is empty"
for alpha in "${outputs[@]}" "${attentions[@]}"; do
  [[ "$alpha" =~ ^[1-9][0-9]*(\.[0-9]+)?$ ]] || bad_usage "an alpha must be at least 1, got '$alpha'"
done
for seed in "${seeds[@]}"; do
  [[ "$seed" =~ ^[0-9]+$ ]] || bad_usage "a seed must be a number, got '$seed'"
done
for list in "$OUTPUT_ALPHAS" "$ATTENTION_ALPHAS" "$SEEDS"; do
  repeated="$(tr -s '[:space:]' '\n' <<<"$list" | sort | uniq -d | head -n 1)"
  [[ -z "$repeated" ]] || bad_usage "'$list' has $repeated twice"
done

CONFIG="${CONFIG:-$(default_config)}"
score="$(VARIANT=entmax DATA_DIR=- RUN_DIR=-; load_recipe; printf '%s' "$SCORE")"
[[ "$score" != measures ]] \
  || bad_usage "$DATASET is for language models, which have no score that sweep.sh compares"
SWEEP_DIR="${SWEEP_DIR:-$ROOT/runs/$DATASET/sweep-$CONFIG}"
SWEEP_DIR="$(make_absolute "$SWEEP_DIR" --sweep-dir)"
check_folder "$SWEEP_DIR"
DATA_DIR="${DATA_DIR:-$ROOT/data/$DATASET}"
check_folder "$DATA_DIR"
export CONFIG STAGE

say "$DATASET: ${#outputs[@]} x ${#attentions[@]} alphas, ${#seeds[@]} seed(s), in $SWEEP_DIR"
begin_file "$SWEEP_DIR/sweep.plan"
# The whole grid of a seed comes before the next seed.
for seed in "${seeds[@]}"; do
  for output in "${outputs[@]}"; do
    for attention in "${attentions[@]}"; do
      printf '%s\t%s\tentmax\t-\tOUTPUT_ALPHA=%s ATTENTION_ALPHA=%s\t%s\t%s\n' \
        "$seed" "$DATASET" "$output" "$attention" "$DATA_DIR" \
        "$SWEEP_DIR/output-$output-attention-$attention/seed-$seed"
    done
  done
done > "$partial"
mv -f -- "$partial" "$SWEEP_DIR/sweep.plan"
failed=""
bash "$EXAMPLES/stages/grid.sh" "$SWEEP_DIR/sweep.plan" "${JOBS:-0}" || failed=yes

if (( ${#seeds[@]} > 1 )); then
  for output in "${outputs[@]}"; do
    for attention in "${attentions[@]}"; do
      folder="$SWEEP_DIR/output-$output-attention-$attention"
      runs=()
      for seed in "${seeds[@]}"; do
        [[ ! -f "$folder/seed-$seed/summary.json" ]] || runs+=("$folder/seed-$seed")
      done
      (( ${#runs[@]} == ${#seeds[@]} )) || continue
      bash "$EXAMPLES/ensemble.sh" "${runs[@]}" --run-dir "$folder/ensemble" \
        --data-dir "$DATA_DIR" "--$CONFIG" || failed=yes
    done
  done
fi
"$PYTHON" "$ROOT/scripts/summarize_sweep.py" "$SWEEP_DIR" || fail "no table could be made (see above)"
say "finished: $SWEEP_DIR/sweep.md"
[[ -z "$failed" ]] || fail "some runs failed (see above): the table has their earlier results, if any"

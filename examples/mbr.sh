#!/usr/bin/env bash
# Minimum Bayes risk decoding of finished runs against beam search. See --help.
source "$(dirname -- "${BASH_SOURCE[0]}")/stages/common.sh"
STAGE=mbr

usage() {
  cat <<HELP
usage: mbr.sh RUN_DIR... --out DIR [options]

With each finished run on one data set, translations of the test set are sampled in three ways: from
the model's own distribution, by ε-sampling (tokens with a probability of at least .02) and from the
nucleus (.9). fairseq-sparse mbr chooses among the samples. All results, and beam search with every
run, are compared with beam search of the first run by sacreBLEU's paired bootstrap: DIR/table.txt.
When started again, it does what is not done yet.

  --out DIR        where samples and translations go
  --samples N      samples per sentence (default: 32)
  --utility NAME   chrf (default) or bleu
  --data-dir DIR   prepared data (default: data/DATASET)
  --cpu, --gpu     where to decode (default: each run as it was trained)
  --help           this text

SEED is the seed of the samples (default: 1).
HELP
}

RUNS=()
OPTIONS=()
OUT="" DATA_DIR="" SAMPLES=32 UTILITY=chrf
while (( $# )); do
  case "$1" in
    -h | --help) usage; exit 0 ;;
    --cpu | --gpu) OPTIONS+=("$1") ;;
    --data-dir) option_value "$@"; DATA_DIR="$2"; shift ;;
    --out) option_value "$@"; OUT="$2"; shift ;;
    --samples) option_value "$@"; SAMPLES="$2"; shift ;;
    --utility) option_value "$@"; UTILITY="$2"; shift ;;
    -*) bad_usage "unknown option '$1'" ;;
    *) RUNS+=("$1") ;;
  esac
  shift
done
(( ${#RUNS[@]} )) || bad_usage "a run is needed"
[[ -n "$OUT" ]] || bad_usage "--out is needed"
[[ "$SAMPLES" =~ ^[1-9][0-9]*$ ]] || bad_usage "--samples $SAMPLES: a number is needed"
[[ "$UTILITY" == chrf || "$UTILITY" == bleu ]] || bad_usage "--utility $UTILITY: chrf or bleu"
for run in "${RUNS[@]}"; do check_finished "$run"; done
recipe_of "${RUNS[@]}" # fails unless they are on one data set
require_file "${RUNS[0]}/bleu.json" generate
TOKENS="$(sed -n 's/^ *"signature":.*|tok:\([^|"]*\).*/\1/p' "${RUNS[0]}/bleu.json")" # sacreBLEU's
DATA_DIR="$(make_absolute "${DATA_DIR:-$ROOT/data/$DATASET}" --data-dir)"
OUT="$(make_absolute "$OUT" --out)"

# Names of the sampling methods, and their flags.
METHODS=("sampled=" "epsilon=--sampling-epsilon 0.02" "nucleus=--sampling-topp 0.9")
# Number of sentences in a batch of sampling.
BATCH=$(( SAMPLES < 512 ? 512 / SAMPLES : 1 ))

systems=()
for run in "${RUNS[@]}"; do
  run="$(CDPATH='' cd -- "$run" && pwd)"
  name="${run##*/}"
  recipe_of "$run"
  require_file "$run/hyp.detok.txt" generate
  [[ " ${systems[*]-} " != *" beam/$name "* ]] || fail "two runs have the name $name: rename one"
  mkdir -p -- "$OUT/beam"
  cp -f -- "$run/hyp.detok.txt" "$OUT/beam/$name"
  systems+=("beam/$name")
  for method in "${METHODS[@]}"; do
    folder="$OUT/samples/$name-${method%%=*}"
    ENSEMBLE="$run/average.pt" GENERATE_FLAGS="--sampling ${method#*=} --beam $SAMPLES --nbest $SAMPLES \
      --batch-size $BATCH --seed ${SEED:-1}" \
      bash "$EXAMPLES/run.sh" "$DATASET" "$VARIANT" --stages generate "--$CONFIG" \
      ${SETTINGS:+--settings "$SETTINGS"} ${OPTIONS[@]+"${OPTIONS[@]}"} --data-dir "$DATA_DIR" \
      --run-dir "$folder"
    system="mbr-$UTILITY/$name-${method%%=*}"
    record="$OUT/settings/$system"
    settings="tokenize $TOKENS
samples $(sha256_of "$folder/generate-test.txt")"
    mkdir -p -- "$OUT/mbr-$UTILITY" "$OUT/settings/mbr-$UTILITY"
    if is_current "$OUT/$system" "$record" "$settings"; then
      say "done already: $OUT/$system"
    else
      begin_file "$OUT/$system"
      "$PYTHON" -m fairseq_sparse mbr "$folder/generate-test.txt" --utility "$UTILITY" \
        --tokenize "$TOKENS" --output "$partial" \
        || fail "the samples could not be compared (see above)"
      rm -f -- "$record"
      mv -f -- "$partial" "$OUT/$system"
      write_settings "$record" "$settings"
    fi
    systems+=("$system")
  done
done

language="$(sed -n 's/^--target-lang //p' "${RUNS[0]}/settings/generate" | tail -n 1)"
cd -- "$OUT"
begin_file table.txt
"$PYTHON" -m sacrebleu "$DATA_DIR/prepared/reference/test.$language" -i "${systems[@]}" \
  -m bleu chrf --tokenize "$TOKENS" --paired-bs --format text > "$partial" \
  || fail "the results could not be compared (see above)"
mv -f -- "$partial" table.txt
cat -- table.txt

#!/usr/bin/env bash
# The first ten minutes with fairseq_sparse: set-up, corpus, training, decoding, comparison.
QUICKSTART="$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)"
GIVEN_PYTHON="${PYTHON:-}"
source "$QUICKSTART/../stages/common.sh"
STAGE=quickstart
VARIANTS=(softmax entmax15 alpha_relu rela_g)
# The test sentence whose cross-attention is drawn.
SENTENCE=3

usage() {
  cat <<HELP
usage: bash examples/quickstart/run.sh [options] [VARIANT...]

Sets up .venv, makes a synthetic German-English corpus, trains tiny models side by side on the CPU,
translates, and prints what the sparse ones do differently. About 12 minutes on 2 cores; what is done
is skipped when it is started again.

  VARIANT...      any of examples/variants (default: ${VARIANTS[*]})
  --data-dir DIR  for the corpus (default: data/quickstart)
  --runs-dir DIR  for models and results (default: runs/quickstart)
  --jobs N        models to train at once, one core each (default: the number of cores)
  --help          this text

PYTHON=... uses that Python and sets up nothing. TRAIN_FLAGS and the other variables of
docs/recipes.md work here as well, and CORPUS_FLAGS goes to make_corpus.py.
HELP
}

DATA_DIR=""
RUNS_DIR=""
JOBS=""
CHOSEN=()
while (( $# )); do
  case "$1" in
    -h | --help) usage; exit 0 ;;
    --data-dir) option_value "$@"; DATA_DIR="$2"; shift ;;
    --runs-dir) option_value "$@"; RUNS_DIR="$2"; shift ;;
    --jobs) option_value "$@"; JOBS="$2"; shift ;;
    -*) bad_usage "unknown option '$1'" ;;
    *)
      known variants "$1" || bad_usage "unknown variant '$1'"
      CHOSEN+=("$1")
      ;;
  esac
  shift
done
[[ -z "$JOBS" || "$JOBS" =~ ^[1-9][0-9]*$ ]] || bad_usage "--jobs $JOBS is not a number of models"
if (( ${#CHOSEN[@]} )); then VARIANTS=("${CHOSEN[@]}"); fi

# 1. The environment.
started=$SECONDS
if [[ -z "$GIVEN_PYTHON" ]]; then
  # With the folder on PYTHONPATH pip would take the package for installed.
  env -u PYTHONPATH bash "$ROOT/scripts/setup_env.sh"
  PYTHON="$ROOT/.venv/bin/python"
fi
cd -- "$ROOT"
DATA_DIR="${DATA_DIR:-data/quickstart}"
RUNS_DIR="${RUNS_DIR:-runs/quickstart}"
JOBS="${JOBS:-$("$PYTHON" -c 'import os; print(os.cpu_count() or 1)')}"
# One core for each model: they are too small to keep two busy.
export OMP_NUM_THREADS=1
mkdir -p -- "$RUNS_DIR"

# The stages of a variant, as for any data set, into the log of the variant.
recipe() {
  bash "$EXAMPLES/run.sh" quickstart "$1" --cpu --stages "$2" \
    --data-dir "$DATA_DIR" --run-dir "$RUNS_DIR/$1" >> "$RUNS_DIR/$1.log" 2>&1
}

# What went wrong last, and where its log is.
failed() {
  tail -n 15 -- "$log" >&2
  fail "$1 (see above); the log: $log"
}

# How far each model is, on one line.
progress() {
  local variant log epoch line=""
  for variant in "$@"; do
    log="$RUNS_DIR/$variant/logs/2_train.log"
    epoch=""
    if [[ -f "$RUNS_DIR/$variant/summary.json" ]]; then
      epoch=done
    elif [[ -f "$RUNS_DIR/$variant/average.pt" ]]; then
      epoch=translates
    elif [[ -f "$log" ]]; then
      epoch="$(sed -n 's/.*train_inner.*"update": \([0-9]*\.[0-9]\).*/\1/p' "$log" | tail -n 1)"
    fi
    line="$line${line:+, }$variant ${epoch:-0}"
  done
  say "epochs trained: $line"
}

# All stages from the training on, JOBS variants at a time; shows how far they are. Each has a log
# of its own. Their speeds are measured later, side by side.
make_models() {
  local next=0 running report_at=0 index failed=""
  PIDS=()
  while :; do
    running=0
    for index in ${PIDS[@]+"${!PIDS[@]}"}; do
      if kill -0 "${PIDS[$index]}" 2>/dev/null; then running=$(( running + 1 )); fi
    done
    while (( running < JOBS && next < ${#VARIANTS[@]} )); do
      recipe "${VARIANTS[$next]}" train-analyze &
      PIDS+=("$!")
      running=$(( running + 1 )) next=$(( next + 1 )) report_at=$SECONDS
    done
    (( running )) || break
    if (( SECONDS >= report_at )); then
      progress "${VARIANTS[@]:0:$next}"
      report_at=$(( SECONDS + 15 ))
    fi
    sleep 1
  done
  for index in "${!PIDS[@]}"; do
    wait "${PIDS[$index]}" || failed="$failed $RUNS_DIR/${VARIANTS[$index]}.log"
  done
  [[ -z "$failed" ]] || fail "a model failed; run the same command again to resume. Logs:$failed"
}

# 2. The corpus, and the models.
say "making the corpus: $DATA_DIR"
log="$RUNS_DIR/${VARIANTS[0]}.log"
recipe "${VARIANTS[0]}" prepare || failed "no corpus"
say "training, translating, analysing, $JOBS at a time: ${VARIANTS[*]}; logs: $RUNS_DIR/VARIANT.log"
make_models

# 3. What came out.
runs=() averages=()
for variant in "${VARIANTS[@]}"; do
  runs+=("$RUNS_DIR/$variant")
  averages+=("$RUNS_DIR/$variant/average.pt")
done
results="$RUNS_DIR/results.md"
log="$RUNS_DIR/results.log"
measured="$RUNS_DIR/speeds.variants" # the models that the speeds are those of
settings="${VARIANTS[*]}
$(sha256_of "${averages[@]}")"
if ! is_current "$RUNS_DIR/speeds.json" "$measured" "$settings"; then
  say "measuring speed, side by side"
  rm -f -- "$measured"
  trained=()
  for variant in "${VARIANTS[@]}"; do trained+=("$variant=$RUNS_DIR/$variant/average.pt"); done
  {
    "$PYTHON" scripts/benchmark/training_step.py "$DATA_DIR/prepared/bin" --recipe quickstart \
      --flags="${TRAIN_FLAGS:-}" --variants "$(IFS=,; printf '%s' "${VARIANTS[*]}")" --fused-only \
      --trained "${trained[@]}" --batches 6 --rounds 3 --json "$RUNS_DIR/training_speeds.json" \
      && "$PYTHON" scripts/benchmark/decoding.py "$DATA_DIR/prepared/bin" --path "${averages[@]}" \
        --names "${VARIANTS[@]}" --beams 5 --batches 32 --sentences 150 --rounds 3 \
        --json "$RUNS_DIR/speeds.json"
  } > "$log" 2>&1 || failed "no measurement"
  write_settings "$measured" "$settings"
fi
say "comparing the models with the known translations"
begin_file "$results"
{
  printf 'Synthetic corpus, made from templates: the figures say nothing about translating real text.\n\n'
  "$PYTHON" -m fairseq_sparse table results "${runs[@]}" --speeds "$RUNS_DIR/training_speeds.json" \
    "$RUNS_DIR/speeds.json" --columns \
    variant,bleu,nonzeros,prob_sum,gold_zero,words_per_second,sentences_per_second
  printf '\n'
  "$PYTHON" "$QUICKSTART/check_support.py" "${runs[@]}" --data "$DATA_DIR" \
    --sentences 250 --cpu
} > "$partial" 2> "$log" || failed "no comparison"
mv -f -- "$partial" "$results"

pictures=()
for variant in "${VARIANTS[@]}"; do
  [[ "$variant" == *rela* ]] || continue
  picture="$RUNS_DIR/$variant/cross_attention.png"
  "$PYTHON" -m fairseq_sparse draw attention "$DATA_DIR/prepared/bin" --path "$RUNS_DIR/$variant/average.pt" \
    --sentence "$SENTENCE" --place cross --cpu --output "$picture" > "$log" 2>&1 \
    || failed "no picture of the attention"
  pictures+=("$picture")
done

cat -- "$results"
# Quoted, as the commands below are to be copied.
python="$(printf '%q' "$PYTHON")"
data="$(printf '%q' "$DATA_DIR/prepared/bin")"
model="$RUNS_DIR/entmax15/average.pt"
[[ -f "$model" ]] || model="$RUNS_DIR/${VARIANTS[${#VARIANTS[@]} - 1]}/average.pt"
model="$(printf '%q' "$model")"
cat <<HELP

BLEU and the columns after it are measured on the part test, not on test_unseen_pairs. Speeds are of
training (words in a second) and decoding, side by side on one core, with the ratio to ${VARIANTS[0]}.
"nonzeros" is the number of units with a probability above 0 at a step; softmax has no zeros.

The tables again   $results
Translations       $RUNS_DIR/VARIANT/hyp.detok.txt
Models             $RUNS_DIR/VARIANT/average.pt
Word alignments    $RUNS_DIR/VARIANT/alignments, their error rates in alignment.json
Cross-attention    ${pictures[*]:-(of ReLA models: none was trained)}
The corpus         $DATA_DIR/raw, described in examples/quickstart/README.md

To try next:
  $python -m fairseq_sparse report$(printf ' %q' "${runs[@]}") \\
      --cpu --output report.html                                all of it in one page, with every attention weight
  $python -m fairseq_sparse analyze output tree $data \\
      --path $model --sentence 577       all translations of nonzero probability
  bash examples/quickstart/run.sh sparsemax rela_g_alpha_relu   other models, same corpus
  bash examples/run.sh multi30k_de_en alpha_relu --cpu          real text, one command
  bash examples/run.sh --help                                   all data sets and variants
HELP
say "finished in $(( (SECONDS - started + 59) / 60 )) minutes"

#!/usr/bin/env bash
# Decode the test set with the averaged checkpoint, or with the ensemble of the checkpoints ENSEMBLE
# (separated by ":"), and score it: RUN_DIR/hyp.detok.txt and bleu.json, or guesses and
# accuracy.json. A test set of long sentences gives hyp-long.detok.txt and bleu-long.json. A
# language model is measured on the validation and the test set, and texts are sampled:
# measures.json and samples.txt.
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
load_recipe
require_prepared
models="${ENSEMBLE:-$RUN_DIR/average.pt}"
IFS=':' read -r -a paths <<<"$models"
for path in "${paths[@]}"; do require_file "$path" average; done
require_trained_on_data "${paths[@]}"
lock_folder "$RUN_DIR"

artefact="$(score_file)"
if [[ "$SCORE" == measures ]]; then
  source "$EXAMPLES/stages/language_model.sh"
  exit 0
fi
output="$RUN_DIR/generate-test.txt"
read -r -a extra <<<"${GENERATE_FLAGS:-}" || true
if [[ "$TEXT" == characters ]]; then
  to_text=(--post-process sentencepiece)
else
  to_text=(--post-process subword_nmt --tokenizer "$TOKENIZER")
fi
flags=(
  --task translation_sparse --source-lang "$SOURCE_LANG" --target-lang "$TARGET_LANG"
  "${to_text[@]}" "${GENERATE[@]}" ${extra[@]+"${extra[@]}"}
)
if [[ -n "${ENSEMBLE:-}" ]]; then
  origin="$(sha256_of "${paths[@]}" | awk '{ print "member", $1 }')"
else
  origin="$(cat -- "$SETTINGS_DIR/average")"
fi
settings="$origin
$(flags_as_lines "${flags[@]}")
scores $SCORE"
if [[ "$SCORE" == bleu ]]; then settings="$settings, BLEU of tokens"; fi
if (( ${#SCORE_FLAGS[@]} )); then
  settings="$settings
score ${SCORE_FLAGS[*]}"
fi
skip_if_done "$artefact" "$SETTINGS_DIR/generate" "$settings"

# Decode a subset: generate SUBSET OUTPUT. The log is shown without the translations and the BLEU on
# the tokenised reference. --num-workers 0 keeps other processes from writing into the output.
generate() {
  local partial
  begin_file "$2"
  "$PYTHON" -m fairseq_cli.generate "$PREPARED/bin" --user-dir "$USER_DIR" \
    --path "$models" --gen-subset "$1" --log-format simple --log-interval 5 \
    --num-workers 0 ${DEVICE_FLAGS[@]+"${DEVICE_FLAGS[@]}"} "${flags[@]}" 2>&1 \
    | tee -- "$partial" | grep --line-buffered -avE $'^([A-Z]-[0-9]+\t|Generate test)' \
    || fail "fairseq-generate failed (see above)"
  begin_anew "$artefact" "$SETTINGS_DIR/generate" "$settings"
  mv -f -- "$partial" "$2"
}

# Score what has been decoded of a test set: score TEST OUTPUT HYPOTHESES JSON.
score() {
  "$PYTHON" -m fairseq_sparse score --generated "$2" \
    --reference "$PREPARED/reference/$1.$TARGET_LANG" \
    --tokenized-reference "$PREPARED/tokenized/$1.$TARGET_LANG" \
    --hypotheses "$3" --json "$4" ${SCORE_FLAGS[@]+"${SCORE_FLAGS[@]}"} \
    || fail "the translations could not be scored (see above)"
}

generate test "$output"
if [[ "$SCORE" == accuracy ]]; then
  "$PYTHON" "$ROOT/scripts/score_inflection.py" --generated "$output" \
    --reference "$PREPARED/reference/test.tsv" --guesses "$RUN_DIR/guesses" --json "$artefact" \
    || fail "the forms could not be scored (see above)"
  exit 0
fi
if [[ -f "$PREPARED/reference/long.$TARGET_LANG" ]]; then
  say "long sentences"
  generate test1 "$RUN_DIR/generate-long.txt"
  score long "$RUN_DIR/generate-long.txt" "$RUN_DIR/hyp-long.detok.txt" "$RUN_DIR/bleu-long.json"
fi
score test "$output" "$RUN_DIR/hyp.detok.txt" "$artefact"

#!/usr/bin/env bash
# Decode the test set with the averaged checkpoint, or with the ensemble of the checkpoints ENSEMBLE
# (with ":" between them), and score it: RUN_DIR/hyp.detok.txt and bleu.json, or guesses and
# accuracy.json. Of a language model, measure validation and test set and sample texts: measures.json
# and samples.txt.
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
load_recipe
require_prepared
models="${ENSEMBLE:-$RUN_DIR/average.pt}"
IFS=':' read -r -a paths <<<"$models"
for path in "${paths[@]}"; do require_file "$path" average; done
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
data="data $(sha256_of "$PREPARED/settings" | cut -d ' ' -f 1)"
for path in "${paths[@]}"; do
  grep -qsxF "$data" "$(dirname -- "$path")/settings/train" \
    || fail "$(dirname -- "$path") was not trained on the data in $PREPARED"
done
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
skip_if_done_else_record "$artefact" "$SETTINGS_DIR/generate" "$settings"

# The log is shown, but not the translations, nor the BLEU of the tokenised reference. No second
# process may write into the midst of a translation, hence --num-workers 0.
"$PYTHON" -m fairseq_cli.generate "$PREPARED/bin" --user-dir "$USER_DIR" \
  --path "$models" --gen-subset test --log-format simple --log-interval 5 \
  --num-workers 0 ${DEVICE_FLAGS[@]+"${DEVICE_FLAGS[@]}"} "${flags[@]}" 2>&1 \
  | tee -- "$output.partial" | grep --line-buffered -avE $'^([A-Z]-[0-9]+\t|Generate test )' \
  || fail "fairseq-generate failed (see above)"
mv -f -- "$output.partial" "$output"
if [[ "$SCORE" == accuracy ]]; then
  "$PYTHON" "$ROOT/scripts/score_inflection.py" --generated "$output" \
    --reference "$PREPARED/reference/test.tsv" --guesses "$RUN_DIR/guesses" --json "$artefact" \
    || fail "the forms could not be scored (see above)"
else
  "$PYTHON" -m fairseq_sparse score --generated "$output" \
    --reference "$PREPARED/reference/test.$TARGET_LANG" \
    --tokenized-reference "$PREPARED/tokenized/test.$TARGET_LANG" \
    --hypotheses "$RUN_DIR/hyp.detok.txt" --json "$artefact" \
    ${SCORE_FLAGS[@]+"${SCORE_FLAGS[@]}"} \
    || fail "the translations could not be scored (see above)"
fi

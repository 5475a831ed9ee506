#!/usr/bin/env bash
# Translate the test set with the averaged checkpoint; RUN_DIR/hyp.detok.txt and bleu.json.
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
load_recipe
require_prepared
require_file "$RUN_DIR/average.pt" average
lock_folder "$RUN_DIR"

artefact="$RUN_DIR/bleu.json"
output="$RUN_DIR/generate-test.txt"
read -r -a extra <<<"${GENERATE_FLAGS:-}" || true
flags=(
  --task translation_sparse --source-lang "$SOURCE_LANG" --target-lang "$TARGET_LANG"
  --post-process subword_nmt --tokenizer moses "${GENERATE[@]}" ${extra[@]+"${extra[@]}"}
)
skip_if_done_else_record "$artefact" "$SETTINGS_DIR/generate" "$(cat -- "$SETTINGS_DIR/average")
$(flags_as_lines "${flags[@]}")"

# The log is shown, but not the translations, nor the BLEU of the tokenised reference. No second
# process may write into the midst of a translation, hence --num-workers 0.
"$PYTHON" -m fairseq_cli.generate "$PREPARED/bin" --user-dir "$USER_DIR" \
  --path "$RUN_DIR/average.pt" --gen-subset test --log-format simple --log-interval 5 \
  --num-workers 0 ${DEVICE_FLAGS[@]+"${DEVICE_FLAGS[@]}"} "${flags[@]}" 2>&1 \
  | tee -- "$output.partial" | grep --line-buffered -avE $'^([A-Z]-[0-9]+\t|Generate test )' \
  || fail "fairseq-generate failed (see above)"
mv -f -- "$output.partial" "$output"
"$PYTHON" "$ROOT/scripts/score_translation.py" --generated "$output" \
  --reference "$PREPARED/reference/test.$TARGET_LANG" \
  --hypotheses "$RUN_DIR/hyp.detok.txt" --json "$artefact" \
  || fail "the translations could not be scored (see above)"

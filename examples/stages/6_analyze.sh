#!/usr/bin/env bash
# Compute statistics of output and attention on the test set, teacher-forced, and write all
# results of the run to RUN_DIR/summary.json. With BPE, attention is measured between words, as in
# ReLA. With ANALYZE_VALID=yes (for S2S), it is measured between tokens, because S2S reports their
# number, and everything is also measured on the validation set, with what beam search proves there.
# The measures of a language model come from the stage generate.
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
load_recipe
require_prepared
require_file "$RUN_DIR/average.pt" average
require_trained_on_data "$RUN_DIR/average.pt"
score="$(score_file)"
require_file "$score" generate
lock_folder "$RUN_DIR"

artefact="$RUN_DIR/summary.json"

# Write all results to one file, and print them as a table.
summarize() {
  DATASET_NOTE="${DATASET_NOTE:-}" VARIANT_NAME="${VARIANT_NAME:-}" \
    "$PYTHON" "$ROOT/scripts/summarize_run.py" all "$RUN_DIR" \
    || fail "the run could not be summarised (see above)"
  "$PYTHON" -m fairseq_sparse table results "$RUN_DIR" >&2
}

if [[ "$SCORE" == measures ]]; then
  settings="$(cat -- "$SETTINGS_DIR/generate")
measures $(sha256_of "$score" | cut -d ' ' -f 1)"
  skip_if_done "$artefact" "$SETTINGS_DIR/analyze" "$settings"
  begin_anew "$artefact" "$SETTINGS_DIR/analyze" "$settings"
  summarize
  exit 0
fi
output="$RUN_DIR/validate-test.txt"
read -r -a extra <<<"${GENERATE_FLAGS:-}" || true
generate=("${GENERATE[@]}" ${extra[@]+"${extra[@]}"})
flags=(--task translation_sparse ${VALIDATE_FLAGS[@]+"${VALIDATE_FLAGS[@]}"})
alignment="$RUN_DIR/alignment.json" # is a part of the summary
if [[ -f "$alignment" ]]; then alignment="$(sha256_of "$alignment" | cut -d ' ' -f 1)"; else alignment=none; fi
subwords=none
if [[ "$TEXT" == bpe && -z "$ANALYZE_VALID" ]]; then subwords=subword_nmt; fi
settings="$(cat -- "$SETTINGS_DIR/generate")
$(basename -- "$score" .json) $(sha256_of "$score" | cut -d ' ' -f 1)
statistics output attention${ANALYZE_VALID:+, valid too}
alignment $alignment
subwords $subwords
$(flags_as_lines "${flags[@]}")"
skip_if_done "$artefact" "$SETTINGS_DIR/analyze" "$settings"
begin_anew "$artefact" "$SETTINGS_DIR/analyze" "$settings"

# Compute statistics of output and attention on a subset: analyze SUBSET OUTPUT ATTENTION.
analyze() {
  local partial
  begin_file "$2"
  "$PYTHON" -m fairseq_cli.validate "$PREPARED/bin" --user-dir "$USER_DIR" \
    --path "$RUN_DIR/average.pt" --valid-subset "$1" --max-tokens "$DEVICE_TOKENS" \
    --distributed-world-size 1 --log-format json --log-interval 10 \
    ${DEVICE_FLAGS[@]+"${DEVICE_FLAGS[@]}"} "${flags[@]}" 2>&1 \
    | tee -- "$partial" || fail "fairseq-validate failed (see above)"
  mv -f -- "$partial" "$2"
  "$PYTHON" -m fairseq_sparse analyze attention "$PREPARED/bin" --path "$RUN_DIR/average.pt" \
    --subset "$1" --subwords "$subwords" --max-tokens "$DEVICE_TOKENS" \
    ${DEVICE_FLAGS[@]+"${DEVICE_FLAGS[@]}"} --json "$3" || fail "the attention could not be analysed (see above)"
}

analyze test "$output" "$RUN_DIR/attention.json"
if [[ -n "$ANALYZE_VALID" ]]; then
  analyze valid "$RUN_DIR/validate-valid.txt" "$RUN_DIR/attention-valid.json"
  beam="$(flags_as_lines "${generate[@]}" | sed -n 's/^--beam //p' | tail -n 1)"
  # --nbest asks for the whole beam, so that the report can say whether it has all translations.
  # fairseq's own BLEU, on tokens or characters, is not shown.
  "$PYTHON" -m fairseq_cli.generate "$PREPARED/bin" --user-dir "$USER_DIR" \
    --path "$RUN_DIR/average.pt" --gen-subset valid --log-format simple --log-interval 5 --quiet \
    --task translation_sparse --source-lang "$SOURCE_LANG" --target-lang "$TARGET_LANG" \
    ${DEVICE_FLAGS[@]+"${DEVICE_FLAGS[@]}"} "${generate[@]}" --nbest "$beam" \
    --search-report "$RUN_DIR/search-valid.jsonl" 2>&1 | grep --line-buffered -av '^Generate valid ' \
    || fail "fairseq-generate failed on the validation set (see above)"
fi
summarize

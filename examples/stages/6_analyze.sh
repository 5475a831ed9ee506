#!/usr/bin/env bash
# Statistics of output and attention on the test set, given the references, and all results of the
# run in RUN_DIR/summary.json.
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
load_recipe
require_prepared
require_file "$RUN_DIR/average.pt" average
score="$(score_file)"
require_file "$score" generate
lock_folder "$RUN_DIR"

artefact="$RUN_DIR/summary.json"
output="$RUN_DIR/validate-test.txt"
flags=(--task translation_sparse ${VALIDATE_FLAGS[@]+"${VALIDATE_FLAGS[@]}"})
skip_if_done_else_record "$artefact" "$SETTINGS_DIR/analyze" "$(cat -- "$SETTINGS_DIR/generate")
$(basename -- "$score" .json) $(sha256_of "$score" | cut -d ' ' -f 1)
statistics output attention
$(flags_as_lines "${flags[@]}")"

"$PYTHON" -m fairseq_cli.validate "$PREPARED/bin" --user-dir "$USER_DIR" \
  --path "$RUN_DIR/average.pt" --valid-subset test --max-tokens "$DEVICE_TOKENS" \
  --distributed-world-size 1 --log-format json --log-interval 10 \
  ${DEVICE_FLAGS[@]+"${DEVICE_FLAGS[@]}"} "${flags[@]}" 2>&1 \
  | tee -- "$output.partial" || fail "fairseq-validate failed (see above)"
mv -f -- "$output.partial" "$output"
"$PYTHON" "$ROOT/scripts/analyze_attention.py" "$PREPARED/bin" --path "$RUN_DIR/average.pt" \
  --subset test --max-tokens "$DEVICE_TOKENS" ${DEVICE_FLAGS[@]+"${DEVICE_FLAGS[@]}"} \
  --json "$RUN_DIR/attention.json" || fail "the attention could not be analysed (see above)"
DATASET_NOTE="${DATASET_NOTE:-}" VARIANT_NAME="${VARIANT_NAME:-}" \
  "$PYTHON" "$ROOT/scripts/summarize_run.py" all "$RUN_DIR" \
  || fail "the run could not be summarised (see above)"
"$PYTHON" "$ROOT/scripts/results_table.py" "$RUN_DIR" >&2

# The stage generate of a language model, sourced by 4_generate.sh: run fairseq-eval-lm on the
# validation and the test set, and sample continuations of PROMPTS from the model's distribution.

read -r -a extra <<<"${GENERATE_FLAGS:-}" || true
evaluate=("${TASK_FLAGS[@]}" "${EVALUATE[@]}")
sample=("${TASK_FLAGS[@]}" --tokenizer "$TOKENIZER" "${GENERATE[@]}" ${extra[@]+"${extra[@]}"})
if [[ -n "$BPE_MERGES" ]]; then
  sample+=(--bpe subword_nmt --bpe-codes "$PREPARED/bpe.codes")
fi
settings="$(cat -- "$SETTINGS_DIR/average")
$(flags_as_lines "${evaluate[@]}")
$(flags_as_lines "${sample[@]}")
$(printf 'prompt %s\n' "${PROMPTS[@]}")"
skip_if_done "$artefact" "$SETTINGS_DIR/generate" "$settings"

drafts=()
for subset in valid test; do
  begin_file "$RUN_DIR/evaluate-$subset.txt"
  drafts+=("$partial")
  "$PYTHON" -m fairseq_cli.eval_lm "$PREPARED/bin" --user-dir "$USER_DIR" --path "$models" \
    --gen-subset "$subset" --num-workers 0 --log-format simple --log-interval 10 \
    ${DEVICE_FLAGS[@]+"${DEVICE_FLAGS[@]}"} "${evaluate[@]}" 2>&1 \
    | tee -- "$partial" || fail "fairseq-eval-lm failed (see above)"
done
begin_file "$RUN_DIR/samples-raw.txt"
drafts+=("$partial")
printf '%s\n' "${PROMPTS[@]}" \
  | "$PYTHON" -m fairseq_cli.interactive "$PREPARED/bin" --user-dir "$USER_DIR" --path "$models" \
    --buffer-size "${#PROMPTS[@]}" ${DEVICE_FLAGS[@]+"${DEVICE_FLAGS[@]}"} "${sample[@]}" \
    > "$partial" || fail "fairseq-interactive failed (see above)"
begin_anew "$artefact" "$SETTINGS_DIR/generate" "$settings"
for partial in "${drafts[@]}"; do
  mv -f -- "$partial" "${partial%.partial.*}"
done
"$PYTHON" "$ROOT/scripts/summarize_run.py" text "$RUN_DIR" \
  || fail "the measures could not be collected (see above)"
say "samples: $RUN_DIR/samples.txt"
cat -- "$artefact"

#!/usr/bin/env bash
# Extract word alignments from the cross-attention on the test set, teacher-forced, into
# RUN_DIR/alignments; if the data set has gold alignments, error rates go to RUN_DIR/alignment.json.
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
load_recipe
if [[ "$TEXT" == characters ]]; then
  say "nothing to do: $DATASET consists of characters, not words"
  exit 0
fi
if [[ "$SCORE" == measures ]]; then
  say "nothing to do: a language model has no source to align with"
  exit 0
fi
require_prepared
require_file "$RUN_DIR/average.pt" average
require_trained_on_data "$RUN_DIR/average.pt"
lock_folder "$RUN_DIR"

alignments="$RUN_DIR/alignments"
artefact="$alignments/manifest.json"
settings="checkpoint $(sha256_of "$RUN_DIR/average.pt" | cut -d ' ' -f 1)
data $(sha256_of "$PREPARED/settings" | cut -d ' ' -f 1)"
if [[ -n "${GOLD_ALIGNMENT:-}" ]]; then
  raw="$DATA_DIR/raw"
  if [[ -z "${MAKE_RAW:-}" && -n "${RAW_DIR:-}" ]]; then raw="$RAW_DIR"; fi
  gold=("$raw/$GOLD_ALIGNMENT" "$raw/$GOLD_WORDS.$SOURCE_LANG" "$raw/$GOLD_WORDS.$TARGET_LANG")
  for path in "${gold[@]}"; do
    [[ -f "$path" ]] || fail "no gold alignment to compare with: $path is missing"
  done
  artefact="$RUN_DIR/alignment.json"
  settings="$settings
$(sha256_of "${gold[@]}" | awk '{ print "gold", $2, $1 }')"
fi
changed=""
if [[ -f "$SETTINGS_DIR/align" ]]; then
  changed="$(settings_difference "$SETTINGS_DIR/align" "$settings")"
fi
skip_if_done "$artefact" "$SETTINGS_DIR/align" "$settings"
# The parts done by an interrupted run with the same settings are reused. Other parts are removed
# before the new settings are recorded: after a kill in between, they would seem to have these.
rm -f -- "$artefact"
if [[ -n "$changed" || ! -d "$alignments/parts" ]]; then rm -rf -- "$alignments"; fi
begin_anew "$artefact" "$SETTINGS_DIR/align" "$settings"

"$PYTHON" -m fairseq_sparse align "$PREPARED/bin" --path "$RUN_DIR/average.pt" \
  --subset test --output "$alignments" --max-tokens "$DEVICE_TOKENS" \
  ${DEVICE_FLAGS[@]+"${DEVICE_FLAGS[@]}"} || fail "the words could not be aligned (see above)"
if [[ -n "${GOLD_ALIGNMENT:-}" ]]; then
  "$PYTHON" -m fairseq_sparse analyze alignment "${gold[0]}" "$alignments" \
    --words "${gold[1]}" "${gold[2]}" --json "$artefact" \
    || fail "the alignments could not be scored (see above)"
fi
say "aligned: $alignments"

#!/usr/bin/env bash
# Average the last AVERAGE_LAST checkpoints, one per epoch or one every SAVE_UPDATES updates, into
# RUN_DIR/average.pt, or take only the best one if the data set or the settings say so. With
# EXPONENTIAL=yes, the parameters are those of the exponential average made in training.
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
load_recipe
require_file "$RUN_DIR/train.json" train
lock_folder "$RUN_DIR"

artefact="$RUN_DIR/average.pt"
case "$CHECKPOINTS" in
  best)
    which="checkpoint best"
    inputs=("$RUN_DIR/checkpoints/checkpoint_best.pt")
    ;;
  updates)
    which="average_last $AVERAGE_LAST by updates"
    inputs=("$RUN_DIR/checkpoints" --num-update-checkpoints "$AVERAGE_LAST")
    ;;
  *)
    which="average_last $AVERAGE_LAST"
    inputs=("$RUN_DIR/checkpoints" --num-epoch-checkpoints "$AVERAGE_LAST")
    ;;
esac
if [[ -n "$EXPONENTIAL" ]]; then
  which="$which, exponential average"
  inputs+=(--ema)
fi
settings="$which
train $(sha256_of "$RUN_DIR/train.json" | cut -d ' ' -f 1)"
skip_if_done "$artefact" "$SETTINGS_DIR/average" "$settings"

"$PYTHON" -m fairseq_sparse average --inputs "${inputs[@]}" --output "$artefact.new" \
  || fail "the checkpoints could not be averaged (see above); AVERAGE_LAST sets their number"
# Results of the last average.
rm -f -- "$RUN_DIR/empty.json" "$RUN_DIR/alignment.json" "$(score_file)"
begin_anew "$artefact" "$SETTINGS_DIR/average" "$settings"
mv -f -- "$artefact.new" "$artefact"
say "averaged: $artefact"

#!/usr/bin/env bash
# fairseq-train on the prepared data, into RUN_DIR/checkpoints; RUN_DIR/train.json when it is done.
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
load_recipe
require_prepared
lock_folder "$RUN_DIR"

checkpoints="$RUN_DIR/checkpoints"
artefact="$RUN_DIR/train.json"
read -r -a extra <<<"${TRAIN_FLAGS:-}" || true
flags=(
  --task translation_sparse --source-lang "$SOURCE_LANG" --target-lang "$TARGET_LANG"
  "${DATASET_FLAGS[@]}" "${VARIANT_FLAGS[@]}"
)
if [[ "$CHECKPOINTS" == best ]]; then
  flags+=(--no-epoch-checkpoints)
else
  flags+=(--keep-last-epochs "$AVERAGE_LAST")
fi
flags+=(${extra[@]+"${extra[@]}"})
if [[ -n "${BATCH_SENTENCES:-}" ]]; then
  unit=sentences batch="$BATCH_SENTENCES" on_a_device="${DEVICE_SENTENCES:-$BATCH_SENTENCES}"
  batch_flag=--batch-size
else
  unit=tokens batch="$BATCH_TOKENS" on_a_device="$DEVICE_TOKENS" batch_flag=--max-tokens
fi
settings="data $(sha256_of "$PREPARED/settings" | cut -d ' ' -f 1)
batch_$unit $batch
$(flags_as_lines "${flags[@]}")"

if [[ -f "$SETTINGS_DIR/train" && ( -e "$artefact" || -d "$checkpoints" ) ]]; then
  difference="$(settings_difference "$SETTINGS_DIR/train" "$settings")"
  if [[ -n "$difference" ]]; then
    printf '%s\n' "$difference" >&2
    fail "$RUN_DIR was trained with other settings (above): choose another --run-dir, or delete it." \
      "To go on from its checkpoints with the new settings, delete $SETTINGS_DIR/train"
  fi
fi
if [[ -e "$artefact" && -f "$SETTINGS_DIR/train" ]]; then
  say "done already: $artefact"
  exit 0
fi
rm -f -- "$artefact"
mkdir -p -- "$SETTINGS_DIR"
write_settings "$SETTINGS_DIR/train" "$settings"

# The same batch for any number of devices: fill each device, then accumulate.
devices=1
if [[ "$CONFIG" == gpu ]]; then
  devices="$("$PYTHON" -c 'import torch; print(torch.cuda.device_count())')"
  (( devices > 0 )) || fail "--gpu: PyTorch sees no GPU; use --cpu, or check CUDA_VISIBLE_DEVICES"
fi
update_freq=$(( (batch + devices * on_a_device - 1) / (devices * on_a_device) ))
share=$(( batch / (devices * update_freq) ))
(( share > 0 )) || fail "a batch of $batch $unit is less than one for each of $devices devices"
say "batch: $batch $unit = $devices device(s) x $share $unit x $update_freq"
if [[ -f "$checkpoints/checkpoint_last.pt" ]]; then
  say "resuming from $checkpoints/checkpoint_last.pt"
else
  say "training from the start" # summarize_run.py reads the log from here
fi

"$PYTHON" -m fairseq_cli.train "$PREPARED/bin" --user-dir "$USER_DIR" --save-dir "$checkpoints" \
  "$batch_flag" "$share" --update-freq "$update_freq" --log-format json \
  ${DEVICE_FLAGS[@]+"${DEVICE_FLAGS[@]}"} "${flags[@]}" \
  || fail "fairseq-train failed (see above): run the same command again to resume from" \
    "the last checkpoint"
"$PYTHON" "$ROOT/scripts/summarize_run.py" train "$RUN_DIR" \
  || fail "the training log could not be summarised (see above)"
say "trained: $artefact"

#!/usr/bin/env bash
# Run fairseq-train on the prepared data, into RUN_DIR/checkpoints, then write RUN_DIR/train.json.
#
# The launchers in examples/launch set LAUNCH_MACHINES, the number of machines; LAUNCH_MACHINE, the
# number of this one (only machine 0 writes); LAUNCH_WORKERS, the number of processes on each; and
# LAUNCH_BY=srun, to start the processes of the other machines from here.
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
load_recipe
export LAUNCH_MACHINES="${LAUNCH_MACHINES:-1}" LAUNCH_MACHINE="${LAUNCH_MACHINE:-0}"
if (( LAUNCH_MACHINE == 0 )); then
  require_prepared
  lock_folder "$RUN_DIR"
elif [[ ! -d "$PREPARED/bin" ]]; then
  say "waiting for machine 0 to prepare $PREPARED"
  until [[ -d "$PREPARED/bin" ]]; do sleep 2; done
fi

checkpoints="$RUN_DIR/checkpoints"
artefact="$RUN_DIR/train.json"
read -r -a extra <<<"${TRAIN_FLAGS:-}" || true
flags=("${TASK_FLAGS[@]}" "${DATASET_FLAGS[@]}" "${VARIANT_FLAGS[@]}")
case "$CHECKPOINTS" in
  best) flags+=(--no-epoch-checkpoints) ;;
  last) flags+=(--keep-last-epochs "$AVERAGE_LAST") ;;
  updates)
    # If an epoch ends with such an update, fairseq writes no checkpoint for it; an older one then
    # takes its place.
    flags+=(
      --no-epoch-checkpoints --save-interval-updates "$SAVE_UPDATES"
      --keep-interval-updates "$AVERAGE_LAST"
    )
    ;;
  *) fail "CHECKPOINTS=$CHECKPOINTS: neither best, last nor updates" ;;
esac
flags+=(${extra[@]+"${extra[@]}"})
if [[ -n "${BATCH_SENTENCES:-}" ]]; then
  unit=sentences batch="$BATCH_SENTENCES" on_a_device="${DEVICE_SENTENCES:-$BATCH_SENTENCES}"
  batch_flag=--batch-size
else
  unit=tokens batch="$BATCH_TOKENS" on_a_device="$DEVICE_TOKENS" batch_flag=--max-tokens
fi
settings="data $(sha256_of "$PREPARED/settings" | cut -d ' ' -f 1)
batch_$unit $batch"
if [[ "$BATCH_SIDE" == target && "$unit" == tokens ]]; then
  settings="$settings
batch_side target"
fi
settings="$settings
$(flags_as_lines "${flags[@]}")"

if [[ -f "$SETTINGS_DIR/train" && ( -e "$artefact" || -d "$checkpoints" ) ]]; then
  difference="$(settings_difference "$SETTINGS_DIR/train" "$settings")"
  if [[ -n "$difference" ]]; then
    printf '%s\n' "$difference" >&2
    fail "$RUN_DIR was trained with other settings (above): choose another --run-dir, or delete it." \
      "To continue from its checkpoints with the new settings, delete $SETTINGS_DIR/train"
  fi
fi
if [[ -e "$artefact" && -f "$SETTINGS_DIR/train" ]]; then
  say "done already: $artefact"
  exit 0
fi
epochs="$(flags_as_lines "${flags[@]}" | sed -n 's/^--max-epoch[ =]//p' | tail -n 1)"
# 0 is no limit; anything else that is no number is left to fairseq.
[[ "$CHECKPOINTS" != last || ! "$epochs" =~ ^[1-9][0-9]*$ ]] || (( epochs >= AVERAGE_LAST )) \
  || fail "--max-epoch $epochs: the checkpoints of the last $AVERAGE_LAST epochs are averaged; train" \
    "for as many, or set AVERAGE_LAST"
if (( LAUNCH_MACHINE == 0 )); then
  begin_anew "$artefact" "$SETTINGS_DIR/train" "$settings"
fi

# The same batch for any number of devices: fill each device, then accumulate.
workers="${LAUNCH_WORKERS:-1}"
if [[ "$CONFIG" == gpu ]]; then
  gpus="$("$PYTHON" -c 'import torch; print(torch.cuda.device_count())')"
  (( gpus > 0 )) || fail "--gpu: PyTorch sees no GPU; use --cpu, or check CUDA_VISIBLE_DEVICES"
  workers="${LAUNCH_WORKERS:-$gpus}"
  (( workers <= gpus )) || fail "$workers workers on this machine, but PyTorch sees $gpus GPU(s)"
fi
devices=$(( LAUNCH_MACHINES * workers ))
if [[ "$BATCH_SIDE" == target && "$unit" == tokens ]]; then
  # fairseq counts the longer side of each pair, with padding.
  sizes="$("$PYTHON" "$ROOT/scripts/batch_size.py" "$PREPARED/bin" --source-lang "$SOURCE_LANG" \
    --target-lang "$TARGET_LANG" --target-tokens "$batch" --device-tokens "$on_a_device" \
    --devices "$devices")" || fail "the batch size could not be determined (see above)"
  read -r share update_freq target_tokens <<<"$sizes"
  say "batch: $target_tokens target tokens on average = $devices device(s) x $share $unit," \
    "as fairseq counts them, x $update_freq"
else
  update_freq=$(( (batch + devices * on_a_device - 1) / (devices * on_a_device) ))
  share=$(( batch / (devices * update_freq) ))
  (( share > 0 )) || fail "a batch of $batch $unit is too small for $devices devices"
  say "batch: $batch $unit = $devices device(s) x $share $unit x $update_freq"
fi

train=(
  "$PREPARED/bin" --user-dir "$USER_DIR" --save-dir "$checkpoints"
  "$batch_flag" "$share" --update-freq "$update_freq" --log-format json
  ${DEVICE_FLAGS[@]+"${DEVICE_FLAGS[@]}"} "${flags[@]}"
)
failure="fairseq-train failed (see above): run the same command again to resume from the last"
failure="$failure checkpoint"
if (( devices == 1 )); then
  # Otherwise fairseq would start a worker for each GPU that it sees, even with --cpu.
  train=("$PYTHON" -m fairseq_cli.train "${train[@]}" --distributed-world-size 1)
else
  export LAUNCH_WORKERS="$workers" LAUNCH_DEVICES="$devices"
  failure="$failure. When one of the $devices workers ends, so do the others"
  train=(bash "$EXAMPLES/launch/machine.sh" "${train[@]}")
  if [[ "$CONFIG" == cpu ]]; then
    # The default wrapper of a distributed model assumes that it is on a GPU.
    train+=(--distributed-backend gloo --ddp-backend legacy_ddp)
  fi
  if [[ "${LAUNCH_BY:-}" == srun ]] && (( LAUNCH_MACHINES > 1 )); then
    train=(
      srun --nodes "$LAUNCH_MACHINES" --ntasks "$LAUNCH_MACHINES" --ntasks-per-node 1
      ${SLURM_CPUS_PER_TASK:+--cpus-per-task "$SLURM_CPUS_PER_TASK"}
      --kill-on-bad-exit=1 --export=ALL "${train[@]}"
    )
  fi
fi

if (( LAUNCH_MACHINE > 0 )); then
  log="$RUN_DIR/logs/2_train-machine$LAUNCH_MACHINE.log"
  say "waiting for machine 0 at $MASTER_ADDR:$MASTER_PORT to train; log of this machine: $log"
  "${train[@]}" >> "$log" 2>&1 || { tail -n 20 -- "$log" >&2; fail "$failure"; }
  say "trained, with machine 0: $checkpoints"
  exit 0
fi
if (( LAUNCH_MACHINES > 1 )); then
  say "$LAUNCH_MACHINES machines meet at $MASTER_ADDR:$MASTER_PORT"
fi
if [[ -f "$checkpoints/checkpoint_last.pt" ]]; then
  recovered="$("$PYTHON" -m fairseq_sparse recover "$checkpoints" --quiet)" \
    || fail "the last checkpoint could not be checked (see above)"
  [[ -z "$recovered" ]] || say "$recovered"
fi
if [[ -f "$checkpoints/checkpoint_last.pt" ]]; then
  say "resuming from $checkpoints/checkpoint_last.pt"
else
  say "training from the start" # summarize_run.py reads the log from here
fi
"${train[@]}" || fail "$failure"
best=()
if [[ "$CHECKPOINTS" == best ]]; then best=(--best); fi
"$PYTHON" "$ROOT/scripts/summarize_run.py" train "$RUN_DIR" ${best[@]+"${best[@]}"} \
  || fail "the training log could not be summarised (see above)"
say "trained: $artefact"

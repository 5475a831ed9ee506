#!/usr/bin/env bash
# Start the workers of one machine by torchrun: machine.sh [flags of fairseq-train]
# The stage train calls it; in a Slurm job, on every machine.
set -euo pipefail

if [[ -z "${LAUNCH_MACHINES:-}" ]]; then
  echo "machine.sh: the stage train starts it; on several machines use torchrun.sh or slurm.sh" >&2
  exit 2
fi
if (( LAUNCH_MACHINES > 1 )); then
  machine="$LAUNCH_MACHINE"
  if [[ "${LAUNCH_BY:-}" == srun ]]; then machine="$SLURM_NODEID"; fi
  # A long timeout, because machine 0 may first need hours for the preparation.
  where=(
    --nnodes "$LAUNCH_MACHINES" --node-rank "$machine" --rdzv-conf timeout=604800
    --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT"
  )
else
  where=(--standalone --local-addr localhost)
fi
exec "$PYTHON" -m torch.distributed.run "${where[@]}" --nproc-per-node "$LAUNCH_WORKERS" \
  "$(dirname -- "${BASH_SOURCE[0]}")/worker.py" "$@"

#!/usr/bin/env bash
# Submits run.sh as a Slurm job that trains on all machines of the job. See --help.
COMMON="$(dirname -- "${BASH_SOURCE[0]}")/../stages/common.sh"
if [[ ! -f "$COMMON" ]]; then
  echo "slurm.sh: sbatch has copied this file away from its folder; start it as a command," >&2
  echo "which calls sbatch: examples/launch/slurm.sh [options of sbatch] -- DATASET VARIANT" >&2
  exit 2
fi
source "$COMMON"
STAGE=slurm

usage() {
  cat <<HELP
usage: slurm.sh [options of sbatch --] DATASET VARIANT [options of run.sh]

Submits a job with these options of sbatch, which runs all stages of run.sh: the training on all
machines of the job, with a worker for each GPU, everything else on the first. Inside a job (of
salloc or of your own script), it starts at once. The project, the data and the run must be in the
same folders on all machines, on a shared file system. For instance:

  slurm.sh --nodes 2 --gpus-per-node 4 --cpus-per-task 16 --time 2-0 -- wmt16_en_ro alpha_relu

Request the same number of GPUs on each machine, with --gpus-per-node or --gres, and one task on
each, which is sbatch's default. The batch size of an update is the same as with run.sh. To resume
an interrupted training, submit the same command again.
HELP
}

OPTIONS=()
for argument in "$@"; do
  if [[ "$argument" == -- ]]; then
    while [[ "$1" != -- ]]; do
      OPTIONS+=("$1")
      shift
    done
    shift
    break
  fi
done
if [[ "${1:-}" == -h || "${1:-}" == --help ]]; then
  usage
  exit 0
fi
[[ "${1:-}" != -* ]] || bad_usage "options of sbatch end with --: slurm.sh $* -- DATASET VARIANT"
(( $# > 1 )) || bad_usage "a data set and a variant are needed"
known datasets "$1" \
  || bad_usage "unknown data set '$1'; there are: $(names_in "$EXAMPLES/datasets")"
known variants "$2" \
  || bad_usage "unknown variant '$2'; there are: $(names_in "$EXAMPLES/variants")"

if [[ -z "${SLURM_JOB_ID:-}" ]]; then
  command -v sbatch > /dev/null || fail "no sbatch here: start it where jobs are submitted, or" \
    "use torchrun.sh on each machine"
  printf '#!/usr/bin/env bash\nexec bash%s\n' "$(printf ' %q' "$EXAMPLES/launch/slurm.sh" "$@")" \
    | sbatch --job-name "$1-$2" ${OPTIONS[@]+"${OPTIONS[@]}"}
  exit
fi
(( ${#OPTIONS[@]} == 0 )) || bad_usage "job $SLURM_JOB_ID runs: too late for options of sbatch"

hosts="$(scontrol show hostnames "${SLURM_JOB_NODELIST:-}")" \
  || fail "scontrol cannot tell the machines of job $SLURM_JOB_ID"
LAUNCH_MACHINES="$(printf '%s\n' "$hosts" | wc -l | tr -d ' ')"
MASTER_ADDR="${hosts%%$'\n'*}"
MASTER_PORT="$("$PYTHON" - <<'PY'
import socket
with socket.socket() as probe:
    probe.bind(("", 0))
    print(probe.getsockname()[1])
PY
)"
export LAUNCH_BY=srun LAUNCH_MACHINES MASTER_ADDR MASTER_PORT
say "job $SLURM_JOB_ID on $LAUNCH_MACHINES machine(s), the first is $MASTER_ADDR"
exec bash "$EXAMPLES/run.sh" "$@"

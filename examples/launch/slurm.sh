#!/usr/bin/env bash
# A Slurm job that trains a recipe on several machines, here 2 with 4 GPUs each. Change the lines
# that differ on your cluster, and submit it from the folder that gets data/ and runs/, which all
# machines must share:
#
#   sbatch slurm.sh wmt16_en_ro alpha_relu
#
# Machine 0 does all stages, the others only the training. The batch of an update does not depend on
# the number of GPUs. To resume an interrupted training, submit the same command again.
#SBATCH --job-name fairseq-sparse
#SBATCH --nodes 2
#SBATCH --ntasks-per-node 1
#SBATCH --gpus-per-node 4
#SBATCH --cpus-per-task 16
#SBATCH --time 2-00:00:00
set -euo pipefail

# source /path/to/the/environment/bin/activate
MASTER_ADDR="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"
MASTER_PORT=$(( 20000 + SLURM_JOB_ID % 10000 ))
export MASTER_ADDR MASTER_PORT
export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK" # which srun does not take over by itself

srun --kill-on-bad-exit=1 bash -c 'exec fairseq-sparse run "$@" --gpu \
  --nnodes "$SLURM_NNODES" --node-rank "$SLURM_NODEID" \
  --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT"' run "$@"

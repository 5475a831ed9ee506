#!/usr/bin/env bash
# Runs run.sh with the training on several machines; start it on each of them. See --help.
source "$(dirname -- "${BASH_SOURCE[0]}")/../stages/common.sh"
STAGE=torchrun

usage() {
  cat <<HELP
usage: torchrun.sh [options] DATASET VARIANT [options of run.sh]

Start it on every machine, with a different --node-rank and all else the same. Machine 0 runs all
stages, like run.sh; the others wait for it and take part in the training, by torchrun. The project,
the data and the run must be in the same folders on all machines, on a shared file system.

  --nnodes N          machines (default: 1)
  --node-rank K       number of this machine: 0 to N - 1
  --master-addr HOST  name or address of machine 0
  --master-port PORT  a free port of machine 0 (default: 29500)
  --nproc-per-node N  workers on each machine (default: one for each GPU, or one with --cpu)
  --help              this text

The batch size of an update is the same as with run.sh. To resume an interrupted training, start it
on all machines again.
HELP
}

NNODES=1 NODE_RANK="" MASTER_ADDR="" MASTER_PORT=29500 NPROC_PER_NODE=""
ARGUMENTS=()
while (( $# )); do
  option="${1%%=*}"
  option="${option//_/-}"
  case "$option" in
    -h | --help) usage; exit 0 ;;
    --nnodes | --node-rank | --master-addr | --master-port | --nproc-per-node)
      if [[ "$1" != *=* ]]; then
        (( $# > 1 )) || bad_usage "$option needs a value"
        set -- "$1=$2" "${@:3}"
      fi
      value="${1#*=}"
      if [[ "$option" == --master-addr ]]; then
        [[ -n "$value" ]] || bad_usage "$option needs a value"
      else
        [[ "$value" =~ ^(0|[1-9][0-9]{0,5})$ ]] \
          || bad_usage "$option must be a number below 1000000, got '$value'"
      fi
      case "$option" in
        --nnodes) NNODES="$value" ;;
        --node-rank) NODE_RANK="$value" ;;
        --master-addr) MASTER_ADDR="$value" ;;
        --master-port) MASTER_PORT="$value" ;;
        --nproc-per-node) NPROC_PER_NODE="$value" ;;
      esac
      ;;
    *) ARGUMENTS+=("$1") ;;
  esac
  shift
done
(( NNODES > 0 )) || bad_usage "--nnodes must be at least 1"
(( MASTER_PORT > 0 && MASTER_PORT < 65536 )) \
  || bad_usage "--master-port must be from 1 to 65535, got '$MASTER_PORT'"
[[ "$NPROC_PER_NODE" != 0 ]] || bad_usage "--nproc-per-node must be at least 1"
if (( NNODES > 1 )); then
  [[ -n "$NODE_RANK" ]] || bad_usage "--nnodes $NNODES needs --node-rank, different on each machine"
  [[ -n "$MASTER_ADDR" ]] || bad_usage "--nnodes $NNODES needs --master-addr of machine 0"
fi
(( ${NODE_RANK:=0} < NNODES )) || bad_usage "--node-rank $NODE_RANK is not below --nnodes $NNODES"

# These may come from an outer launcher; fairseq would use them in every stage.
unset RANK LOCAL_RANK WORLD_SIZE
export LAUNCH_MACHINES="$NNODES" LAUNCH_MACHINE="$NODE_RANK" LAUNCH_WORKERS="$NPROC_PER_NODE"
export MASTER_ADDR MASTER_PORT
if (( NODE_RANK > 0 )); then ARGUMENTS+=(--stages train); fi
exec bash "$EXAMPLES/run.sh" ${ARGUMENTS[@]+"${ARGUMENTS[@]}"}

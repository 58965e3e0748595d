#!/usr/bin/env bash
# A script beside this one as a batch job of Slurm: one task a GPU, saved before the time is up, queued again, gone on with.
#
# Submit it from the folder that holds scripts/, with the other script and its arguments, such as
#   1 GPU          sbatch --ntasks-per-node=1 --gpus-per-node=1 scripts/8b/slurm.sh qwen-math.sh 64x
#   4 GPUs         sbatch --ntasks-per-node=4 --gpus-per-node=4 scripts/8b/slurm.sh llama3-8b.sh dpo humanline llama3-data
#   8 GPUs         sbatch scripts/8b/slurm.sh llama3-8b.sh dpo humanline llama3-data
#   2 nodes of 8   sbatch --nodes=2 scripts/8b/slurm.sh gemma2-27b.sh dpo humanline gemma2-data
# `humanline estimate RECIPE --gpus N --gpu-memory GIB` says before whether it fits. All nodes share the folder of the
# run, the data and the models. Each task must see all GPUs of its node: no --gpus-per-task, no --gpu-bind.
# Gloo and NCCL use the network device that the host's name leads to; where that is the wrong one, export
# GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME.
#
# The same on two nodes without Slurm, on each of them (a save must fit in the seconds that the launcher waits):
#   TORCH_ELASTIC_SHUTDOWN_TIMEOUT=1800 torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-id 1 \
#     --rdzv-endpoint FIRST_NODE:29500 -m humanline train RECIPE
#SBATCH --job-name=humanline
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=8
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=USR1@900
set -euo pipefail
USAGE="usage: [DRY_RUN=1] [sbatch [options]] $0 SCRIPT [its arguments ...]"
# Slurm runs a copy of this script from a folder of its own.
here=$(dirname "$0")
if [[ -n ${SLURM_JOB_ID:-} ]]; then
  here=$SLURM_SUBMIT_DIR/scripts/8b
fi
# shellcheck source=scripts/8b/common.sh
. "$here/common.sh"

need_arguments 1 "$@"
script=$1
shift
if [[ $script != */* ]]; then
  script=$here/$script
fi
if [[ ! -x $script ]]; then
  fail "there is no script '$script'"
fi
if [[ -n ${GPUS:-} ]]; then
  fail "GPUS starts processes, which srun does here; leave it out, and give sbatch --ntasks-per-node and --gpus-per-node"
fi
if [[ ${DRY_RUN:-0} != 0 ]]; then
  exec "$script" "$@"
fi
export RESUME=1 # starts afresh where there is nothing yet
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-${SLURM_CPUS_PER_TASK:-1}}"
export SRUN_CPUS_PER_TASK="${SRUN_CPUS_PER_TASK:-${SLURM_CPUS_PER_TASK:-1}}"
code=0
# The processes of a run watch each other, and know better than srun when one that is left has to end.
srun --kill-on-bad-exit=0 --wait=0 "$script" "$@" || code=$?
# Stopped and saved (75): once more, for as long as it takes. Another process is gone (69), maybe with its node: five times.
if ((code == 75)) || { ((code == 69)) && ((${SLURM_RESTART_COUNT:-0} < 5)); }; then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"

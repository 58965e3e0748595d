#!/usr/bin/env bash
# Gemma-2-27B-Instruct: Table 5 and Figure 9; online, DPO alone. Takes several GPUs, or LoRA: see recipes/README.md.
set -euo pipefail
USAGE="usage: [DRY_RUN=1] [GPUS=n] [RESUME=1] $0 {dpo|kto|grpo} {offline|humanline} {llama3-data|gemma2-data} [section.key=value ...]
       [DRY_RUN=1] [GPUS=n] [RESUME=1] $0 dpo online [section.key=value ...]"
# shellcheck source=scripts/8b/common.sh
. "$(dirname "$0")/common.sh"

need_arguments 2 "$@"
objective=$1 variant=$2
one_of variant "$variant" offline humanline online
if [[ $variant == online ]]; then
  shift 2
  one_of "objective of the online variant" "$objective" dpo
  run_recipe gemma2-27b-dpo-online "$@"
fi
one_of objective "$objective" dpo kto grpo
need_arguments 3 "$@"
data=$3
shift 3
one_of data "$data" llama3-data gemma2-data
run_recipe "gemma2-27b-$objective-$variant-$data" "$@"

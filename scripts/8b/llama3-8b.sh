#!/usr/bin/env bash
# Llama-3-8B-Instruct: Tables 3 and 4. The online variants make their own data and take two arguments.
set -euo pipefail
USAGE="usage: [DRY_RUN=1] [GPUS=n] [RESUME=1] $0 {dpo|kto|grpo} {offline|humanline} {llama3-data|gemma2-data} [section.key=value ...]
       [DRY_RUN=1] [GPUS=n] [RESUME=1] $0 {dpo|kto|grpo} {online|online-humanline} [section.key=value ...]"
# shellcheck source=scripts/8b/common.sh
. "$(dirname "$0")/common.sh"

need_arguments 2 "$@"
objective=$1 variant=$2
one_of objective "$objective" dpo kto grpo
one_of variant "$variant" offline humanline online online-humanline
recipe=llama3-8b-$objective-$variant
if [[ $variant == online* ]]; then
  shift 2
else
  need_arguments 3 "$@"
  data=$3
  shift 3
  one_of data "$data" llama3-data gemma2-data
  if [[ $data == gemma2-data ]]; then
    recipe+=-gemma2-data
  fi
fi
run_recipe "$recipe" "$@"

#!/usr/bin/env bash
# Llama-3-8B-Instruct, offline and offline + humanline: Tables 3 and 4.
set -euo pipefail
USAGE="usage: [DRY_RUN=1] [GPUS=n] [RESUME=1] $0 {dpo|kto|grpo} {offline|humanline} {llama3-data|gemma2-data} [section.key=value ...]"
# shellcheck source=scripts/8b/common.sh
. "$(dirname "$0")/common.sh"

need_arguments 3 "$@"
objective=$1 variant=$2 data=$3
shift 3
one_of objective "$objective" dpo kto grpo
one_of variant "$variant" offline humanline
one_of data "$data" llama3-data gemma2-data
recipe=llama3-8b-$objective-$variant
if [[ $data == gemma2-data ]]; then
  recipe+=-gemma2-data
fi
run_recipe "$recipe" "$@"

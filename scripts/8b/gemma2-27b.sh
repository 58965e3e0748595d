#!/usr/bin/env bash
# Gemma-2-27B-Instruct, offline and offline + humanline: Table 5 and Figure 9. Needs sharding; see recipes/README.md.
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
run_recipe "gemma2-27b-$objective-$variant-$data" "$@"

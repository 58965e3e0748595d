#!/usr/bin/env bash
# Humanline DPO of Llama-3-8B-Instruct with the clip ranges of Table 6.
set -euo pipefail
USAGE="usage: [DRY_RUN=1] [GPUS=n] [RESUME=1] $0 {-2.0:1.5|-1.5:1.5|-1.0:1.5|-1.0:2.0|-1.0:3.0} [section.key=value ...]"
# shellcheck source=scripts/8b/common.sh
. "$(dirname "$0")/common.sh"

need_arguments 1 "$@"
range=$1
shift
one_of range "$range" -2.0:1.5 -1.5:1.5 -1.0:1.5 -1.0:2.0 -1.0:3.0
recipe=llama3-8b-dpo-humanline
if [[ $range != -1.5:1.5 ]]; then # that one is the run of Table 3
  recipe+=-clip${range/:/-}
fi
run_recipe "$recipe" "$@"

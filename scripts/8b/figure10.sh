#!/usr/bin/env bash
# Trust-region DPO of Llama-3-8B-Instruct: Figure 10, its 1024 read as steps (never reached) or as examples.
set -euo pipefail
USAGE="usage: [DRY_RUN=1] [GPUS=n] [RESUME=1] $0 {steps|examples} [section.key=value ...]"
# shellcheck source=scripts/8b/common.sh
. "$(dirname "$0")/common.sh"

need_arguments 1 "$@"
unit=$1
shift
one_of unit "$unit" steps examples
recipe=llama3-8b-dpo-trust-region
if [[ $unit == examples ]]; then # 1024 pairs are 32 steps
  set -- reference.schedule.every=32 "output=runs/$recipe-every-32" "$@"
fi
run_recipe "$recipe" "$@"

#!/usr/bin/env bash
# Humanline GRPO of Llama-3-8B-Instruct, synced every K steps: Figure 8.
set -euo pipefail
USAGE="usage: [DRY_RUN=1] [GPUS=n] [RESUME=1] $0 K [section.key=value ...]"
# shellcheck source=scripts/8b/common.sh
. "$(dirname "$0")/common.sh"

need_arguments 1 "$@"
every=$1
shift
if [[ ! $every =~ ^[1-9][0-9]*$ ]]; then
  fail "K must be a whole number, at least 1; got '$every'"
fi
recipe=llama3-8b-grpo-humanline
run_recipe "$recipe" "reference.schedule.every=$every" "output=runs/$recipe-every-$every" "$@"

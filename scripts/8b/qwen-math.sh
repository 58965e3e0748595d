#!/usr/bin/env bash
# GRPO of Qwen2.5-1.5B-Instruct on MATH: Table 2 and Figure 7.
set -euo pipefail
USAGE="usage: [DRY_RUN=1] [GPUS=n] [RESUME=1] $0 {online|64x|humanline-12|humanline-16|humanline-20} [section.key=value ...]"
# shellcheck source=scripts/8b/common.sh
. "$(dirname "$0")/common.sh"

need_arguments 1 "$@"
variant=$1
shift
one_of variant "$variant" online 64x humanline-12 humanline-16 humanline-20
recipe=qwen2.5-1.5b-math-$variant
if [[ $variant == humanline-* ]]; then
  recipe=qwen2.5-1.5b-math-64x-humanline-k${variant#humanline-}
fi
run_recipe "$recipe" "$@"

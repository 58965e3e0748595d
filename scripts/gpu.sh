#!/usr/bin/env bash
# Everything that only a GPU can tell, in the order of its worth; each stage writes what it knows as it goes.
#
#   scripts/gpu.sh --minutes 9 [--from STAGE] [--out FOLDER] [--cpu]
#
# Stages: tests quick large logprobs packed steps equality memory overlap checkpoints. Each has a time limit, so that
# one that hangs costs only itself, and none is begun with less than a third of that limit left. Results go to FOLDER
# (default: benchmarks/results) as NAME-gpu.json, and all that is printed to FOLDER/gpu.log. Wheels that lie in .wheels
# are installed first. --cpu runs the quick forms on a machine without a GPU, to try this script itself; what they find
# goes to a new folder, unless another is named, and not in the place of what was measured.
#
# Exit code: 0 all passed, 1 something failed, 2 wrong usage or no GPU, 3 nothing failed, but something was cut short.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2

usage() {
  echo "usage: scripts/gpu.sh [--minutes M] [--from STAGE] [--out FOLDER] [--cpu]" >&2
  exit 2
}

minutes=30 from="" out="" cpu=""
while [ $# -gt 0 ]; do
  case "$1" in
    --cpu) cpu=yes && shift && continue ;;
    --minutes | --from | --out) [ $# -ge 2 ] || usage ;;
    *) usage ;;
  esac
  case "$1" in
    --minutes) minutes=$2 ;;
    --from) from=$2 ;;
    --out) out=$2 ;;
  esac
  shift 2
done
[[ $minutes =~ ^[0-9]+$ ]] && [ "$minutes" -gt 0 ] || usage

# Stage and the seconds that it is given.
stages=(tests:150 quick:80 large:280 logprobs:120 packed:100 steps:180 equality:80 memory:120 overlap:120 checkpoints:200)
if [ -n "$cpu" ]; then # a CPU needs longer for less
  stages=(tests:300 quick:300 large:60 logprobs:120 packed:120 steps:120 equality:120 memory:120 overlap:120 checkpoints:200)
fi
[ -z "$from" ] || [[ " ${stages[*]} " == *" $from:"* ]] || usage

python=${PYTHON:-python3}
# Several at a time share the GPU; the plugin for benchmarks warns of that, and a warning would end all tests.
pytest=(-n 4 -p no:cacheprovider -p no:benchmark -o faulthandler_timeout=60 --continue-on-collection-errors)
end=$((SECONDS + 60 * minutes))
export PYTHONPATH=. PYTHONUNBUFFERED=1
# The older name too, for versions of torch that do not know the other one.
export PYTORCH_ALLOC_CONF=expandable_segments:True PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
if [ -z "$cpu" ] && ! timeout 120 "$python" -c 'import torch; raise SystemExit(not torch.cuda.is_available())'; then
  echo "no GPU that torch can use: nothing was run (--cpu tries the quick forms)" >&2
  exit 2
fi
if [ -z "$out" ]; then
  out=benchmarks/results
  [ -z "$cpu" ] || out=$(mktemp -d) || exit 2
fi
mkdir -p "$out" && log=$out/gpu.log && : >"$log" || exit 2
if compgen -G '.wheels/*.whl' >/dev/null; then
  timeout 120 "$python" -m pip install --quiet --no-index --no-deps .wheels/*.whl 2>&1 | tee -a "$log"
fi

# Run one stage within so many seconds.
run() {
  local name=$1 seconds=$2
  # It ends by itself, with all it knows written, before it would be ended.
  local shorter=$(awk -v seconds="$seconds" 'BEGIN { print (seconds > 20 ? seconds - 8 : seconds * 0.6) / 60 }')
  local limit=(timeout --kill-after=10 "$seconds") quick=()
  [ -z "$cpu" ] || quick=(--quick)
  case "$name" in
    # Names of tests, and where one stands still after a minute; a file that lacks a package costs only its own tests.
    tests) "${limit[@]}" "$python" -m pytest -m gpu -vv "${pytest[@]}" tests ;;
    quick) "${limit[@]}" "$python" -m benchmarks large --quick --minutes "$shorter" ;;
    *) "${limit[@]}" "$python" -m benchmarks "$name" "${quick[@]}" --minutes "$shorter" --out "$out" ;;
  esac
}

declare -A said
failed="" cut="" skip=$from
for stage in "${stages[@]}"; do
  name=${stage%%:*} seconds=${stage##*:} left=$((end - SECONDS))
  [ "$name" != "$skip" ] || skip=""
  [ -z "$skip" ] || continue
  [ "$seconds" -le "$left" ] || { said[$name]="given $left of its $seconds s: " && seconds=$left; }
  if [ "$((3 * left))" -lt "${stage##*:}" ]; then
    said[$name]="not begun: $((left > 0 ? left : 0)) s were left" cut=yes
    continue
  fi
  echo "=== $name: at most $seconds s" | tee -a "$log"
  started=$SECONDS
  run "$name" "$seconds" 2>&1 | tee -a "$log"
  code=${PIPESTATUS[0]}
  case $code in
    0) said[$name]+="passed" ;;
    124 | 137 | 143) said[$name]+="cut after $((SECONDS - started)) s" cut=yes ;;
    *) said[$name]+="FAILED with $code" failed=yes ;;
  esac
  said[$name]+=", $((SECONDS - started)) s"
done

{
  echo "=== summary"
  for stage in "${stages[@]}"; do
    name=${stage%%:*}
    echo "$name: ${said[$name]:-left out}"
  done
  # Rows with a target, and those that failed or were cut.
  echo "results: $out"
  "$python" - "$out" "${cpu:+cpu}" <<'PYTHON' || true
import json, pathlib, sys
for path in sorted(pathlib.Path(sys.argv[1]).glob(f"*-{sys.argv[2] or 'gpu'}.json")):
    rows = json.loads(path.read_text())["rows"]
    met, none = [row["met"] for row in rows], [row for row in rows if row["value"] is None]
    told = f"{len(rows)} rows, {met.count(True)} targets met, {met.count(False)} missed, {len(none)} without a number"
    print(f"{path.name}: {told}")
    for row in none:
        if row["note"].startswith("failed") or "were left of the time" in row["note"] or "not reached" in row["note"]:
            print(f"  {row['what']}: {row['note']}")
PYTHON
} 2>&1 | tee -a "$log"
[ -z "$failed" ] || exit 1
[ -z "$cut" ] || exit 3

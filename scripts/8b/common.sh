# shellcheck shell=bash
# What the launch scripts beside this file share; they source it.
#
# Environment, for all of them:
#   DRY_RUN=1  print the command and check the configuration; no model, no data, no training
#   GPUS=n     n processes on this machine, one device each; under training.sharding=full, which the offline recipes
#              have, each holds its share of weights, gradients and optimizer states
#   RESUME=1   go on from the newest checkpoint, as a requeued job wants it; starts afresh where there is none
# Arguments after the first ones go to humanline train: section.key=value, --preset, --quiet.

fail() {
  printf '%s: %s\n%s\n' "$0" "$1" "$USAGE" >&2
  exit 2
}

# Print the usage where it is asked for; otherwise demand so many arguments.
need_arguments() {
  local count=$1
  shift
  case "${1:-}" in
    -h | --help)
      printf '%s\n' "$USAGE"
      exit 0
      ;;
  esac
  if (($# < count)); then
    fail "needs $count argument(s); got $#"
  fi
}

one_of() {
  local what=$1 value=$2 choice
  shift 2
  for choice in "$@"; do
    if [[ $value == "$choice" ]]; then
      return 0
    fi
  done
  fail "$what must be one of: $*; got '$value'"
}

run_recipe() {
  local recipe=$1
  shift
  local command=(humanline train)
  one_of DRY_RUN "${DRY_RUN:-0}" 0 1
  one_of RESUME "${RESUME:-0}" 0 1
  if [[ -n ${GPUS:-} ]]; then
    if [[ ! $GPUS =~ ^[1-9][0-9]*$ ]]; then
      fail "GPUS must be a whole number, at least 1; got '$GPUS'"
    fi
  fi
  command+=("$recipe" "$@")
  if [[ ${GPUS:-1} != 1 ]]; then
    command+=(--processes "$GPUS")
  fi
  if [[ ${RESUME:-0} == 1 ]]; then
    command+=(--resume)
  fi
  if [[ ${SLURM_PROCID:-0} == 0 ]]; then # of the tasks of a batch job one is enough
    printf '%q ' "${command[@]}"
    printf '\n'
  fi
  if [[ ${DRY_RUN:-0} == 1 ]]; then
    exec humanline validate --no-data "$recipe" "$@"
  fi
  exec "${command[@]}" # so that a signal of the scheduler reaches the run itself
}

#!/usr/bin/env bash
# Deterministic simulation: fixed regression seeds, fresh ones (their first is printed, so that a failure can be repeated),
# and the canaries: planted bugs that must be found. simulation.sh SEEDS FRESH_SEEDS CANARY_SEEDS
source "$(dirname "$0")/common.sh"

seeds=${1:-200}
fresh_seeds=${2:-100}
canary_seeds=${3:-1000}
deploy/scripts/setup.sh build || exit
build_binaries sim || exit
sim="$(target_dir)/ci/sim"

passed=0
failed=0
check() { # check NAME COMMAND...
    local name=$1
    shift
    say "$name: $*"
    if "$@"; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
}

# Each twice: the same seed has to give the same trace.
check 'regression seeds' "$sim" run --from 1 --seeds "$seeds" --twice
check 'fresh seeds' "$sim" run --from "$(date +%s)000" --seeds "$fresh_seeds"
check 'canaries' "$sim" canaries --seeds "$canary_seeds"
printf '%s passed, %s failed\n' "$passed" "$failed"
[ "$failed" = 0 ]

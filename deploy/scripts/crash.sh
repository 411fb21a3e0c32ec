#!/usr/bin/env bash
# The real process killed with SIGKILL under load, so many times (default 20); its history goes to the log checker.
source "$(dirname "$0")/common.sh"

kills=${1:-20}
deploy/scripts/setup.sh build || exit
build_binaries faults corelane || exit
workdir=$(mktemp -d -t corelane-crash.XXXXXX) || exit
trap 'rm -rf "$workdir"' EXIT
trap 'exit 143' TERM INT HUP
say "killed under load: $kills times, seed ${SEED:=$RANDOM}"
"$(target_dir)/ci/faults" crash --workdir "$workdir" --kills "$kills" --seed "$SEED"

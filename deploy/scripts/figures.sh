#!/usr/bin/env bash
# Builds release and measures: figure, limit of this machine in the same run, ratio. Fails on a missed "must".
source "$(dirname "$0")/common.sh"
set -e
set_name=${1:-node}
deploy/scripts/setup.sh build figures
say "building release (thin LTO, some minutes on two cores)"
cargo build --locked --release -p broker -p bench
say "measuring: bench $set_name all"
exec "$(target_dir)/release/bench" "$set_name" all

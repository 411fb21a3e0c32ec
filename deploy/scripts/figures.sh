#!/usr/bin/env bash
# Builds release and measures: figure, limit of this machine in the same run, ratio. Fails on a missed "must".
# figures.sh SET [ARGUMENT OF bench...]; sets: node. With root, a log of LOG_MIB (10 GiB) that a power cut ended is made first.
source "$(dirname "$0")/common.sh"
set -e

set_name=${1:-node}
[ $# -gt 0 ] && shift
log_mib=${LOG_MIB:-10240}
release="$(target_dir)/release"
scratch="$(target_dir)/bench-data"
deploy/scripts/setup.sh build figures
say 'building release (thin LTO: some minutes on two cores)'
cargo build --locked --release --workspace --bin corelane --bin bench --bin faults

arguments=(--corelane "$release/corelane" --dir "$scratch")
clean_up() {
    [ -d "$scratch/powercut" ] && "$release/faults" clean --workdir "$scratch/powercut" >/dev/null
    rm -rf "$scratch/powercut" "$scratch/powercut-mnt"
}
if [ "$(id -u)" = 0 ]; then
    deploy/scripts/setup.sh test
    trap clean_up EXIT
    trap 'exit 143' TERM INT HUP
    mkdir -p "$scratch/powercut"
    say "making a log of $log_mib MiB that a power cut ended"
    "$release/faults" prefilled --workdir "$scratch/powercut" --mib "$log_mib" --mount "$scratch/powercut-mnt"
    arguments+=(--power-cut-data "$scratch/powercut-mnt/data")
else
    say 'not root: restart after a power cut is not measured (it needs loop devices and mounts)'
fi
say "measuring: bench $set_name all"
"$release/bench" "$set_name" all "${arguments[@]}" "$@"

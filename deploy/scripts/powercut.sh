#!/usr/bin/env bash
# Power cuts on the real path: `short` (one file system, few points), `full` (ext4 and XFS, 60 points of each mode and more
# seeds), `selftest` (the harness alone, judged by writers whose honesty is known). Cleans up whatever happens.
source "$(dirname "$0")/common.sh"

length=${1:-short}
deploy/scripts/setup.sh build test || exit
[ "$(id -u)" = 0 ] || die "power cuts need root: loop devices and mounts"
build_binaries faults corelane || exit
faults="$(target_dir)/ci/faults"

# Images in memory if there is room for them, else on the disk.
room_mib() { df --output=avail -m "$1" 2>/dev/null | tail -n 1; }
parent=${TMPDIR:-/tmp}
[ "$(room_mib /dev/shm || echo 0)" -gt 3000 ] && parent=/dev/shm
workdir=$(mktemp -d "$parent/corelane-powercut.XXXXXX") || exit
clean_up() {
    "$faults" clean --workdir "$workdir" >/dev/null
    rm -rf "$workdir"
}
trap clean_up EXIT
trap 'exit 143' TERM INT HUP

failed=0
run() {
    say "power cut: $*"
    "$faults" "$@" --workdir "$workdir" || failed=1
    rm -f "$workdir"/failed-*.img
}

case $length in
selftest) run selftest --points 24 ;;
short)
    run selftest --points 12
    run powercut --file-system ext4 --points 10 --load-ms 1500 --seed "${SEED:-1}"
    ;;
full)
    for file_system in ext4 xfs; do
        run selftest --file-system "$file_system" --points 48
        for seed in 1 2 3; do
            run powercut --file-system "$file_system" --points 60 --load-ms 8000 --seed "$seed"
        done
    done
    ;;
*) die "usage: powercut.sh short|full|selftest" ;;
esac
exit "$failed"

# Sourced by the other scripts: where the repository is, how they speak, how they measure time.
# shellcheck shell=bash

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$top" || exit 2

say() { printf '== %s\n' "$*"; }
die() {
    printf 'error: %s\n' "$*" >&2
    exit 2
}

# Seconds since the machine started, with two decimals: no jump of the wall clock disturbs it.
uptime_seconds() { cut -d ' ' -f 1 /proc/uptime; }
seconds_since() { awk -v a="$1" -v b="$(uptime_seconds)" 'BEGIN { printf "%.1f", b - a }'; }

# Where cargo puts what it builds.
target_dir() { printf '%s' "${CARGO_TARGET_DIR:-$top/target}"; }

# Builds binaries with the tests' profile. `make test` has built everything before and says so with BUILT=1.
build_binaries() { # build_binaries NAME...
    local name arguments=()
    [ "${BUILT:-}" = 1 ] && return 0
    for name in "$@"; do arguments+=(--bin "$name"); done
    cargo build --locked --profile ci --workspace "${arguments[@]}"
}

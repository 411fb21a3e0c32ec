#!/usr/bin/env bash
# What `make verify` complains about, as far as tools can mend it. Writes to the work tree.
source "$(dirname "$0")/common.sh"
set -e
deploy/scripts/setup.sh build
cargo clippy --profile ci --workspace --all-targets --fix --allow-dirty --allow-staged
cargo fmt --all
deploy/scripts/traps.sh

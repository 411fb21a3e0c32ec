#!/usr/bin/env bash
# Static checks: formatting, lints with warnings denied, layering and style. Writes nothing outside the target directory.
source "$(dirname "$0")/common.sh"
deploy/scripts/setup.sh build || exit

passed=0
failed=0
check() { # check NAME COMMAND...
    local name=$1 began out
    shift
    began=$(uptime_seconds)
    if out=$("$@" 2>&1); then
        passed=$((passed + 1))
        say "$name: clean ($(seconds_since "$began") s)"
    else
        failed=$((failed + 1))
        printf '%s\n' "$out" | tail -n 200
        say "$name: FAILED ($(seconds_since "$began") s): $*"
    fi
}

check 'formatting' cargo fmt --all --check
check 'lints' cargo clippy --locked --profile ci --workspace --all-targets -- -D warnings
check 'layering and style' cargo test --locked --profile ci --workspace --test layering
if command -v cargo-deny >/dev/null 2>&1; then
    check 'licences and bans' cargo deny --offline check licenses bans sources
else
    say 'licences and bans: cargo-deny is not installed here, deny.toml was not applied'
fi
printf '%s passed, %s failed\n' "$passed" "$failed"
[ "$failed" = 0 ]

#!/usr/bin/env bash
# The ladder: static checks, then unit, property and golden tests (L0), simulation (L1), power cuts (L3), and the real
# process killed under load. `short` is what continuous integration runs, `full` is the same at full length.
# Prints the seconds of each stage, and at the end one line alone: "N passed, M failed".
source "$(dirname "$0")/common.sh"

length=${1:-short}
case $length in
short)
    seeds=200 fresh_seeds=100 canary_seeds=1000 kills=5
    unit_timeout=900 simulation_timeout=420 powercut_timeout=420 crash_timeout=240
    ;;
full)
    seeds=5000 fresh_seeds=5000 canary_seeds=1000 kills=20
    unit_timeout=3600 simulation_timeout=7200 powercut_timeout=7200 crash_timeout=1800
    # Property tests and fuzzers draw so many cases each.
    export PROPTEST_CASES=${PROPTEST_CASES:-20000}
    ;;
*) die "usage: test.sh short|full" ;;
esac

logs=$(mktemp -d -t corelane-test.XXXXXX) || exit 2
trap 'rm -rf "$logs"' EXIT
passed=0
failed=0
summary=''

# Adds up what a stage reported: cargo's "test result:" lines, and "N passed, M failed" lines of our own.
counts() {
    sed -nE -e 's/^test result: [a-zA-Z]+\. ([0-9]+) passed; ([0-9]+) failed;.*/\1 \2/p' -e 's/^([0-9]+) passed, ([0-9]+) failed$/\1 \2/p' "$1" |
        awk '{ p += $1; f += $2 } END { printf "%d %d\n", p, f }'
}

stage() { # stage NAME SECONDS COMMAND...
    local name=$1 limit=$2 began status stage_passed stage_failed took
    shift 2
    began=$(uptime_seconds)
    say "$name: $*"
    timeout --kill-after=20 "$limit" "$@" </dev/null 2>&1 | tee "$logs/stage"
    status=${PIPESTATUS[0]}
    took=$(seconds_since "$began")
    read -r stage_passed stage_failed < <(counts "$logs/stage")
    if [ "$status" != 0 ]; then
        [ "$stage_failed" = 0 ] && stage_failed=1
        [ "$status" = 124 ] && say "$name: did not end within $limit s"
    elif [ "$stage_passed$stage_failed" = 00 ]; then
        # Setup and build count as one each; a stage of tests that ran none has not passed.
        case $name in L* | killed*) stage_failed=1 && say "$name: no test was run" ;; *) stage_passed=1 ;; esac
    fi
    passed=$((passed + stage_passed))
    failed=$((failed + stage_failed))
    summary+=$(printf '%-28s %8s s  %6s passed  %4s failed' "$name" "$took" "$stage_passed" "$stage_failed")$'\n'
    say "$name: $took s, $stage_passed passed, $stage_failed failed"
    return 0
}

whole=$(uptime_seconds)
stage 'setup' 900 deploy/scripts/setup.sh build test
stage 'static checks' 1500 deploy/scripts/verify.sh
stage 'build' 1500 cargo build --locked --profile ci --workspace --all-targets
if [ "$failed" = 0 ]; then
    export BUILT=1
    stage 'L0 unit, property, golden' "$unit_timeout" cargo test --locked --profile ci --workspace --no-fail-fast
    stage 'L1 simulation' "$simulation_timeout" deploy/scripts/simulation.sh "$seeds" "$fresh_seeds" "$canary_seeds"
    stage 'L3 power cuts' "$powercut_timeout" deploy/scripts/powercut.sh "$length"
    stage 'killed under load' "$crash_timeout" deploy/scripts/crash.sh "$kills"
else
    say 'the ladder is not climbed: the static checks or the build failed'
fi

printf '\n%s' "$summary"
printf '%-28s %8s s\n\n' 'all' "$(seconds_since "$whole")"
printf '%s passed, %s failed\n' "$passed" "$failed"
[ "$failed" = 0 ]

#!/usr/bin/env bash
# The main job, end to end, on this machine: builds, starts a host on a fresh data directory, feeds it a real event file
# line by line, consumes it back and compares every line in order; then the same with 1 GiB made from those lines, measured.
# Then it stays up for you to connect, until Ctrl-C. Settings come from the environment:
#   FILE=     the event file [default: the operating system's package log]
#   ONCE=1    stop at the end, exit 0
#   PROFILE=  ci (default: optimised, assertions on) or release (some minutes to build)
#   SIZE_MIB= how much is measured [default: 1024]
source "$(dirname "$0")/common.sh"
set -e

profile=${PROFILE:-ci}
size_mib=${SIZE_MIB:-1024}
deploy/scripts/setup.sh build

file=${FILE:-}
if [ -z "$file" ]; then
    for candidate in /var/log/dpkg.log /var/log/apt/history.log /var/log/apt/term.log /var/log/pacman.log /var/log/dnf.rpm.log /var/log/syslog; do
        [ -s "$candidate" ] && [ -r "$candidate" ] && file=$candidate && break
    done
fi
[ -n "$file" ] || die 'no package log was found on this machine: name an event file with FILE='
[ -s "$file" ] || die "$file is empty or can't be read"

say "building corelane (profile $profile)"
began=$(uptime_seconds)
cargo build --locked --profile "$profile" --workspace --bin corelane
say "built in $(seconds_since "$began") s"
corelane="$(target_dir)/$profile/corelane"

work=$(mktemp -d "${TMPDIR:-/var/tmp}/corelane-run.XXXXXX")
host=''
clean_up() {
    if [ -n "$host" ] && kill -0 "$host" 2>/dev/null; then
        kill -TERM "$host" 2>/dev/null || true
        wait "$host" 2>/dev/null || true
    fi
    rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# The events, each line whole: the last one may lack its end.
lines="$work/lines"
sed -e '$a\' "$file" >"$lines"
count=$(wc -l <"$lines")
say "events: $count lines of $file"

port=9090
if (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
    say "port $port is taken, another one is used"
    port=0
fi
say "starting a host on $work/data"
"$corelane" start --data "$work/data" --listen "127.0.0.1:$port" --json >"$work/ready" 2>"$work/host.log" &
host=$!
for _ in $(seq 300); do
    grep -q '"ready"' "$work/ready" && break
    if ! kill -0 "$host" 2>/dev/null; then
        cat "$work/host.log" >&2
        "$corelane" doctor --data "$work" >&2 || true
        die 'the host ended before it was ready'
    fi
    sleep 0.1
done
server=$(grep -o '127\.0\.0\.1:[0-9]*' "$work/ready" | head -n 1)
[ -n "$server" ] || die "the host isn't ready after 30 s: $(tail -n 5 "$work/host.log")"
export CORELANE_SERVER=$server
say "ready at $server"

say 'the events go in, come back, and are compared line by line'
"$corelane" topic create events
"$corelane" produce events --file "$lines"
"$corelane" consume events >"$work/back"
cmp "$lines" "$work/back" || die 'what came back differs'
say "all $count lines came back, in order and unchanged (durability=device: each was on stable storage when it was acknowledged)"

# The lines again and again, whole lines only, up to the size.
repeat() {
    local bytes=$((size_mib << 20)) one times
    one=$(wc -c <"$lines")
    times=$(((bytes + one - 1) / one))
    for _ in $(seq "$times"); do printf '%s\n' "$lines"; done | xargs cat
}
say "measured: $size_mib MiB made from those lines, uncompressed, one partition, acks=all, durability=device"
"$corelane" topic create measured
expected="$work/expected"
repeat | tee >(sha256sum >"$expected") | "$corelane" produce measured --compression none | tee "$work/produced"
began=$(uptime_seconds)
sum=$("$corelane" consume measured | tee >(wc -lc >"$work/consumed") | sha256sum)
took=$(seconds_since "$began")
# What the sums are written by ends a moment after what they were taken of.
until [ -s "$expected" ] && [ -s "$work/consumed" ]; do sleep 0.05; done
[ "$sum" = "$(cat "$expected")" ] || die 'what came back of the measured records differs'
read -r records bytes <"$work/consumed"
awk -v r="$records" -v b="$bytes" -v s="$took" 'BEGIN { printf "%d records read back, equal byte for byte, in %.1f s: %.0f records/s, %.1f MiB/s\n", r, s, r / s, b / s / 1048576 }'
[ "$profile" = release ] || say 'these numbers are of the build with assertions; make figures SET=node measures the release build against this machine'

cat <<TEXT

The host runs at $server. Try, in another terminal:
  export CORELANE_SERVER=$server
  $corelane topic list
  echo 'hello' | $corelane produce events
  $corelane consume events --from end --follow
  $corelane doctor --data $work/data
TEXT
if [ -n "${ONCE:-}" ]; then
    say 'ONCE is set: stopping'
    kill -TERM "$host"
    wait "$host"
    host=''
    exit 0
fi
say 'Ctrl-C stops it'
wait "$host"

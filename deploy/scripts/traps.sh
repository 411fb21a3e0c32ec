#!/usr/bin/env bash
# Writes the last column of docs/TRAPS.md from the tests in the sources: a test named tNN_... (or tNN_tMM_...) covers trap NN.
# A row that says "open: ..." stays open; the tests that are there already follow it. Part of `make fix`.
source "$(dirname "$0")/common.sh"
set -e

tests=$(mktemp)
trap 'rm -f "$tests"' EXIT
grep -rhoE --include='*.rs' --exclude-dir=layering '\bfn (t[0-9]{2}_)+[a-z0-9_]+' protocol runtime cluster storage net shard broker client bench sim/src sim/tests |
    sed 's/^fn //' | sort -u |
    awk '{ name = $1; rest = name; while (match(rest, /^t[0-9][0-9]_/)) { print substr(rest, 2, 2) + 0, name; rest = substr(rest, 5) } }' >"$tests"

awk -v list="$tests" '
BEGIN {
    FS = " \\| "
    while ((getline line < list) > 0) {
        split(line, pair, " ")
        tests[pair[1]] = tests[pair[1]] (tests[pair[1]] == "" ? "" : ", ") "`" pair[2] "`"
    }
}
/^\| T[0-9]+ \| / {
    number = $1; sub(/^\| T/, "", number)
    cell = $NF; sub(/ \|$/, "", cell)
    open = ""
    if (cell ~ /^open: /) { open = cell; sub(/; so far .*/, "", open); if (open ~ /no test yet/) open = "" }
    found = tests[number + 0]
    if (open != "") cell = found == "" ? open : open "; so far " found
    else cell = found == "" ? "open: no test yet" : found
    fault = $2
    for (i = 3; i < NF; i++) fault = fault " | " $i
    print "| T" number " | " fault " | " cell " |"
    next
}
{ print }
' docs/TRAPS.md >docs/TRAPS.md.new
mv docs/TRAPS.md.new docs/TRAPS.md

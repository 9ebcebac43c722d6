#!/bin/sh
# Runs the test programs given as arguments, then the scripts, and adds up their closing lines
# "name: N passed, N failed, N skipped". RUN names the program under test, WITHOUT a script to leave out. Exit 1 if anything failed.
set -u
: "${RUN:=./run}"
case $RUN in /*) ;; *) RUN=$(pwd)/$RUN ;; esac
export RUN
out=$(mktemp) || exit 1
trap 'rm -f "$out"' EXIT

one() { # runs a test, shows what it prints, notes a crash as a failure
    "$@" >"$out.one" 2>&1
    code=$?
    cat "$out.one"
    tail -n 1 "$out.one" >>"$out"
    if [ $code -ne 0 ] && ! tail -n 1 "$out.one" | grep -q ' [1-9][0-9]* failed'; then
        echo "$1: exit $code"
        echo "$1: 0 passed, 1 failed, 0 skipped" >>"$out"
    fi
    rm -f "$out.one"
}

for program; do
    one "$program"
done
for script in rooms cli ops chat download; do
    [ "$script" = "${WITHOUT-}" ] || [ ! -x tests/$script.sh ] || one tests/$script.sh
done
awk '/[0-9]+ passed, [0-9]+ failed/ {
        for (i = 2; i <= NF; i++) { if ($i ~ /^passed/) p += $(i-1); if ($i ~ /^failed/) f += $(i-1); if ($i ~ /^skipped/) s += $(i-1) }
     }
     END { printf "%d passed, %d failed", p, f; if (s) printf ", %d skipped", s; print ""; exit f > 0 || p == 0 }' "$out"

#!/bin/sh
# Runs the test programs given as arguments, then the scripts, and adds up their closing lines
# "name: N passed, N failed, N skipped". RUN names the program under test, WITHOUT the scripts to leave out, EMULATOR what runs
# all these programs where they are another machine's. Exit 1 if anything failed.
set -u
: "${RUN:=./run}"
case $RUN in /*) ;; *) RUN=$(pwd)/$RUN ;; esac
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
if [ "${EMULATOR-}" ]; then
    printf '#!/bin/sh\nexec %s "%s" "$@"\n' "$EMULATOR" "$RUN" >"$work/run"
    chmod +x "$work/run"
    RUN=$work/run
fi
export RUN

one() { # runs a test, shows what it prints, notes a crash as a failure
    "$@" >"$work/said" 2>&1
    code=$?
    cat "$work/said"
    tail -n 1 "$work/said" >>"$work/sums"
    if [ $code -ne 0 ] && ! tail -n 1 "$work/said" | grep -q ' [1-9][0-9]* failed'; then
        echo "$*: exit $code"
        echo "$*: 0 passed, 1 failed, 0 skipped" >>"$work/sums"
    fi
}

for program; do
    one ${EMULATOR-} "$program"
done
for script in layout chapter cli checkpoint_commands chat download; do
    case " ${WITHOUT-} ${EMULATOR:+emulated-$script}" in
    *" $script "*) ;;
    *" emulated-checkpoint_commands" | *" emulated-chat")
        echo "skipped: $script: an emulator does not keep its limits of time"
        echo "$script: 0 passed, 0 failed, 1 skipped" >>"$work/sums"
        ;;
    *) [ ! -x tests/$script.sh ] || one tests/$script.sh ;;
    esac
done
awk '/[0-9]+ passed, [0-9]+ failed/ {
        for (i = 2; i <= NF; i++) { if ($i ~ /^passed/) p += $(i-1); if ($i ~ /^failed/) f += $(i-1); if ($i ~ /^skipped/) s += $(i-1) }
     }
     END { printf "%d passed, %d failed", p, f; if (s) printf ", %d skipped", s; print ""; exit f > 0 || p == 0 }' "$work/sums"

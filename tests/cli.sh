#!/bin/sh
# The program as its users meet it. Each tests/cli/NAME.cmd is a shell script that runs in an empty folder with `run`
# in its PATH. Its standard output, its standard error and its exit code must be those in NAME.out, NAME.err and
# NAME.exit; a missing file stands for nothing, nothing and 0. A case that exits with 77 is skipped.
#
#     RUN=./run tests/cli.sh [NAME..]
#
# Cases may use $DEMO (the demo model), $CASES (their own folder), and $GOLDEN if it is set.
set -u
: "${RUN:=./run}"
case $RUN in /*) ;; *) RUN=$(pwd)/$RUN ;; esac
root=$(cd "$(dirname "$0")/.." && pwd) || exit 1
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
CASES=$root/tests/cli
DEMO=$root/tests/demo
HOME=$work/home
LC_ALL=C
mkdir "$work/bin" "$HOME"
ln -s "$RUN" "$work/bin/run"
PATH=$work/bin:$PATH
case ${GOLDEN:-/} in /*) ;; *) GOLDEN=$(pwd)/$GOLDEN ;; esac
export CASES DEMO HOME LC_ALL PATH RUN
unset COLUMNS HF_HOME HF_HUB_CACHE HUGGINGFACE_HUB_CACHE XDG_CACHE_HOME NO_COLOR 2>/dev/null

passed=0 failed=0 skipped=0

differs() { # differs WHAT EXPECTED GOT: two files; a missing one is empty
    if [ -f "$2" ]; then cmp -s "$2" "$3" && return 1; else [ ! -s "$3" ] && return 1; fi
    echo "$name: wrong $1:"
    if [ -f "$2" ]; then diff "$2" "$3" | head -n 20; else head -n 20 "$3"; fi
    return 0
}

[ $# -gt 0 ] || set -- "$CASES"/*.cmd
for cmd; do
    name=$(basename "$cmd" .cmd)
    cmd=$CASES/$name
    chmod -R u+w "$work/box" 2>/dev/null
    rm -rf "$work/box"
    mkdir "$work/box"
    (cd "$work/box" && exec sh "$cmd.cmd") >"$work/out" 2>"$work/err" </dev/null
    code=$?
    want=0
    [ ! -f "$cmd.exit" ] || read -r want <"$cmd.exit"
    if [ $code -eq 77 ]; then
        echo "$name: skipped: $(tail -n 1 "$work/out")"
        skipped=$((skipped + 1))
        continue
    fi
    sed 's|[^ ]*/download[.]sh|./download.sh|g' "$work/err" >"$work/sed" && mv "$work/sed" "$work/err" # beside $RUN
    bad=0
    [ $code -eq "$want" ] || { echo "$name: exit $code, expected $want"; bad=1; }
    ! differs output "$cmd.out" "$work/out" || bad=1
    ! differs "standard error" "$cmd.err" "$work/err" || bad=1
    if [ $bad -eq 0 ]; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
done
echo "cli: $passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ]

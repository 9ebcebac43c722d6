#!/bin/sh
# Runs the test programs given as arguments, then the scripts, and adds up their closing lines "name: N passed, N
# failed, N skipped". Exit 1 if anything failed.
#
# RUN names the program under test, WITHOUT the scripts to leave out. EMULATOR names the program that runs all of them
# when they are built for another machine.
set -u
: "${RUN:=./run}"
case $RUN in /*) ;; *) RUN=$(pwd)/$RUN ;; esac
# What people set for themselves must not decide what the tests see. Levels of kernels are the tests' own to choose.
unset RUN_ISA RUN_WEIGHTS COLUMNS NO_COLOR HF_ENDPOINT HF_TOKEN HF_TOKEN_PATH HF_HOME HF_HUB_CACHE HF_HUB_OFFLINE \
    HUGGINGFACE_HUB_CACHE HUGGING_FACE_HUB_TOKEN TRANSFORMERS_OFFLINE XDG_CACHE_HOME 2>/dev/null
umask 022
# Nor must nohup, or a job in the background: they leave signals ignored, which a shell cannot take back.
if [ -z "${signals_are_default-}" ]; then
    signals_are_default=1 exec python3 -c 'import os, signal, sys
for number in signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGPIPE, signal.SIGTERM:
    signal.signal(number, signal.SIG_DFL)
os.execv(sys.argv[1], sys.argv[1:])' "$0" "$@"
fi
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
if [ "${EMULATOR-}" ]; then
    printf '#!/bin/sh\nexec %s "%s" "$@"\n' "$EMULATOR" "$RUN" >"$work/run"
    chmod +x "$work/run"
    RUN=$work/run
fi
export RUN

one() { # one COMMAND..: run a test, show what it prints, and count a crash as a failure
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
for script in rooms chapter cli checkpoint_commands growth chat outside download; do
    case " ${WITHOUT-} ${EMULATOR:+emulated-$script}" in
    *" $script "*) ;;
    *" emulated-checkpoint_commands" | *" emulated-growth" | *" emulated-outside" | *" emulated-chat")
        echo "skipped: $script: under an emulator it exceeds its time limits"
        echo "$script: 0 passed, 0 failed, 1 skipped" >>"$work/sums"
        ;;
    *) [ ! -x tests/$script.sh ] || one tests/$script.sh ;;
    esac
done
awk -f tests/sum.awk "$work/sums"

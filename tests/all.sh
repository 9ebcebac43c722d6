#!/bin/sh
# Runs the test programs given as arguments and the scripts, and adds up their closing lines "name: N passed, N failed, N
# skipped". Exit 1 if anything failed.
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
if [ "${1-}" = --one ]; then # --one TEST: run it, show what it prints, and count a crash as a failure
    said=$work/$(basename "$2").said
    case $2 in
    *.sh) "$2" ;;
    *) ${EMULATOR-} "$2" ;;
    esac >"$said" 2>&1
    code=$?
    cat "$said"
    tail -n 1 "$said" >>"$work/sums"
    if [ $code -ne 0 ] && ! tail -n 1 "$said" | grep -q ' [1-9][0-9]* failed'; then
        echo "$2: exit $code"
        echo "$2: 0 passed, 1 failed, 0 skipped" >>"$work/sums"
    fi
    exit 0
fi
work=$(mktemp -d) || exit 1
export work
trap 'rm -rf "$work"' EXIT
if [ "${EMULATOR-}" ]; then
    printf '#!/bin/sh\nexec %s "%s" "$@"\n' "$EMULATOR" "$RUN" >"$work/run"
    chmod +x "$work/run"
    RUN=$work/run
fi
export RUN

# Two at a time, the longest first. growth compares times, so it has the machine for itself.
{
    for script in download cli chat checkpoint_commands outside rooms chapter; do
        case " ${WITHOUT-} ${EMULATOR:+emulated-$script}" in
        *" $script "*) ;;
        *" emulated-checkpoint_commands" | *" emulated-outside" | *" emulated-chat")
            echo "skipped: $script: under an emulator it exceeds its time limits" >&2
            echo "$script: 0 passed, 0 failed, 1 skipped" >>"$work/sums"
            ;;
        *) echo tests/$script.sh ;;
        esac
    done
    [ $# -eq 0 ] || printf '%s\n' "$@"
} | xargs -P 2 -I '{}' "$0" --one '{}'
case " ${WITHOUT-} " in
*" growth "*) ;;
*) "$0" --one tests/growth.sh ;;
esac
awk -f tests/sum.awk "$work/sums"

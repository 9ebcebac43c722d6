#!/bin/sh
# Other ways to build, each compared with ./run by the text that a seed gives: the bare compiler command, clang, musl, a static
# binary, aarch64 under qemu; and what make install puts where. What is missing on this machine is counted as skipped.
set -u
passed=0 failed=0 skipped=0
good() { passed=$((passed + 1)); echo "builds: $* ok"; }
bad() { failed=$((failed + 1)); echo "builds: $* FAILED"; }
skip() { skipped=$((skipped + 1)); echo "builds: $* skipped"; }
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
ln -s "$(pwd)/tests" "$work/tests"
export RUN_ISA=
unset RUN_ISA

story() { # of a program, possibly under an emulator: exact weights, and quantised ones
    "$@" generate "Once upon a time" --seed 5 -n 40 -q -t 2 2>&1 && "$@" generate "从前" --seed 5 -n 40 -q -w q4 2>&1
}
want=$(story ./run) || exit 1

same_story() { # name, program...
    name=$1
    shift
    if [ "$(story "$@")" = "$want" ]; then good "$name"; else bad "$name: another text"; fi
}

compile() { # name, compiler and flags...: all files in one command, as without make
    name=$1
    shift
    "$@" -o "$work/$name" ./*.c commands/*.c -lm -lpthread 2>"$work/log" || { bad "$name: does not build"; cat "$work/log"; return 1; }
    [ ! -s "$work/log" ] || { bad "$name: warnings"; head -20 "$work/log"; return 1; }
}

warnings="-std=c11 -D_GNU_SOURCE -ffp-contract=off -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wstrict-prototypes"
# shellcheck disable=SC2086
{
    compile bare cc && same_story bare "$work/bare"
    compile bare-fast cc -O2 && same_story bare-fast "$work/bare-fast"
    compile static cc -O2 -static && same_story static "$work/static"
    if command -v clang >/dev/null; then
        compile clang clang $warnings -O2 && same_story clang "$work/clang"
    else
        skip clang
    fi
    if command -v musl-gcc >/dev/null; then
        compile musl musl-gcc -std=c11 -O2 -static && same_story musl "$work/musl"
    else
        skip musl
    fi
    if command -v aarch64-linux-gnu-gcc >/dev/null && command -v qemu-aarch64 >/dev/null; then
        compile aarch64 aarch64-linux-gnu-gcc $warnings -O2 -static && same_story aarch64 qemu-aarch64 "$work/aarch64"
    else
        skip aarch64
    fi
}

# install, and run from there without the source beside it
if make -s install DESTDIR="$work/root" PREFIX=/usr && same_story install "$work/root/usr/bin/run"; then
    ln -s "$work/root/usr/bin/run" "$work/link"
    same_story symlink "$work/link"
    make -s uninstall DESTDIR="$work/root" PREFIX=/usr
    left=$(find "$work/root" -type f | wc -l)
    if [ "$left" -eq 0 ]; then good uninstall; else bad "uninstall: $left files stay"; fi
else
    bad install
fi

echo "builds: $passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ]

#!/bin/sh
# Other ways to build. Most are compared with ./run by the text that a seed gives: the bare compiler command, clang,
# musl, a static binary, aarch64 under qemu, 32 bits, a folder with spaces in its name. macOS and FreeBSD are
# only compiled and linked; a big-endian machine must be refused. Also what make install puts where, and whether new
# flags make everything new.
#
# What is missing on this machine is counted as skipped. ZIG names Zig's compiler, which brings other systems' headers
# and libraries (python3 -m pip install ziglang).
set -u
good() { echo "builds: $* ok"; }
bad() { echo "builds: $* FAILED"; }
skip() { echo "builds: $* skipped"; }
: "${MAKE:=make}"
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
ln -s "$(pwd)/tests" "$work/tests"
export RUN_ISA=
unset RUN_ISA
folders="base kernels tokenizer generate checkpoint commands"

story() { # story PROGRAM..: the text of exact and of quantized weights; PROGRAM may be an emulator and its argument
    "$@" generate "Once upon a time" --seed 5 -n 40 -q -t 2 2>&1 && "$@" generate "从前" --seed 5 -n 40 -q -w q4 2>&1
}
want=$(story ./run) || exit 1

same_story() { # same_story NAME PROGRAM..
    name=$1
    shift
    if [ "$(story "$@")" = "$want" ]; then good "$name"; else bad "$name: another text"; fi
}

compile() { # compile NAME COMPILER FLAG..: all files in one command, as without make
    name=$1
    shift
    for folder in . $folders; do set -- "$@" "$folder"/*.c; done
    if ! "$@" -I. -o "$work/$name" -lm -lpthread 2>"$work/$name.log"; then
        bad "$name: does not build"
        head -20 "$work/$name.log"
        return 1
    fi
    [ ! -s "$work/$name.log" ] || { bad "$name: warnings"; head -20 "$work/$name.log"; return 1; }
}

warnings="-std=c11 -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wstrict-prototypes"

# shellcheck disable=SC2086
this_machine() {
    compile bare cc && same_story bare "$work/bare"
    compile bare-fast cc -O2 && same_story bare-fast "$work/bare-fast"
    compile static cc -O1 -static && same_story static "$work/static"
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
}

# shellcheck disable=SC2086
other_machines() {
    if command -v aarch64-linux-gnu-gcc >/dev/null && command -v qemu-aarch64 >/dev/null; then
        compile aarch64 aarch64-linux-gnu-gcc $warnings -O2 -static && same_story aarch64 qemu-aarch64 "$work/aarch64"
    else
        skip aarch64
    fi
    # Debian's 32-bit headers leave some to the other architecture's folder.
    m32="clang -m32 -msse2 -mfpmath=sse -idirafter /usr/include/$(cc -print-multiarch 2>/dev/null)"
    echo '#include <errno.h>
        int main(void) { return 0; }' >"$work/try.c"
    if $m32 -o "$work/try" "$work/try.c" 2>/dev/null && "$work/try"; then
        compile 32-bit $m32 $warnings -O2 && same_story 32-bit "$work/32-bit"
    else
        skip 32-bit
    fi
    : "${ZIG:=$(command -v zig || echo "python3 -m ziglang")}"
    if $ZIG version >/dev/null 2>&1; then
        for target in aarch64-macos x86_64-freebsd; do
            compile $target $ZIG cc -target $target $warnings -O1 && good $target
        done
        if $ZIG cc -target s390x-linux-musl -std=c11 -I. -c -o "$work/s390x.o" safetensors.c 2>"$work/log"; then
            bad "s390x: a big-endian machine is not refused"
        elif grep -c error: "$work/log" | grep -qx 1 && grep -q "error: .*big-endian" "$work/log"; then
            good "s390x is refused:"
        else
            bad "s390x: another error"
            cat "$work/log"
        fi
    else
        for target in macOS FreeBSD big-endian; do skip "$target: no ziglang;"; done
    fi
}

folder_with_spaces() {
    spaced="$work/a folder with spaces"
    mkdir "$spaced"
    cp -R Makefile README.md download.sh ./*.[ch] $folders "$spaced"
    ln -s "$work/tests" "$spaced/tests"
    if $MAKE -s -C "$spaced" CFLAGS=-O1 >"$work/spaces.log" 2>&1; then
        same_story "a folder with spaces" "$spaced/run"
    else
        bad "a folder with spaces"
        tail -20 "$work/spaces.log"
    fi
}

# Other flags make everything new, the same flags nothing.
changed_flags() {
    built() { # built FLAGS: how many files make compiles
        $MAKE -s BUILD="$work/flags" CFLAGS="$1" "$work/flags/base/base.o" "$work/flags/kernels/attention.o" |
            grep -c '^  cc '
    }
    if [ "$(built -O0) $(built -O0) $(built -O1)" = "2 0 2" ]; then good "changed flags"; else bad "changed flags"; fi
}

# Installed, and run from there without the source beside it.
installed() {
    if $MAKE -s install DESTDIR="$work/root" PREFIX=/usr >/dev/null && same_story install "$work/root/usr/bin/run"; then
        ln -s "$work/root/usr/bin/run" "$work/link"
        same_story symlink "$work/link"
        if [ -x "$work/root/usr/bin/run-download" ]; then good run-download; else bad "run-download is not installed"; fi
        case $(cd "$work" && "$work/root/usr/bin/run" info nothing.safetensors 2>&1) in
        *"; run-download fetches a model") good advice ;;
        *) bad "an installed program does not advise run-download" ;;
        esac
        $MAKE -s uninstall DESTDIR="$work/root" PREFIX=/usr
        left=$(find "$work/root" -type f | wc -l)
        if [ "$left" -eq 0 ]; then good uninstall; else bad "uninstall: $left files stay"; fi
    else
        bad install
    fi
}

# Two at a time; each set keeps what it prints together.
(this_machine; changed_flags) >"$work/one" 2>&1 &
(other_machines; folder_with_spaces; installed) >"$work/two" 2>&1
wait
cat "$work/one" "$work/two" | tee "$work/all"
count() { grep -c "^builds: .* $1\$" "$work/all"; }
failed=$(count FAILED)
echo "builds: $(count ok) passed, $failed failed, $(count skipped) skipped"
[ "$failed" -eq 0 ]

#!/bin/sh
# The rooms: which file may include which (arrows point one way), who may print or exit, and that every name that README's
# "Reading along" points at stands where it says.
set -u
passed=0 failed=0
good() { passed=$((passed + 1)); }
bad() { failed=$((failed + 1)); echo "rooms: $*"; }

# room: rooms it may include, itself aside
allowed() {
    case $1 in
    json | unicode | threads) echo "" ;;
    matmul) echo "threads" ;;
    net) echo "matmul threads json" ;;
    safetensors) echo "json threads net matmul" ;;
    checkpoint) echo "safetensors json threads net matmul" ;;
    tokenizer) echo "json unicode" ;;
    sample) echo "net tokenizer matmul json unicode" ;;
    esac
}

# A room's files: its own pair and the files that stand beside it.
files_of() {
    case $1 in
    matmul) echo matmul.c matmul.h matmul_*.c matmul_*.h attention.c attention_kernels.h ;;
    tokenizer) echo tokenizer*.c tokenizer*.h ;;
    safetensors) echo safetensors*.c safetensors*.h ;;
    checkpoint) echo checkpoint*.c checkpoint*.h ;;
    *) echo "$1.c" "$1.h" ;;
    esac
}

room_of() { # of an included header
    for r in json unicode threads matmul net safetensors checkpoint tokenizer sample; do
        for f in $(files_of $r); do
            [ "$f" != "$1" ] || echo $r
        done
    done
}

for room in json unicode threads matmul net safetensors checkpoint tokenizer sample; do
    for file in $(files_of $room); do
        [ -f "$file" ] || continue
        for header in $(sed -n 's/^#include "\(.*\)"/\1/p' "$file"); do
            to=$(room_of "$header")
            case " $room $(allowed $room) " in
            *" $to "*) [ -n "$to" ] && good || bad "$file includes $header, which is no room's" ;;
            *) bad "$file includes $header, but $room may not use $to" ;;
            esac
        done
        # only run.c and commands/ print or end the program
        if grep -nE '(^|[^_a-z])(printf|puts|perror|exit|_exit|abort)\(|stderr' "$file" | grep -vE '^[0-9]+: *\*'; then
            bad "$file prints or exits"
        else
            good
        fi
    done
done

# every .c at the top level belongs to a room
for file in *.c; do
    [ "$file" = run.c ] || [ -n "$(room_of "$file")" ] && good || bad "$file belongs to no room"
done

# "Reading along": rows of the form | ... | `name` | `file` |
names=$(sed -n '/^## Reading along/,/^## /s/^|.*| `\([^`]*\)` | `\([^`]*\)` |.*/\2 \1/p' README.md)
count=0
while read -r file name; do
    [ -n "$name" ] || continue
    count=$((count + 1))
    { [ -f "$file" ] && grep -qF -- "$name" "$file"; } && good || bad "README points at $name in $file, where it is not"
done <<END
$names
END
[ $count -ge 15 ] && good || bad "README's table \"Reading along\" has $count rows"

echo "rooms: $passed passed, $failed failed, 0 skipped"
[ $failed -eq 0 ]

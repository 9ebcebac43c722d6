# all help goes to standard output and fits a screen of 80 columns; "run help X" and "run X --help" are the same
run --help >main
grep -q "^  generate  *\[PROMPT\]  *continue a text" main || echo "generate is missing" >&2
awk 'length($0) > 80 { print "run: " $0 }' main >&2
run help | cmp - /dev/stdin <<END >&2
$(run --help)
END
run --help | sed -n 's/^  \([a-z]*\) .*/\1/p' | grep -v '^run$' | while read -r c; do
    run "$c" --help >a || echo "$c --help: exit $?" >&2
    run help "$c" >b || echo "help $c: exit $?" >&2
    cmp a b
    awk -v c="$c" 'length($0) > 80 { print c ": " $0 }' a >&2
    grep -q '^usage: run '"$c" a || echo "$c: no usage" >&2
    [ "$(wc -l <a)" -le 44 ] || echo "$c: $(wc -l <a) lines" >&2
    grep -q '^examples:' a || echo "$c: no examples" >&2
done
# it lists what the command uses: tokenize reads no weights
run tokenize --help | grep -e --weights -e --ctx -e --threads >&2
run tokenize -w q8 x 2>/dev/null
[ $? -eq 2 ] || echo "tokenize takes -w" >&2

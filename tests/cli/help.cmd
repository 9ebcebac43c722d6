# all help goes to standard output and fits 80 columns; "run help X" and "run X --help" are the same
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
    grep -q '^examples:' a || echo "$c: no examples" >&2
done

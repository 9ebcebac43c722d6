# notices and statistics are on standard error, and not with -q
numbers() { sed "s|$DEMO|DEMO|; s|/[^ ]*/tests/demo|DEMO|; s|/[^ ]*/download.sh|./download.sh|; s/[0-9][0-9.]* tok/N tok/g; s/([0-9][^)]*)/(N)/; s/load [0-9.]*/load N/; s/, [a-z]*[0-9a-z]*; seed/, KERNELS; seed/; s/, [a-z0-9]*\$/, KERNELS/"; }
run generate "Once" -n 5 --seed 3 -t 1 2>&1 >/dev/null | numbers
run generate "Once" -n 1 --greedy -w bf16 -t 2 -m "$DEMO" 2>&1 >/dev/null | numbers
run generate "Once" -n 5 --seed 3 -q 2>&1 >/dev/null

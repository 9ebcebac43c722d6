printf 'One day, Tom found a big red ball in the park.' >t
run perplexity t -q
run perplexity <t -q --ctx 5
run perplexity -f t -q --tokens | head -n 4
run perplexity t -q --json | sed 's/\([0-9]\.[0-9][0-9][0-9]\)[0-9]*/\1/g'
run perplexity t -q --json --tokens | sed 's/\([0-9]\.[0-9][0-9][0-9]\)[0-9]*/\1/g'
run perplexity --ids 5 -q
run perplexity --ids 5,6 --ctx 1 -q

# options after arguments, --x V, --x=V, -xV, -x V, several flags in one, -- ends options
a=$(run generate --ids 5,6,7 -n 4 --greedy -q)
for form in "-n4" "-n 4" "-n=4" "--max-tokens 4" "--max-tokens=4" "-qn4" "-n 9 -n 4"; do
    b=$(run generate --greedy $form --ids=5,6,7 -q)
    [ "$a" = "$b" ] || echo "$form: $b, not $a"
done
# of two values the last one counts, with a notice; lists and flags may be repeated
run generate --greedy -n 9 -n 4 --ids 5,6,7 --stop a --stop b --greedy -m "$DEMO" 2>&1 >/dev/null | grep more
run info -q -- -missing.safetensors

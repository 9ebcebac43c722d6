# options after arguments, --x V, --x=V, -xV, -x V, several flags in one, -- ends options
a=$(run generate --ids 5,6,7 -n 4 --greedy -q)
for form in "-n4" "-n 4" "-n=4" "--max-tokens 4" "--max-tokens=4" "-qn4" "-n 9 -n 4"; do
    b=$(run generate --greedy $form --ids=5,6,7 -q)
    [ "$a" = "$b" ] || echo "$form: $b, not $a"
done
run info -q -- -missing.safetensors

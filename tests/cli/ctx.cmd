run generate --ids 1,2,3,4,5 --ctx 4 -q
echo "exit $?"
run logits --ids 1,9999 -q
echo "exit $?"
run generate --ids 1,2,3,4 --ctx 4 --ignore-eos --json -q | sed 's/.*\("finish_reason":"[a-z]*"\).*/\1/'
run generate --ids 1,2,3,4 --ctx 6 --ignore-eos --json -q | sed 's/.*"ids":\(\[[^]]*\]\),.*\("finish_reason":"[a-z]*"\).*/\2/'

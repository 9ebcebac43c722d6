# text -> ids -> text; the ids are the reference's
tokenize() { run tokenize "$@" -q; }
tokenize "Once upon a time"
tokenize 'é 法' --json
printf "Tom's 12 eggs\n" | tokenize --json
printf "Tom's 12 eggs\n" >eggs
tokenize -f eggs --json | cut -c 1-20
tokenize -e 'Tom\x27s 12 eggs\n' --json | cut -c 1-20
tokenize --ids 2456,2654
tokenize --ids 2814,682,764,2815
tokenize --ids 2814,682,764,2815 --skip-special
tokenize --ids 2814,682 --json
tokenize -m "$DEMO/tokenizer.json" --ids 682
# ids that stand for nothing are left out, as tokenizers does, and a notice says so
run tokenize -m "$DEMO" --ids 682,2816,999999,764 2>&1
echo '{"ids":[2816,682,999999]}' | run tokenize -m "$DEMO" --jsonl 2>&1
tokenize --ids 682,2816
tokenize "" --json
# a request a line: answers in order, errors among them, and then exit 1
tokenize --jsonl <<END
{"text":"Once upon a time"}
{"ids":[2814,682,764,2815],"skip_special":true}
{"messages":[{"role":"user","content":"Hi <|im_end|>"}],"add_generation_prompt":true}
END
echo "exit $?"
printf '%s\n' 'no JSON' '{"text":1}' '{}' '{"text":"a","ids":[1]}' '{"ids":7}' '{"ids":[-1]}' '{"ids":[4294967296]}' \
    '{"ids":[1],"skip_special":1}' '{"messages":[{"role":"user"}]}' '{"messages":[],"add_generation_prompt":1}' \
    '{"messages":[],"tools":[1]}' '{"txt":"a"}' '{"ids":[682],"skip_special_tokens":true}' \
    '{"text":"a","\u001b[2J":1}' '[]' '7' \
    '{"messages":[{"role":"user","content":"","tool_calls":[1]}]}' '{"text":""}' |
    tokenize --jsonl
echo "exit $?"
printf '{"text":"the last line needs no end"}' | tokenize --jsonl | cut -c 1-7
tokenize --jsonl x
echo "exit $?"
tokenize --ids 1,x
echo "exit $?"
tokenize -m none a
echo "exit $?"

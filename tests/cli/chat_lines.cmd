# a question and an answer a line, as JSON, so that answers of several lines can be told apart; and stop texts
chat() { run chat -m "$DEMO" --greedy -q "$@"; }
printf '%s\n' '{"content":"Hi"}' '{"content":7}' 'x' '{"text":"Hi"}' '{}' '[]' '' '{"content":"/reset"}' \
    '{"content":"What is the capital of France?"}' | chat --jsonl | sed 's/"seed":[0-9]*/"seed":N/'
echo '{"content":"Hi"}' | chat --jsonl --seed 5 -n 2
printf '{"content":"Hi"}' | chat --jsonl --stop " can" | cut -d , -f 1,2
printf 'Hi\nWhat is the capital of France?\n/tokens\n' | chat --stop " help" --stop nothing 2>&1
# a stop text across two tokens ends the answer before it and shows none of it
echo Hi | chat --stop "lo! H"
echo Hi | chat --stop "lo! h"
# a failed question is an error on its line, and the next one is answered
printf '{"content":"%s"}\n{"content":"Hi"}\n' "$(seq 1 600 | tr '\n' ' ')" | chat --jsonl | sed 's/has [0-9]* tokens/has N tokens/; s/,"stats".*//'

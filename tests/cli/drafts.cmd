# drafts change no text: greedy and sampled, in every mode, with stops and limits
try() {
    run generate -m "$DEMO" -q "$@" >plain
    for draft in lookup q8 q4 "$DEMO"; do
        run generate -m "$DEMO" -q "$@" --draft "$draft" | cmp - plain
    done
}
modes="f32 bf16 q8 q4"
[ -z "${EMULATOR-}" ] || modes="bf16 q4" # the others take too long
for w in $modes; do
    try -w $w --greedy -n 120 "Once upon a time"
    try -w $w --seed 5 --temperature 1 --repeat-penalty 1.1 -n 80 "The cat"
done
try --greedy --ctx 40 --ignore-eos "Once upon a time"
try --greedy -n 1 "Once upon a time"
try --greedy -n 0 "Once upon a time"
try --greedy --stop garden --stop "." "The dog ran"
try --chat --greedy "What is the capital of France?"
cat plain
run generate -m "$DEMO" -q --draft q4 --greedy -n 100 --json "Once" | grep -c '"proposed":[1-9]'
run generate -m "$DEMO" -q --draft nothing/here x 2>&1 | sed "s/ (.*//"
mkdir other
cp "$DEMO"/*.json "$DEMO/model.safetensors" other
chmod u+w other/*
sed 's/"x": 87/"x": 88/; s/"y": 88/"y": 87/' "$DEMO/tokenizer.json" >other/tokenizer.json
run generate -m "$DEMO" -q --draft other x 2>&1 | sed 's/[^ ]* has/X has/'

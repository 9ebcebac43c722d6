# a full device: one sentence, exit 1
[ -c /dev/full ] || { echo "no /dev/full"; exit 77; }
ln -s "$DEMO" demo
for args in "info demo" "generate --ids 1,2 -n 3 -q" "generate --ids 1,2 -n 3 -q --json" "logits --ids 1 -q" "explain --ids 1 -q" \
        "perplexity --ids 1,2 -q" "--help" "--version" "generate --help"; do
    run $args >/dev/full
    echo "exit $?"
done
run logits --ids 1,2 --all --out /dev/full -q

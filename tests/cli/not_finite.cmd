# NaN in the weights is told, never sampled
cp "$DEMO"/*.json "$DEMO/model.safetensors" .
chmod u+w *
printf '\300\177' | dd of=model.safetensors bs=1 seek=2303160 conv=notrunc 2>/dev/null
run generate -m . "Once upon" -q
echo "exit $?"
run generate -m . "Once upon" -q --json --greedy
echo "exit $?"
cp "$DEMO/model.safetensors" up.safetensors
chmod u+w up.safetensors
printf '\300\177' | dd of=up.safetensors bs=1 seek=1712044 conv=notrunc 2>/dev/null
run generate -m up.safetensors "Once upon" -q
echo "exit $?"
run logits -m . "Once upon" -q
echo "exit $?"
run logits -m . "Once upon" -q --all --out all.f32
echo "exit $?"
echo "Once upon" | run perplexity -m . -q
echo "exit $?"
run explain -m . "Once upon" -q | tail -n 3

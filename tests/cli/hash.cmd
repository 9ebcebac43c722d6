# SHA-256 in sha256sum's format
cp "$DEMO/model.safetensors" .
run hash model.safetensors >list
grep -c . list
grep -e '^[0-9a-f]' -e norm.weight -e '  model$' list | tail -n 3
run hash --check list -q
printf x | dd of=model.safetensors bs=1 seek=2000001 conv=notrunc 2>/dev/null
run hash --check list -q
echo $?

# what is no model, but may be taken for one, is named, with what to do, by every command that opens it
opens() {
    run generate -m "$1" --ids 1 -n 1 -q
    run info "$1" -q | grep '^config ' | sed 's|[^ ]*/download[.]sh|./download.sh|'
}
mkdir adapter trainer trainer/checkpoint-900 trainer/checkpoint-last bad
printf '\210\0\0\0\0\0\0\0%-136s\0\0\0\0' \
    '{"base_model.model.model.layers.0.mlp.up_proj.lora_A.weight":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}' >lora
cp lora adapter/adapter_model.safetensors
opens adapter
echo '{"base_model_name_or_path":"Qwen/Qwen2.5-0.5B"}' >adapter/adapter_config.json
opens adapter
run diff adapter adapter
run generate -m adapter/adapter_model.safetensors --ids 1 -q
run generate -m lora --ids 1 -q
cp "$DEMO/config.json" .
run generate -m lora --ids 1 -q
touch trainer/training_args.bin
for n in 9 100; do mkdir trainer/checkpoint-$n; ln -s "$DEMO/model.safetensors" trainer/checkpoint-$n; done
opens trainer
ln -s "$DEMO/model.safetensors" bad
config() { { printf '{%s,' "$1"; tail -n +2 "$DEMO/config.json"; } >bad/config.json; opens bad; }
config '"quantization":{"group_size":64,"bits":4},"quantization_config":{"group_size":64,"bits":4}'
config '"quantization_config":{"quant_method":"bitsandbytes","load_in_4bit":true}'
config '"x":NaN'
printf 'version https://git-lfs.github.com/spec/v1\noid sha256:18e1\nsize 659\n' >bad/config.json
opens bad
echo '<!doctype html>' >bad/config.json
opens bad
cp config.json bad
echo '<!doctype html>' >bad/generation_config.json
opens bad
opens https://huggingface.co/Qwen/Qwen2.5-0.5B
opens huggingface.co/Qwen/Qwen2.5-0.5B/tree/main
run tokenize x -m 'https://www.modelscope.cn/models/Qwen/Qwen2.5-0.5B?x'
run info https://example.com/model.safetensors

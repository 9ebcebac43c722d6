ln -s "$DEMO" demo
run info demo/model.safetensors --find 'model.layers.?.self_attn.k_proj.*'
run info demo/model.safetensors --find 'no.such.*'

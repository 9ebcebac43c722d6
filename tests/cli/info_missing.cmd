run info no-such-folder
run info model.safetensors

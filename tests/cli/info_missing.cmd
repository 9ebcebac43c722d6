run info model.safetensors

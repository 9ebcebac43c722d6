ln -s "$DEMO" demo
run info demo/model.safetensors

ln -s "$DEMO" demo
run info demo/model.safetensors --json --find '*norm.weight' | run json
run info demo --json --find 'model.norm*' | sed 's/,"memory_available":[0-9null]*//' | run json

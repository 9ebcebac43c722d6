# names that transformers takes for a model's, with the same text; and those that neither knows
mkdir m
cp "$DEMO"/*.json m
chmod u+w m/*
cat >rename.py <<'P'
import json, re, struct, sys
b = open(sys.argv[1], "rb").read()
n = struct.unpack("<Q", b[:8])[0]
h = {k if k == "__metadata__" else re.sub(sys.argv[2], sys.argv[3], k): v for k, v in json.loads(b[8:8 + n]).items()}
t = json.dumps(h).encode()
t += b" " * (-len(t) % 8)
open("m/model.safetensors", "wb").write(struct.pack("<Q", len(t)) + t + b[8 + n:])
P
command -v python3 >/dev/null || exit 77
named() { python3 rename.py "$DEMO/model.safetensors" "$1" "$2"; run generate -m m -q "Once upon a time" -n 8 --greedy -w ${3-f32}; }
named '$x' ''
named '$x' '' q8
named '^model\.' '' # a base model
named '^model\.' '' bf16
run explain -m m -q "Once" | grep -c ' \[128\] '
run explain -m "$DEMO" -q "Once" | grep -c ' \[128\] '
sed -i.bak 's/Qwen2ForCausalLM/Qwen2Model/' m/config.json
named '^model\.' '' q8
named '^model\.norm' norm
named '^' model.
named '.*embed_tokens' lm_head # tied: the head is the embedding
named '.*embed_tokens' lm_head bf16
named '.*embed_tokens' model.lm_head
sed -i.bak 's/"tie_word_embeddings": true/"tie_word_embeddings": false/' m/config.json
named '.*embed_tokens' lm_head
mv m/config.json.bak m/config.json
named '^' module.
named '^' _orig_mod.
named '^' base_model.model.
named '^model' wrapped._orig_mod
run info m | grep ^weights
run info m --json | grep -o '"config_problem":"[^;]*'
named '$' .lora_A.weight

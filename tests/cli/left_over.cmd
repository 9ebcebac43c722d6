# tensors that the model does not use, and limits of generation_config.json
mkdir m
cp "$DEMO"/*.json m
chmod u+w m/*
cat >add.py <<'P'
import json, struct, sys
source, to, extra = sys.argv[1], sys.argv[2], sys.argv[3:]
b = open(source, "rb").read()
n = struct.unpack("<Q", b[:8])[0]
h, data = json.loads(b[8:8 + n]), b[8 + n:]
for name in extra:
    if name == "lm_head.weight":
        e = h["model.embed_tokens.weight"]
        part = bytearray(data[e["data_offsets"][0]:e["data_offsets"][1]])
        part[70] ^= 64
        h[name] = {**e, "data_offsets": [len(data), len(data) + len(part)]}
    else:
        part = b"\1\2\3\4"
        h[name] = {"dtype": "F32", "shape": [1], "data_offsets": [len(data), len(data) + 4]}
    data += bytes(part)
t = json.dumps(h).encode()
open(to, "wb").write(struct.pack("<Q", len(t)) + t + data)
P
command -v python3 >/dev/null || exit 77
add() { python3 add.py "$DEMO/model.safetensors" m/model.safetensors "$@"; run generate -m m -q --ids 16,11 -n 1 --greedy --no-echo; }
add model.layers.0.self_attn.rotary_emb.inv_freq
add model.layers.0.self_attn.o_proj.bias
add model.layers.0.self_attn.q_proj.lora_A.weight model.layers.9.mlp.up_proj.weight model.layers.0.self_attn.q_norm.weight score.weight
add lm_head.weight
cp "$DEMO/model.safetensors" m
limits() { echo "$1" >m/generation_config.json; shift; run generate -m m -q --ids 16,11 --ignore-eos --json "$@" | sed 's/,"text.*reason":/ /; s/,"stats.*//'; }
limits '{"max_new_tokens":2}'
limits '{"max_new_tokens":2}' -n 3
limits '{"max_length":5}'
limits '{"max_length":5,"max_new_tokens":1}'
limits '{"max_length":2}'
limits '{"max_length":2}' -n 1
limits '{"max_new_tokens":0}'
limits '{"max_time":0.000001}' | sed 's/"ids":\[[0-9]*\]/"ids":NONE_OR_ONE/'
# in chat a question that leaves no room is told, and the chat goes on
echo '{"max_length":30}' >m/generation_config.json
printf 'What is the capital of France?\n/reset\nHi\n' | run chat -m m -q --greedy --system ""
echo $?
echo '{"max_length":5}' >m/generation_config.json
printf 'What is the capital of France?\nHi\n' | run chat -m m -q --greedy --system ""
echo $?
printf 'What is the capital of France?\n' | run chat -m m -q --greedy -n 3

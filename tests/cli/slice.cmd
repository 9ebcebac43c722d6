# the numbers of a tensor, by NumPy's rules
ln -s "$DEMO" demo
run info demo --tensor model.layers.0.self_attn.q_proj.weight --slice 0:2,:3
run info demo --tensor model.layers.0.self_attn.q_proj.weight --slice=-1,::-40 --json | sed 's/"file":"[^"]*"/"file":".."/'
run info demo --tensor model.norm.weight --slice :7
run info demo --tensor 'model.norm.*' --slice 5:5
run info demo --tensor model.embed_tokens.weight | tail -n 4
run info demo --tensor model.norm.weight --slice 0:3 --npy x.npy
head -c 6 x.npy | tail -c 5
echo
tail -c 12 x.npy | od -An -tx1
run info demo --tensor model.norm.weight --slice 0, | tail -n 1
run info demo --tensor model.norm.weight --slice ,
run info demo --tensor model.norm.weight --slice 128
run info demo --tensor nothing
run info demo --tensor model.nrom.weight
run info demo --slice 0:2
echo $?

# statistics of one tensor and of all that match
ln -s "$DEMO" demo
run info demo --tensor model.norm.weight --stats
run info demo --find 'model.layers.0.self_attn.?_proj.*' --stats
run info demo --find model.norm.weight --stats --json
run info demo --tensor model.norm.weight --slice 0:2 --stats --json | sed 's/.*"stats"/"stats"/'

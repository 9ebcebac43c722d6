# shards that disagree on metadata: said, and the first one's counts; what only one of them has is kept
shard() { # FILE VALUE NAME
    header='{"__metadata__":{"format":"pt","'$2'},"'$3'":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}'
    printf "\\$(printf %o ${#header})\\0\\0\\0\\0\\0\\0\\0%sx" "$header" >m/$1
}
mkdir m
shard a.safetensors 'v":"1"' x
shard b.safetensors 'v":"2","w":"3"' y
echo '{"metadata":{"total_size":2},"weight_map":{"x":"a.safetensors","y":"b.safetensors"}}' >m/model.safetensors.index.json
run merge m whole.safetensors
run json --header whole.safetensors --canonical | cut -d, -f1-3
shard b.safetensors 'v":"1"' y
run merge m again.safetensors

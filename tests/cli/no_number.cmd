# complex numbers of which a part is none, as JSON; tensors of zeros, which have no direction
header='{"c":{"dtype":"C64","shape":[2],"data_offsets":[0,16]}}'
printf "\\$(printf %o ${#header})\\0\\0\\0\\0\\0\\0\\0%s" "$header" >c.safetensors
printf '\0\0\300\177\0\0\200\077\0\0\200\377\0\0\0\0' >>c.safetensors
run info c.safetensors --tensor c --json -q | sed 's/.*"values"/"values"/'
cp "$DEMO/model.safetensors" m.safetensors
run edit m.safetensors --tensor model.norm.weight --set 0 -q >/dev/null
run diff "$DEMO/model.safetensors" m.safetensors | grep -o 'relative.*'
run diff m.safetensors "$DEMO/model.safetensors" | grep -o 'relative.*'
run diff "$DEMO/model.safetensors" m.safetensors --json | grep -o 'cosine":null' | wc -l
# numbers that lie farther apart than the largest double
header='{"d":{"dtype":"F64","shape":[2],"data_offsets":[0,16]}}'
printf "\\$(printf %o ${#header})\\0\\0\\0\\0\\0\\0\\0%s" "$header" >d.safetensors
printf '\377\377\377\377\377\377\357\377\377\377\377\377\377\377\357\177' >>d.safetensors
run info d.safetensors --tensor d --stats -q | grep -c '# 1$'

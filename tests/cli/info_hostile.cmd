# names and metadata can't drive the terminal; laxities are named
file() { # header, data bytes
    n=${#1}
    printf "$(printf '\\%03o' $((n % 256)) $((n / 256)))"'\0\0\0\0\0\0'
    printf %s "$1"
    head -c "$2" /dev/zero
}
file '{"__metadata__":{"a\u001b[2J":"\u0007\u202ex"},"w\u001b]0;owned\u0007\n":{"dtype":"U8","shape":[3],"data_offsets":[0,3],"extra":1}}' 3 >a.safetensors
run info a.safetensors
run info a.safetensors --json 2>/dev/null
file '  {"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}' 4 >b.safetensors
run info b.safetensors --find a

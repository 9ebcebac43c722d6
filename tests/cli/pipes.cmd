# no command waits for a pipe that nobody writes to, or reads a device without end; pipes with a writer are read
[ -z "${EMULATOR-}" ] || { echo "nothing in it depends on the machine"; exit 77; }
quick() { timeout 20 run "$@" </dev/null >/dev/null 2>&1; [ $? -lt 124 ] || echo "hangs: $name: $*"; }
for name in config.json tokenizer.json tokenizer_config.json generation_config.json added_tokens.json \
    special_tokens_map.json chat_template.jinja vocab.json merges.txt model.safetensors model.safetensors.index.json; do
    for kind in fifo zero; do
        rm -rf m
        mkdir m
        cp "$DEMO"/*.json "$DEMO/model.safetensors" m
        chmod u+w m/*
        rm -f m/$name
        case $name in vocab.json | merges.txt) rm m/tokenizer.json ;; esac
        case $kind in fifo) mkfifo m/$name ;; zero) ln -s /dev/zero m/$name ;; esac
        quick info m
        quick chat -m m
        quick split m out --by-layer
        rm -rf out
    done
done
mkfifo fifo
run generate -f fifo -q
run perplexity fifo -q
run json fifo
run hash --check fifo
run info fifo
run diff fifo fifo
run edit fifo --mask fifo
printf '/load fifo\n/load /dev/zero\n' | run chat -q
for c in "json /dev/zero" "tokenize -q -f /dev/zero" "hash --check /dev/zero"; do run $c; done
(printf '{"a" : 1}' >fifo &)
run json fifo --canonical

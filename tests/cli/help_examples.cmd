# every example in every --help does what it says, in a folder with the demo model and the files that it names
[ -z "${EMULATOR-}" ] || { echo "under an emulator it takes half a minute"; exit 77; }
mkdir plain
cp "$DEMO"/*.json "$DEMO/model.safetensors" plain
for f in base tuned; do
    cp plain/model.safetensors plain/$f.safetensors
    mkdir plain/$f-model
    cp "$DEMO"/*.json "$DEMO/model.safetensors" plain/$f-model
done
run edit plain/tuned.safetensors --tensor model.norm.weight --scale 2 -q >/dev/null
run split plain/model.safetensors plain/shards --by-layer -q >/dev/null
for f in book prompt questions; do echo "Once upon a time" >plain/$f.txt; done

try() { # try COMMAND EXAMPLE: in the current folder
    sh -c "$2" <questions.txt >out 2>err
    code=$?
    case $2 in # differences are no failure
        "run diff base.s"*) code=$((code - 1)) ;;
    esac
    [ $code -eq 0 ] || echo "$1: $2: exit $code, $(cat err)" >&2
}
examples() { sed -n '/^examples:/,/^$/s/^  //p'; }

run --help | sed -n 's/^  \([a-z]*\) .*/\1/p' | grep -v '^run$' >commands
for c in $(cat commands); do
    cp -R plain "$c"
    cd "$c" || exit 1
    run "$c" --help | examples >examples
    [ -s examples ] || echo "$c: no examples" >&2
    case $c in split) rm -r shards ;; esac
    while read -r line; do
        case $line in sha256sum*) command -v sha256sum >/dev/null || continue ;; esac
        try "$c" "$line"
    done <examples
    cd ..
done

# those of run --help, in a folder without a model
mkdir empty
cd empty || exit 1
echo "Hello" >questions.txt
run --help | examples >examples
[ "$(wc -l <examples)" -ge 3 ] || echo "run --help: too few examples" >&2
while read -r line; do try run "$line"; done <examples

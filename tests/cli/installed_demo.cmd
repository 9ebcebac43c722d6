# the demo model of an installed program is named by its own path, without bin/..
[ -z "${EMULATOR-}" ] || { echo "what runs is the emulator"; exit 77; }
mkdir -p usr/bin usr/share/run/demo
cp "$RUN" usr/bin/run
cp "$DEMO"/*.json "$DEMO/model.safetensors" usr/share/run/demo
usr/bin/run generate --ids 1 -n 0 2>&1 >/dev/null | sed -n "1s|$(pwd -P)|HERE|p"

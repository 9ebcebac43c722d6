# started without standard streams, nothing that is opened later takes their place
run generate --ids 1,2 -n 3 -q >&-
echo "exit $?"
run generate --ids 1,2 -n 3 -q >out 2>&-
echo "exit $?"
run generate -q <&-
echo "exit $?"
cp "$DEMO/model.safetensors" "$DEMO/config.json" .
chmod u+w *
run generate -m . --ids 1,2 -n 200 >&- 2>&- <&-
cmp model.safetensors "$DEMO/model.safetensors"

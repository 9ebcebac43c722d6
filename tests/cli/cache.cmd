# the hub's cache, with links to blobs and (as on systems without links) with the files themselves: it is read, and never written
for way in links files; do
    model=hub/models--Org--$way
    mkdir -p $model/refs $model/blobs $model/snapshots/abc
    printf abc >$model/refs/main
    cp "$DEMO/config.json" $model/snapshots/abc
    if [ $way = links ]; then
        cp "$DEMO/model.safetensors" $model/blobs/0123
        ln -s ../../blobs/0123 $model/snapshots/abc/model.safetensors
    else
        cp "$DEMO/model.safetensors" $model/snapshots/abc
    fi
    HF_HUB_CACHE=hub run info Org/$way --find model.norm.weight
    HF_HUB_CACHE=hub run edit Org/$way --tensor model.norm.weight --set 1 2>&1 | sed 's|/.*/hub/|hub/|'
    cmp "$DEMO/model.safetensors" $model/snapshots/abc/model.safetensors
done

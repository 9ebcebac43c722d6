# numbers near the ends of their types, slices beyond 64 bits, empty slices; the values are Python's (fractions, NumPy)
command -v python3 >/dev/null || exit 77
python3 - <<'P'
import json, struct
big = 1.7e308
tensors = [("i", "I64", [4], struct.pack("<4q", -2**63, 2**63 - 1, 2**63 - 2, 0)), ("large", "F64", [4], struct.pack("<4d", big, big, -big, big)),
           ("small", "F64", [2], struct.pack("<2d", 1e-308, 3e-308)), ("mixed", "F64", [2], struct.pack("<2d", 1e-300, -1e300)), ("empty", "F32", [2, 0, 3], b"")]
h, data = {}, b""
for name, dtype, shape, part in tensors:
    h[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(part)]}
    data += part
t = json.dumps(h).encode()
t += b" " * (-len(t) % 8)
open("n.safetensors", "wb").write(struct.pack("<Q", len(t)) + t + data)
P
for t in large small mixed; do run info n.safetensors --tensor $t --stats | sed -n 3,7p; done
run info n.safetensors --tensor empty --json
for s in 0:99999999999999999999 -99999999999999999999: ::99999999999999999999 1:-99999999999999999999:-1 9223372036854775808: 99999999999999999999; do
    run info n.safetensors --tensor i --slice " $s" | tail -n +3
done

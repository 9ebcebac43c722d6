#!/usr/bin/env python3
"""The commands on checkpoints compared with the reference: NumPy and safetensors, and torch and transformers if they are
installed. RUN names the program, GOLDEN the larger test data. checkpoint_commands.sh runs this and adds up its counts."""
import hashlib
import json
import math
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
from fractions import Fraction

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

try:
    import torch
except ImportError:
    torch = None

os.environ.update(TQDM_DISABLE="1", TRANSFORMERS_VERBOSITY="error")
RUN = os.path.abspath(os.environ.get("RUN") or "./run")
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
counts = {"passed": 0, "failed": 0, "skipped": 0}
rng = random.Random(7)


def check(condition, what):
    counts["passed" if condition else "failed"] += 1
    if not condition:
        print("failed:", what)


def skip(what):
    counts["skipped"] += 1
    print("skipped:", what)


def run(*args, code=0):
    done = subprocess.run([RUN, *map(str, args)], capture_output=True)
    if done.returncode != code:
        check(False, f"run {' '.join(map(str, args))}: exit {done.returncode}: {done.stderr.decode()[:300]}")
    return done.stdout


def write(path, tensors, metadata=None):
    """A .safetensors file of {name: (dtype, shape, bytes)}, in any dtype."""
    header, data = {}, b""
    if metadata:
        header["__metadata__"] = metadata
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def data_of(path):
    """{name: (dtype, shape, bytes)} of a file, read as the format's description says."""
    raw = open(path, "rb").read()
    n = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8:8 + n])
    header.pop("__metadata__", None)
    return {k: (v["dtype"], v["shape"], raw[8 + n + v["data_offsets"][0]:8 + n + v["data_offsets"][1]]) for k, v in header.items()}


# ---- what the numbers of each dtype are, exactly ----

NUMPY = {"BOOL": "?", "U8": "u1", "I8": "i1", "I16": "<i2", "U16": "<u2", "F16": "<f2", "I32": "<i4", "U32": "<u4", "F32": "<f4",
         "C64": "<c8", "F64": "<f8", "I64": "<i8", "U64": "<u8"}
FLOATS = {"F32": (8, 23, 127, 0x7F7FFFFF), "BF16": (8, 7, 127, 0x7F7F), "F16": (5, 10, 15, 0x7BFF), "F8_E5M2": (5, 2, 15, 0x7B),
          "F8_E4M3": (4, 3, 7, 0x7E), "F64": (11, 52, 1023, 0x7FEFFFFFFFFFFFFF)}  # exponent, mantissa, bias, largest code


def float_value(dtype, code):
    e_bits, m_bits, bias, _ = FLOATS[dtype]
    e, m = code >> m_bits & ((1 << e_bits) - 1), code & ((1 << m_bits) - 1)
    value = Fraction(m + ((1 << m_bits) if e else 0)) * Fraction(2) ** (max(e, 1) - bias - m_bits)
    return -value if code >> (e_bits + m_bits) else value


def rounded(dtype, value):
    """The code of the nearest number, ties to even; None beyond the largest."""
    e_bits, m_bits, bias, largest = FLOATS[dtype]
    size = abs(value)
    low, high = 0, largest
    if size >= float_value(dtype, largest):
        step = float_value(dtype, largest) - float_value(dtype, largest - 1)
        beyond = size - float_value(dtype, largest)
        code = None if beyond > step / 2 or (beyond == step / 2 and largest % 2) else largest
    else:
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if float_value(dtype, middle) <= size else (low, middle)
        below, above = size - float_value(dtype, low), float_value(dtype, high) - size
        code = low if below < above or (below == above and low % 2 == 0) else high
    return None if code is None else code | ((1 << (e_bits + m_bits)) if value < 0 else 0)


def size_of(dtype):
    return {"BF16": 2, "F8_E5M2": 1, "F8_E4M3": 1}.get(dtype) or np.dtype(NUMPY[dtype]).itemsize


# ---- tests ----

def random_spec(shape):
    parts = []
    for size in shape[:rng.randint(0, len(shape))]:
        if rng.random() < 0.3 and size:
            parts.append(str(rng.randint(-size, size - 1)))
        else:
            bound = lambda: rng.choice(["", str(rng.randint(-size - 2, size + 2))])
            parts.append(f"{bound()}:{bound()}" + rng.choice(["", f":{rng.choice([1, 2, 3, -1, -2])}"]))
    if rng.random() < 0.2:
        parts.insert(rng.randint(0, len(parts)), "...")
    return ",".join(parts)


def indexed(array, spec):
    return array[eval("np.s_[" + spec + "]")] if spec else array


def test_slices(work):
    arrays = {}
    for i, (dtype, kind) in enumerate(NUMPY.items()):
        shape = [(5, 4, 3), (17,), (2, 3, 4, 5), (7, 1, 6)][i % 4]
        raw = bytes(rng.randrange(256) for _ in range(math.prod(shape) * np.dtype(kind).itemsize))
        a = np.frombuffer(raw, kind).reshape(shape)
        if kind == "?":
            a = np.frombuffer(raw, "u1").reshape(shape) % 2 == 1
        arrays[dtype] = a
    path = os.path.join(work, "all.safetensors")
    write(path, {k: (k, v.shape, v.tobytes()) for k, v in arrays.items()})
    npy = os.path.join(work, "out.npy")
    for dtype, a in arrays.items():
        for _ in range(6):
            spec = random_spec(a.shape)
            want = np.asarray(indexed(a, spec))
            run("info", path, "--tensor", dtype, "--slice", spec, "--npy", npy, "--force")
            got = np.load(npy)
            check(got.dtype == want.dtype and got.shape == want.shape and got.tobytes() == np.ascontiguousarray(want).tobytes(),
                  f"{dtype}[{spec}] as .npy")
        out = json.loads(run("info", path, "--tensor", dtype, "--json"))["values"]
        flat = np.array(out, dtype=object).reshape(a.shape + ((2,) if dtype == "C64" else ()))
        want = a.view("<f4").reshape(a.shape + (2,)) if dtype == "C64" else a
        names = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
        same = all(type(y)(names.get(x, x)) == y or (y != y and x == "NaN") for x, y in zip(flat.ravel().tolist(), want.ravel()))
        check(same, f"{dtype} as JSON")
    with safe_open(path, "np") as f:  # get_slice takes fewer forms; where it takes one, it says the same
        for dtype, a in arrays.items():
            for spec in ("0:2", "-1", "::2", "1:3", "0", "..."):
                try:
                    want = f.get_slice(dtype)[eval("np.s_[" + spec + "]")]
                except Exception:
                    continue
                run("info", path, "--tensor", dtype, "--slice", spec, "--npy", npy, "--force")
                check(np.load(npy).tobytes() == want.tobytes(), f"get_slice {dtype}[{spec}]")


def test_widening(work):
    path, npy = os.path.join(work, "short.safetensors"), os.path.join(work, "out.npy")
    raw = np.arange(65536, dtype="<u2").tobytes()
    write(path, {"b": ("BF16", (256, 256), raw), "e": ("F8_E5M2", (256,), bytes(range(256))), "f": ("F8_E4M3", (256,), bytes(range(256)))})
    for name, dtype in (("b", "BF16"), ("e", "F8_E5M2"), ("f", "F8_E4M3")):
        run("info", path, "--tensor", name, "--npy", npy, "--force")
        got = np.load(npy).ravel()
        sign = 1 << (8 * size_of(dtype) - 1)
        wrong = 0
        for code, x in enumerate(got.tolist()):
            if code % sign <= FLOATS[dtype][3]:
                wrong += Fraction(x) != float_value(dtype, code)
            else:
                wrong += math.isfinite(x)
        check(wrong == 0 and got.dtype == np.float32, f"{dtype} widened: {wrong} wrong")


def random_decimal(dtype):
    e_bits, m_bits, bias, largest = FLOATS[dtype]
    code = rng.randrange(1, largest)
    a, b = float_value(dtype, code), float_value(dtype, code + 1)
    at = rng.choice([Fraction(1, 2), Fraction(1, 2) + Fraction(1, 10 ** 25), Fraction(1, 2) - Fraction(1, 10 ** 25), Fraction(rng.random())])
    value = (a + (b - a) * at) * rng.choice([1, -1])
    if dtype == "F64":
        return value, None
    scale = 0
    while (value * 10 ** scale).denominator != 1 and scale < 400:
        scale += 1
    digits = int(value * 10 ** scale)
    return Fraction(digits, 10 ** scale), f"{digits}e-{scale}"


def test_rounding(work):
    path = os.path.join(work, "round.safetensors")
    for dtype in FLOATS:
        size = size_of(dtype)
        write(path, {"x": (dtype, (4,), bytes(4 * size))})
        for _ in range(15):
            value, text = random_decimal(dtype)
            if text is None:
                text = repr(float(value))
                value = Fraction(float(text))
            want = rounded(dtype, value)
            done = subprocess.run([RUN, "edit", path, "--tensor", "x", "--slice", "2", "--set", text, "-q"], capture_output=True)
            got = int.from_bytes(data_of(path)["x"][2][2 * size:3 * size], "little")
            check((done.returncode == 0 and got == want) if want is not None else done.returncode == 1, f"--set {text} in {dtype}")
    for undo in (path + ".undo",):
        os.path.exists(undo) and os.remove(undo)


def test_arithmetic(work):
    path = os.path.join(work, "math.safetensors")
    for dtype in FLOATS:
        size, largest = size_of(dtype), FLOATS[dtype][3]
        codes = [rng.randrange(largest // 2 + largest // 4) for _ in range(300)]
        raw = b"".join(c.to_bytes(size, "little") for c in codes)
        for option, v in (("--scale", 0.1), ("--scale", 1.25), ("--scale", 1 / 3), ("--add", 0.1), ("--add", -1e-3)):
            write(path, {"x": (dtype, (300,), raw)})
            wants = [float_value(dtype, c) * Fraction(v) if option == "--scale" else float_value(dtype, c) + Fraction(v) for c in codes]
            wants = [rounded(dtype, w) for w in wants]
            if None in wants:
                continue
            run("edit", path, "--tensor", "x", option, repr(v), "-q")
            got = data_of(path)["x"][2]
            got = [int.from_bytes(got[i * size:(i + 1) * size], "little") for i in range(300)]
            top = 1 << (8 * size - 1)
            wrong = sum(g != w and (g | top) != (w | top if w in (0, top) else w) for g, w in zip(got, wants))
            check(wrong == 0, f"{option} {v} of {dtype}: {wrong} wrong")


def test_from(work):
    a, b = os.path.join(work, "to.safetensors"), os.path.join(work, "from.safetensors")
    x = (np.random.default_rng(1).standard_normal((6, 5)) * 3).astype("<f4")
    i = np.arange(30, dtype="<i4").reshape(6, 5) - 7
    save_file({"x": x, "i": i}, b)
    write(a, {"h": ("BF16", (8, 5), bytes(80)), "x": ("F32", (6, 5), bytes(120)), "j": ("I64", (6, 5), bytes(240))})
    run("edit", a, "--tensor", "x", "--from", b, "-q")
    run("edit", a, "--tensor", "h", "--slice", "1:7", "--from", b + ":x", "-q")
    run("edit", a, "--tensor", "j", "--from", b + ":i", "-q")
    got = data_of(a)
    check(got["x"][2] == x.tobytes(), "--from of the same dtype")
    want = b"".join(rounded("BF16", Fraction(float(v))).to_bytes(2, "little") for v in x.ravel())
    check(got["h"][2] == bytes(10) + want + bytes(10), "--from rounded, into a slice")
    check(got["j"][2] == i.astype("<i8").tobytes(), "--from of integers")
    run("edit", a, "--tensor", "j", "--from", b + ":x", code=1)
    run("edit", a, "--tensor", "h", "--from", b + ":x", code=1)
    check(data_of(a) == got, "refused --from changes nothing")


def close(a, b, tolerance=1e-12):
    return a == b or abs(a - b) <= tolerance * max(abs(a), abs(b))


def test_stats_and_diff(work):
    gen = np.random.default_rng(3)
    a, b = os.path.join(work, "a.safetensors"), os.path.join(work, "b.safetensors")
    arrays = {"w": gen.standard_normal((700, 300)).astype("<f4"), "h": gen.standard_normal((300, 1000)).astype("<f2"),
              "d": gen.standard_normal(1000) * 1e-3 + 5, "i": gen.integers(-1000, 1000, (50, 3)).astype("<i4"),
              "layers.3.w": gen.standard_normal(10).astype("<f4"), "same": gen.standard_normal(70000).astype("<f4")}
    changed = {k: v.copy() for k, v in arrays.items()}
    changed["w"][3, 5:20] += 0.5
    changed["w"][0, 0] = np.nan
    changed["h"] = (changed["h"].astype("f4") * 1.001).astype("<f2")
    changed["d"][7] += 1e-9
    changed["i"][4, 1] += 3
    changed["layers.3.w"] *= -1
    save_file(arrays, a)
    save_file(changed, b)
    for name, x in arrays.items():
        out = json.loads(run("info", a, "--tensor", name, "--stats", "--json"))["stats"]
        y = x.astype("f8")
        check(out["count"] == x.size and out["min"] == y.min() and out["max"] == y.max() and out["zero"] == (x == 0).sum(), f"stats of {name}")
        check(close(out["mean"], y.mean(), 1e-9) and close(out["std"], y.std(), 1e-9), f"mean and std of {name}")
    out = json.loads(run("diff", a, b, "--json", code=1))
    check(out["counts"]["equal"] == 1 and out["counts"]["changed"] == 5 and not out["same"], "counts of diff")
    for t in out["tensors"]:
        x, y = arrays[t["name"]].astype("f8"), changed[t["name"]].astype("f8")
        if t["name"] == "same":
            check(t["status"] == "equal", "an equal tensor")
            continue
        good = np.isfinite(x) & np.isfinite(y)
        x, y = np.where(good, x, 0), np.where(good, y, 0)
        d = y - x
        changes = (arrays[t["name"]].view("u1").reshape(x.size, -1) != changed[t["name"]].view("u1").reshape(x.size, -1)).any(1).sum()
        check(t["changed"] == changes and t["max"] == abs(d).max(), f"diff of {t['name']}")
        check(np.unravel_index(abs(d).argmax(), x.shape) == tuple(t["max_at"]), f"place of the largest in {t['name']}")
        cosine = 1 - (x * y).sum() / np.linalg.norm(x) / np.linalg.norm(y)
        check(close(t["mean"], abs(d).sum() / d.size, 1e-9) and close(t["relative"], np.linalg.norm(d) / np.linalg.norm(x), 1e-9)
              and abs(t["cosine"] - cosine) < 1e-13, f"figures of {t['name']}")
        check(t["not_finite"] == (~good).sum(), f"NaN in {t['name']}")
    layer = [l for l in out["layers"] if l["layer"] == 3][0]
    check(layer["different"] == 1 and close(layer["cosine"], 2), "a layer of the opposite sign")


def lines_of(path):
    for name, (dtype, shape, raw) in sorted(data_of(path).items(), key=lambda t: t[0].encode()):
        shown = ",".join(map(str, shape))
        yield f"{hashlib.sha256(raw).hexdigest()} {dtype} [{shown}] {len(name.encode())} {name}\n".encode()


def test_hash_and_patch(work):
    gen = np.random.default_rng(4)
    a, b, patch = (os.path.join(work, n) for n in ("base.safetensors", "tuned.safetensors", "tuned.patch"))
    arrays = {"x": gen.standard_normal((100, 40)).astype("<f4"), "y": np.arange(5), "Zähler": gen.standard_normal(9).astype("<f2")}
    save_file(arrays, a)
    arrays["x"][17, 3:9] = 0
    arrays["Zähler"][8] = 1
    save_file(arrays, b)
    out = json.loads(run("hash", a, "--json"))
    check(out["files"][0]["sha256"] == hashlib.sha256(open(a, "rb").read()).hexdigest(), "hash of the file")
    check({t["name"]: t["sha256"] for t in out["files"][0]["tensors"]} == {k: hashlib.sha256(v[2]).hexdigest() for k, v in data_of(a).items()},
          "hashes of the tensors")
    prints = [hashlib.sha256(b"".join(lines_of(f))).hexdigest() for f in (a, b)]
    check(out["fingerprint"] == prints[0], "fingerprint")
    run("diff", a, b, "--patch", patch, code=1)
    with safe_open(patch, "np") as f:
        check(f.metadata() == {"format": "run-patch", "version": "1", "base": prints[0], "result": prints[1]}, "the patch's metadata")
        ranges, new = f.get_tensor("x.ranges"), f.get_tensor("x.bytes").tobytes()
        old = bytearray(data_of(a)["x"][2])
        for offset, length in ranges.tolist():
            old[offset:offset + length], new = new[:length], new[length:]
        check(bytes(old) == data_of(b)["x"][2] and not new, "the patch's ranges")
    before = open(a, "rb").read()
    run("split", a, os.path.join(work, "base-parts"), "--max-shard-size", "100B")  # a patch fits however the model is cut
    run("edit", os.path.join(work, "base-parts"), "--patch", patch, "-q")
    run("diff", os.path.join(work, "base-parts"), b)
    run("edit", a, "--patch", patch, "-q")
    check(open(a, "rb").read() == open(b, "rb").read(), "patched")
    run("edit", a, "--undo")
    check(open(a, "rb").read() == before, "undone")


def test_masks(work):
    gen = np.random.default_rng(5)
    x, y = gen.standard_normal((33, 7)).astype("<f4"), gen.standard_normal((4, 5)).astype("<f2")
    keep, keep_y = gen.random((33, 7)) < 0.7, gen.random((4, 5)) < 0.5
    model, bits, whole = (os.path.join(work, n) for n in ("mask-model.safetensors", "bits.safetensors", "whole.safetensors"))
    save_file({"x": np.packbits(keep.ravel(), bitorder="little"), "y": keep_y.astype("u1")}, bits)
    save_file({"x": keep, "y": keep_y}, whole)
    for mask in (bits, whole):
        save_file({"x": x, "y": y}, model)
        out = json.loads(run("edit", model, "--mask", mask, "--json", "-q"))
        got = data_of(model)
        check(got["x"][2] == np.where(keep, x, 0).tobytes() and got["y"][2] == np.where(keep_y, y, 0).astype("<f2").tobytes(), "masked")
        check(out["weights_zeroed"] == (~keep).sum() + (~keep_y).sum(), "weights_zeroed")


def same_in_reference(a_files, b_files):
    tensors = []
    for files in (a_files, b_files):
        found = {}
        for path in files:
            with safe_open(path, "np") as f:
                check(f.metadata() is None or f.metadata() != {}, f"metadata of {path}")
            found.update(data_of(path))
        tensors.append(found)
    return tensors[0] == tensors[1]


def safetensors_in(folder):
    return sorted(os.path.join(folder, n) for n in os.listdir(folder) if n.endswith(".safetensors"))


def test_split(work):
    demo = os.path.join(ROOT, "tests", "demo")
    source = os.path.join(demo, "model.safetensors")
    for i, args in enumerate((["--by-layer"], ["--max-shard-size", "300KB"], ["--max-shard-size", "1GB"])):
        parts, merged = os.path.join(work, f"parts{i}"), os.path.join(work, f"merged{i}.safetensors")
        run("split", demo, parts, *args)
        check(same_in_reference([source], safetensors_in(parts)), f"split {args}")
        index = os.path.join(parts, "model.safetensors.index.json")
        if os.path.exists(index):
            index = json.load(open(index))
            sizes = {os.path.basename(p): {k: len(v[2]) for k, v in data_of(p).items()} for p in safetensors_in(parts)}
            check(index["metadata"]["total_size"] == sum(sum(s.values()) for s in sizes.values()), "total_size")
            check(index["weight_map"] == {k: f for f, s in sizes.items() for k in s}, "weight_map")
        run("merge", parts, merged)
        check(same_in_reference([source], [merged]), f"merge after split {args}")
        for path in safetensors_in(parts) + [merged]:
            with safe_open(path, "np") as f:
                check(f.metadata() == {"format": "pt"} and struct.unpack("<Q", open(path, "rb").read(8))[0] % 8 == 0, f"{path}")
    try:
        from transformers import AutoModelForCausalLM
    except ImportError:
        skip("no transformers to open the split model")
        return
    whole = AutoModelForCausalLM.from_pretrained(demo).state_dict()
    split = AutoModelForCausalLM.from_pretrained(os.path.join(work, "parts0")).state_dict()
    check(whole.keys() == split.keys() and all(torch.equal(whole[k], split[k]) for k in whole), "the split model in transformers")


def test_golden(work):
    """Every file that the reference accepts goes through split, merge and hash. The reference must accept the results,
    with the same tensors."""
    folder = os.path.join(os.environ.get("GOLDEN") or "/nonexistent", "given", "safetensors")
    if not os.path.isdir(folder):
        skip("no GOLDEN data of files that the reference accepts")
        return
    verdicts = json.load(open(os.path.join(folder, "verdicts.json")))["files"]
    for name, v in verdicts.items():
        path = os.path.join(folder, name)
        if v["verdict"] != "accept" or not os.path.exists(path) or v["file_bytes"] > 10 ** 7:
            continue
        merged, parts = os.path.join(work, "g.safetensors"), os.path.join(work, "g")
        run("merge", path, merged)
        run("split", merged, parts, "--max-shard-size", "1B")
        found, metadata = {}, []
        for p in [merged] + safetensors_in(parts):
            with safe_open(p, "np") as f:
                metadata.append(f.metadata())
                found.setdefault(p == merged, {}).update({k: None for k in f.keys()})
            for k, t in data_of(p).items():
                found[p == merged][k] = [t[0], list(t[1]), hashlib.sha256(t[2]).hexdigest()]
        want = {k: [t["dtype"], t["shape"], t["sha256"]] for k, t in v["tensors"].items()}
        check(found[True] == want and found[False] == want, f"{name}: tensors")
        check(all((m or None) == (v["metadata"] or None) for m in metadata), f"{name}: metadata {metadata}")
        hashes = json.loads(run("hash", path, "--json"))["files"][0]["tensors"]
        check({t["name"]: t["sha256"] for t in hashes} == {k: t[2] for k, t in want.items()}, f"{name}: hashes")
        os.remove(merged)
        shutil.rmtree(parts)


def main():
    for test in (test_slices, test_widening, test_rounding, test_arithmetic, test_from, test_stats_and_diff, test_hash_and_patch, test_masks,
                 test_split, test_golden):
        with tempfile.TemporaryDirectory() as work:
            try:
                test(work)
            except Exception as e:  # a test that breaks is one failure; the others still run
                check(False, f"{test.__name__}: {type(e).__name__}: {e}")
    print("checkpoint_reference: {passed} passed, {failed} failed, {skipped} skipped".format(**counts))
    return counts["failed"] > 0


sys.exit(main())

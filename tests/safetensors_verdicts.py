"""Whatever a .safetensors file says, our verdict equals the reference library's, and so do names, dtypes, shapes and
bytes of the tensors.

    python3 tests/safetensors_verdicts.py [MUTATIONS [SEED]]      VERDICTS names safetensors_verdicts.c, built

Both read the fuzzer's seeds (tests/fuzz/safetensors.tar and patch.tar), GOLDEN's files, and 100,000 mutations of them.
"""
import glob, json, os, random, struct, subprocess, sys, tarfile, tempfile

from safetensors import SafetensorError, deserialize

MODULES = ". base kernels tokenizer generate checkpoint".split() # folders
WORDS = [b"0", b"-1", b"-0", b"1.0", b"1e0", b"18446744073709551615", b"18446744073709551616", b"4294967296", b'"', b"\\u0000",
         b"\\ud800", b"{}", b"[]", b"null", b"\xff", b",", b":", b"]", b"}", b" ", b"\n", b"__metadata__", b'"F32"',
         b'"F4"', b'"F64"', b"9223372036854775808", b'"dtype"', b'"shape"', b'"data_offsets"', b"\x00"]


def corpus():
    seeds = []
    for archive in "tests/fuzz/safetensors.tar", "tests/fuzz/patch.tar":
        with tarfile.open(archive) as tar:
            seeds += [tar.extractfile(member).read() for member in tar]
    if os.environ.get("GOLDEN"):
        paths = sorted(glob.glob(os.environ["GOLDEN"] + "/given/safetensors/*"))
        seeds += [open(p, "rb").read() for p in paths if not p.endswith(".json")]
    return seeds


def mutate_bytes(r, b, seeds):
    b = bytearray(b)
    for _ in range(r.randint(1, 4)):
        at = r.randint(0, len(b))
        n = r.randint(0, min(24, len(b) - at))
        kind = r.randrange(7)
        if kind == 0 and at < len(b):
            b[at] ^= 1 << r.randrange(8)
        elif kind == 1 and at < len(b):
            b[at] = r.randrange(256)
        elif kind == 2:
            b[at:at + (n if r.random() < .5 else 0)] = r.choice(WORDS)
        elif kind == 3:
            del b[at:at + n]
        elif kind == 4:
            to = r.randint(0, len(b))
            b[to:to] = b[at:at + n]
        elif kind == 5:
            other = r.choice(seeds)
            start = r.randint(0, len(other))
            b[at:at + n] = other[start:start + r.randint(0, 48)]
        elif at < len(b):
            b[at] = (b[at] + r.choice((1, 255))) % 256
    return bytes(b)


def wanted_data(header, otherwise):
    """The header's largest end, if it is small."""
    try:
        ends = [v["data_offsets"][1] for k, v in json.loads(header).items() if k != "__metadata__"]
        end = max(ends, default=0)
        return end if isinstance(end, int) and 0 <= end <= 4096 else otherwise
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
        return otherwise


BITS = {"BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8,
        "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32, "C64": 64, "F64": 64,
        "I64": 64, "U64": 64}


def quoted(r, text):
    """JSON text, some of its characters as escapes."""
    return '"%s"' % "".join("\\u%04x" % ord(c) if c in '"\\' or c < " " or (c < "\uffff" and r.random() < .05) else c for c in text)


def make(r):
    """A file that is right, or nearly: tensors in any order, odd spaces and names, one thing in three wrong."""
    members, at = [], 0
    space = lambda: r.choice(("", "", "", " ", "\n", "\t \r"))
    for i in range(r.randint(0, 5)):
        dtype, shape = r.choice(list(BITS)), [r.choice((0, 1, 1, 2, 2, 3, 4, 8)) for _ in range(r.randint(0, 4))]
        bits = BITS[dtype]
        for n in shape:
            bits *= n
        size = (bits + r.choice((0, 0, 7))) // 8
        wrong = r.randrange(30)
        begin, end = at + (wrong == 0), at + size + (wrong in (0, 1)) - (wrong == 2)
        at += size if wrong != 3 else size + 1
        fields = [("dtype", quoted(r, dtype)), ("shape", "[%s]" % ",".join(space() + str(n) for n in shape)),
                  ("data_offsets", "[%d,%s%d]" % (begin, space(), end))]
        r.shuffle(fields)
        if wrong == 4:
            fields.append(("more", r.choice(("1", "null", "[[]]", '{"a":1e5}', '"x"'))))
        elif wrong == 5:
            fields.append(r.choice(fields))
        elif wrong == 6:
            fields.pop()
        name = r.choice(("a", "b", "w.%d" % i, "\x00", "\u00e9", "\U0001f600", "", "model.layers.%d.q" % i, "__metadata", "x" * 40))
        members.append(quoted(r, name) + space() + ":{" + ",".join(space() + quoted(r, k) + ":" + v for k, v in fields) + "}")
    if r.random() < .3:
        members.append('"__metadata__":' + r.choice(("{}", "null", '{"a":"b"}', '{"a":1}', "[]", '{"a":"b","a":"c"}', '{"":""}')))
    r.shuffle(members)
    header = (space() + "{" + ("," + space()).join(members) + space() + "}" + " " * r.randrange(4)).encode()
    size = max(0, at + r.choice((0, 0, 0, 0, 0, 0, 1, -1)))
    return struct.pack("<Q", len(header)) + header + bytes(r.randrange(256) for _ in range(size))


def mutate(r, b, seeds):
    """Mostly only the header, with its length and that of the data set right."""
    if r.random() < .4:
        return make(r)
    n = struct.unpack("<Q", b[:8])[0] if len(b) >= 8 else 0
    if len(b) < 8 or n > len(b) - 8 or r.random() < .25:
        return mutate_bytes(r, b, seeds)
    header, data = mutate_bytes(r, b[8:8 + n], [s[8:] for s in (r.choice(seeds), r.choice(seeds))]), b[8 + n:]
    if r.random() < .7:
        size = wanted_data(header, len(data))
        data = data[:size] + bytes(i % 251 for i in range(size - len(data)))
    return struct.pack("<Q", len(header)) + header + data


def fnv(data):
    h = 0xcbf29ce484222325
    for byte in data:
        h = (h ^ byte) * 0x100000001b3 & (1 << 64) - 1
    return "%016x" % h


def reference(b):
    try:
        tensors = deserialize(b)
    except (SafetensorError, OverflowError) as e:
        return ("reject", str(e))
    lines = ["%s %s [%s] %s" % (name.encode().hex(), t["dtype"], ",".join(map(str, t["shape"])), fnv(t["data"]))
             for name, t in tensors]
    return ("accept", sorted(lines))


def build(folder):
    program = os.environ.get("VERDICTS")
    if program:
        return program
    program = folder + "/safetensors_verdicts"
    sources = [f for folder in MODULES for f in glob.glob(folder + "/*.c") if f != "./run.c"]
    subprocess.run([os.environ.get("CC", "cc"), "-std=c11", "-O2", "-g", "-I.", "-o", program,
                    "tests/safetensors_verdicts.c", *sources, "-lm", "-lpthread"], check=True)
    return program


def ours(program, files):
    with tempfile.TemporaryFile() as stream:
        for b in files:
            stream.write(struct.pack("<I", len(b)) + b)
        stream.seek(0)
        lines = iter(subprocess.run([program], stdin=stream, stdout=subprocess.PIPE, check=True).stdout.decode().splitlines())
    for line in lines:
        verdict, rest = line.split(" ", 1)
        yield (verdict, sorted(next(lines) for _ in range(int(rest))) if verdict == "accept" else rest)


def main():
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 100000
    r = random.Random(int(sys.argv[2]) if len(sys.argv) > 2 else 1)
    os.chdir(os.path.dirname(os.path.abspath(__file__)) + "/..")
    seeds = corpus()
    small = [s for s in seeds if len(s) < 2000]
    different = accepted = total = 0
    with tempfile.TemporaryDirectory() as folder:
        program = build(folder)
        while total < len(seeds) + n:
            batch = [seeds[i] if i < len(seeds) else mutate(r, r.choice(small), small)
                     for i in range(total, min(total + 5000, len(seeds) + n))]
            for b, own in zip(batch, ours(program, batch), strict=True):
                theirs = reference(b)
                accepted += theirs[0] == "accept"
                if own[0] != theirs[0] or (own[0] == "accept" and own[1] != theirs[1]):
                    different += 1
                    if different <= 10:
                        print("differs:", b.hex(), "\n  ours:", own, "\n  reference:", theirs)
            total += len(batch)
    print(f"safetensors: {total} files, {accepted} accepted by the reference library, {different} verdicts differ")
    return different > 0


sys.exit(main())

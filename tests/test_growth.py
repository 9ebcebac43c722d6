"""Doubling any input at most doubles the time, and a little: each kind of input is given in a size and in four times that size.

RUN names the program (./run). Usage: tests/test_growth.py [WORD...], only the kinds whose name has one of the words; -v prints the
figures. A kind is a function that begins with kind_: it writes the input of size n into the current folder and returns the
command's arguments, or (arguments, standard input, exit code). What counts is the processor's time in the command. A step of n * n would
take 16 times as long for the larger size; more than 9 times is a failure, if that is more than LITTLE seconds.
"""
import json
import os
import random
import resource
import shutil
import struct
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
RUN = os.path.abspath(os.environ.get("RUN", os.path.join(ROOT, "run")))
DEMO = os.path.join(ROOT, "tests", "demo")
SMALL = json.load(open(os.path.join(ROOT, "tests", "data", "tokenizer", "tokenizer.json")))
LITTLE, MOST, PATIENCE = 0.1, 9, 60
FLAGS = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
BYTES = [*range(0x21, 0x7f), *range(0xa1, 0xad), *range(0xae, 0x100)]
BYTES += [b for b in range(256) if b not in BYTES]
SPELLING = {b: chr(b if i < 188 else 256 + i - 188) for i, b in enumerate(BYTES)}


def write(name, content):
    with open(name, "wb" if isinstance(content, bytes) else "w") as f:
        f.write(content if isinstance(content, (bytes, str)) else json.dumps(content))


# ---- tokenizer ----------------------------------------------------------------------------------------------------------

def tokenizer(**changes):
    write("tokenizer.json", {**SMALL, **changes})
    return ["tokenize", "-m", "tokenizer.json"]


def with_added(tokens, **flags):
    first = len(SMALL["model"]["vocab"])
    return tokenizer(added_tokens=[{"id": first + i, "content": t, **FLAGS, **flags} for i, t in enumerate(tokens)])


def with_model(vocab, merges):
    return tokenizer(model={**SMALL["model"], "vocab": {t: i for i, t in enumerate(vocab)}, "merges": merges},
                     added_tokens=[])


def on_text(text, command=None):
    write("text", text if isinstance(text, bytes) else text.encode())
    return [*(command or tokenizer()), "-f", "text", "--json"]


def kind_vocabulary(n):
    return [*with_model([*SPELLING.values(), *(f"x{i}" for i in range(n // 8))], ["x 0"]), "hi"]


def kind_vocabulary_that_collided(n):
    """Tokens that met in one slot of the hash table while its hash had no key."""
    golden, mask = 0x9e3779b97f4a7c15, (1 << 64) - 1

    def mix(x):
        x = x * golden & mask
        return x ^ x >> 32
    words = [struct.pack("<QQ", w, mix(mix(17) ^ w) ^ 0x1234567890abcdef) for w in range(7, 7 + n // 8)]
    return [*with_model([*SPELLING.values(), *("".join(SPELLING[b] for b in w) for w in words), "x0"], ["x 0"]), "hi"]


def chain(n):
    """A vocabulary and n merges that make x0, x1, ..., x9, x00, x01, ..."""
    pairs, level = [], ["x"]
    while len(pairs) < n:
        pairs += [(a, b) for a in level for b in "0123456789"]
        level = [a + b for a, b in pairs[-10 * len(level):]]
    return [*SPELLING.values(), *(a + b for a, b in pairs[:n])], [f"{a} {b}" for a, b in pairs[:n]]


def kind_merges(n):
    return [*with_model(*chain(n // 8)), "hi"]


def kind_merges_in_any_order(n):
    vocab, merges = chain(n // 8)
    random.Random(1).shuffle(merges)
    return [*with_model(vocab, [m.split(" ") for m in merges]), "hi"]


def kind_older_form(n):
    vocab, merges = chain(n // 8)
    write("vocab.json", {t: i for i, t in enumerate(vocab)})
    write("merges.txt", "#version: 0.2\n" + "\n".join(merges))
    return ["tokenize", "-m", ".", "hi"]


def kind_long_tokens(n):
    return [*with_model([*SPELLING.values(), *(c * (n // 2) for c in "xyz"), "x0"], ["x 0"]), "hi"]


def kind_added_token_that_nearly_fits(n):
    return on_text("a" * n, with_added(["a" * (n // 2) + "b"]))


def kind_added_token_that_nearly_fits_backwards(n):
    return on_text("a" * n, with_added(["b" + "a" * (n // 2)]))


def kind_added_tokens_in_each_other(n):
    k = int(n ** 0.5)
    return on_text("a" * n + "b", with_added(["a" * i for i in range(2, k)] + ["a" * i + "b" for i in range(2, k)]))


def kind_added_tokens(n):
    return on_text("<1>" * n, with_added([f"<{i}>" for i in range(n // 4)]))


def kind_added_tokens_after_nfc(n):
    return on_text("<1>" * n, with_added([f"<{i}>" for i in range(n // 4)], normalized=True))


def kind_files_of_added_tokens(n):
    first = len(SMALL["model"]["vocab"]) + len(SMALL["added_tokens"])
    tokenizer()
    write("added_tokens.json", {f"<{i}>": first + i for i in range(n // 8)})
    write("tokenizer_config.json", {"extra_special_tokens": [f"<{i}>" for i in range(0, n // 4, 2)],
                                    **{f"x{i}_token": f"<{i}>" for i in range(n // 8)}})
    write("special_tokens_map.json", {"additional_special_tokens": [f"<x{i}>" for i in range(n // 8)]})
    return ["tokenize", "-m", ".", "hi"]


def kind_added_tokens_decoder(n):
    first = len(SMALL["model"]["vocab"])
    tokenizer()
    write("tokenizer_config.json", {"added_tokens_decoder": {first + i: {"content": f"<{i}>"} for i in range(n // 8)},
                                    "eos_token": "<1>", "unk_token": None, "pad_token": None})
    return ["tokenize", "-m", ".", "hi"]


def kind_members_of_the_root(n):
    return [*tokenizer(**{f"x{i}": {"y": i} for i in range(n // 2)}), "hi"]


def kind_long_word(n):
    return on_text("".join(random.Random(2).choices("abcdefghijklmnopqrstuvwxyz", k=n)))


def kind_word_of_one_letter(n):
    return on_text("a" * n)


def kind_punctuation(n):
    return on_text("!?.," * (n // 4))


def kind_blanks(n):
    return on_text(" " * n + "a" + " \n" * n + "a" + "\t" * n)


def kind_blanks_before_letters(n):
    return on_text(("  a" + " " * 1000 + "b") * (n // 1000))


def kind_marks(n):
    """One character with marks in an order that NFC changes."""
    return on_text("e" + "\u0301\u0323\u0345" * n + "a" + "\u0323" * n + "\u0301" * n)


def kind_marks_that_compose(n):
    return on_text("e\u0301" * n + "\u1100\u1161\u11a8" * n)


def kind_bytes_that_are_no_text(n):
    return on_text(b"\x80" * n + b"\xe4\xb8" * n + b"\xff" * n)


def kind_chinese(n):
    return on_text("\u4e2d\u6587\u3042" * n)


def requests(line):
    return [*tokenizer(), "--jsonl"], line.encode() + b"\n", 0


def kind_decoding(n):
    return requests(json.dumps({"ids": [i % 600 for i in range(n)]}))


def kind_members_of_a_request(n):
    return requests("{" + '"skip_special":false,' * n + '"text":"a"}')


def kind_requests(n):
    return requests("\n".join(['{"text":"a"}'] * n))


def kind_long_request(n):
    return requests('{"text":"' + "a b" * n + '"}')


# ---- JSON ---------------------------------------------------------------------------------------------------------------

def on_json(text, *options):
    write("x.json", text)
    return ["json", *options, "x.json"]


def kind_json_array(n):
    return on_json("[" + ",".join(["1"] * n) + "]")


def kind_json_equal_names(n):
    return on_json("{" + ",".join(['"a":1'] * n) + "}", "--canonical")


def kind_json_names(n):
    return on_json({f"x{i}": i for i in range(n)}, "--canonical")


def kind_json_nested(n):
    return on_json("[" + ",".join(["[" * 100 + "]" * 100] * (n // 50)) + "]")


def kind_json_string(n):
    return on_json('"' + "\\u00e9\\n x" * n + '"')


def kind_json_number(n):
    return on_json("[" + "1" * n + "e-" + str(n) + ",0." + "0" * n + "1]")


# ---- checkpoints --------------------------------------------------------------------------------------------------------

def safetensors(name, tensors, metadata=None, data=b""):
    """tensors: {name: entry}; the data is what their entries ask for."""
    header = json.dumps({**({"__metadata__": metadata} if metadata else {}), **tensors}).encode()
    write(name, struct.pack("<Q", len(header)) + header + data)


def vectors(count, name="model.layers.{}.mlp.up_proj.weight", changed=-1):
    tensors = {name.format(i): {"dtype": "U8", "shape": [2], "data_offsets": [2 * i, 2 * i + 2]} for i in range(count)}
    return tensors, b"".join(b"\1\2" if i == changed else b"\1\1" for i in range(count))


def model(name, count, changed=-1, metadata=None):
    tensors, data = vectors(count, changed=changed)
    safetensors(name, tensors, metadata, data)
    return name


def kind_tensors(n):
    return ["info", model("a.safetensors", n // 8), "--json"]


def kind_tensors_in_any_order(n):
    tensors, data = vectors(n // 8)
    entries = list(tensors.items())
    random.Random(3).shuffle(entries)
    safetensors("a.safetensors", dict(entries), None, data)
    return ["info", "a.safetensors"]


def kind_tensors_found(n):
    return ["info", model("a.safetensors", n // 8), "--find", "*9*.weight", "--stats"]


def kind_tensors_of_one_name(n):
    entry = '"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}'
    header = ("{" + ",".join([entry] * (n // 8)) + "}").encode()
    write("a.safetensors", struct.pack("<Q", len(header)) + header)
    return ["info", "a.safetensors"]


def kind_fields(n):
    tensors = {"a": {**{f"x{i}": [i] for i in range(n // 4)}, "dtype": "U8", "shape": [0], "data_offsets": [0, 0]}}
    safetensors("a.safetensors", tensors)
    return ["info", "a.safetensors"]


def kind_sizes_of_a_shape(n):
    safetensors("a.safetensors", {"a": {"dtype": "U8", "shape": [1] * n, "data_offsets": [0, 1]}}, None, b"\0")
    return ["info", "a.safetensors"]


def kind_long_names(n):
    safetensors("a.safetensors", {c * n: {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]} for c in "ab\u00e9"})
    return ["info", "a.safetensors", "--find", "*b"]


def kind_metadata(n):
    return ["info", model("a.safetensors", 1, metadata={f"x{i}": str(i) for i in range(n // 4)})]


def kind_hashes(n):
    return ["hash", model("a.safetensors", n // 16)]


def kind_hashes_checked(n):
    model("a.safetensors", n // 16)
    with open("list", "w") as f:
        subprocess.run([RUN, "hash", "a.safetensors"], stdout=f, check=True)
    return ["hash", "--check", "list"]


def kind_differences(n):
    model("a.safetensors", n // 16)
    tensors, data = vectors(n // 16, changed=7)
    safetensors("b.safetensors", {("x" if i % 2 else "") + k: v for i, (k, v) in enumerate(tensors.items())}, None, data)
    return ["diff", "a.safetensors", "b.safetensors", "--all"], b"", 1


def kind_patch(n):
    tensors, data = vectors(n // 16)
    safetensors("a.safetensors", tensors, None, data)
    safetensors("b.safetensors", tensors, None, b"\2" * len(data))
    subprocess.run([RUN, "diff", "-q", "--patch", "p", "a.safetensors", "b.safetensors"], stdout=subprocess.DEVNULL)
    return ["edit", "a.safetensors", "--patch", "p"]


def kind_split_into_one(n):
    return ["split", model("a.safetensors", n // 16, metadata={f"x{i}": str(i) for i in range(n // 8)}), "out",
            "--max-shard-size", "1GB"]


def shards(count, tensors_each):
    weight_map = {}
    for k in range(count):
        name = f"m-{k:05}.safetensors"
        tensors, data = vectors(tensors_each, f"model.layers.{k}.x{{}}")
        safetensors(name, tensors, {f"x{i}": "y" for i in range(100)}, data)
        weight_map.update({t: name for t in tensors})
    write("model.safetensors.index.json", {"metadata": {f"x{i}": i for i in range(count)}, "weight_map": weight_map})


def kind_split_into_many(n):
    return ["split", model("a.safetensors", n // 500), "out", "--max-shard-size", "2B"]


def kind_shards_split(n):
    shards(n // 500, 2)
    return ["split", ".", "out", "--by-layer"]


def kind_shards_merged(n):
    shards(n // 500, 2)
    return ["merge", ".", "out.safetensors"]


def kind_index(n):
    shards(2, n // 16)
    return ["info", ".", "--json"]


def kind_index_of_tensors_that_are_missing(n):
    shards(1, 1)
    write("model.safetensors.index.json", {"weight_map": {f"a{i}": "m-00000.safetensors" for i in range(n)}})
    return ["info", "."], b"", 1


def demo(**config):
    for name in os.listdir(DEMO):
        if os.path.isfile(os.path.join(DEMO, name)):
            shutil.copy(os.path.join(DEMO, name), name)
    whole = json.load(open("config.json"))
    os.chmod("config.json", 0o644)
    write("config.json", {**whole, **config})


def kind_config(n):
    demo(**{f"x{i}": i for i in range(n)}, layer_types=["full_attention"] * n)
    return ["generate", "-m", ".", "-n", "1", "-q", "Once"], b"", 1


def kind_stop_texts(n):
    stops = [f"--stop=x{i}" for i in range(n // 80)]
    return ["generate", "-m", DEMO, "-n", "50", "--ignore-eos", "--greedy", "-q", *stops, "Once"]


def kind_long_prompt(n):
    write("text", "Once upon a time " * n)
    return ["generate", "-m", DEMO, "-n", "1", "-q", "-f", "text"], b"", 1


def kind_conversation(n):
    write("talk", {"messages": [{"role": role, "content": "x" * 100} for _ in range(n // 10) for role in ("user", "assistant")]})
    return ["chat", "-m", DEMO, "--greedy", "-n", "3", "-q"], b"/load talk\nhi\n", 0


def kind_requests_to_generate(n):
    line = b'{"prompt":"Once upon a time there was a little girl who lived in a house","max_tokens":1}\n'
    return ["generate", "-m", DEMO, "--jsonl", "-q"], line * (n // 50), 0


def kind_requests_that_wait(n):
    line = json.dumps({"ids": [7] * (n // 100), "max_tokens": 1}).encode() + b"\n"
    demo(max_position_embeddings=4096)
    return ["generate", "-m", ".", "--jsonl", "-q"], line * 40, 0


# ---- measuring ----------------------------------------------------------------------------------------------------------

def limit():
    resource.setrlimit(resource.RLIMIT_CPU, (PATIENCE, PATIENCE))


def seconds(kind, n):
    """What the processor takes for an input of that size, the least of up to three times."""
    least = PATIENCE
    for _ in range(3):
        with tempfile.TemporaryDirectory(prefix="growth-") as folder:
            os.chdir(folder)
            made = kind(n)
            arguments, given, expected = made if isinstance(made, tuple) else (made, b"", 0)
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            code = subprocess.run([RUN, *arguments], input=given, stdout=subprocess.DEVNULL,
                                  stderr=subprocess.DEVNULL, preexec_fn=limit).returncode
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            os.chdir(ROOT)
        if code != expected:
            print(f"growth: {kind.__name__[5:]}: exit {code}, expected {expected}")
            return PATIENCE + 1
        least = min(least, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
        if least < LITTLE or least > PATIENCE / 2:
            break
    return least


def main():
    words = [w for w in sys.argv[1:] if w != "-v"]
    passed = failed = 0
    size = int(os.environ.get("GROWTH_SIZE", 50000))
    for name, kind in list(globals().items()):
        if not name.startswith("kind_") or (words and not any(w in name for w in words)):
            continue
        large = seconds(kind, 4 * size)
        small = seconds(kind, size) if large > LITTLE or "-v" in sys.argv else large
        good = large <= LITTLE or large <= min(MOST * small, PATIENCE)
        passed, failed = passed + good, failed + (not good)
        if not good or "-v" in sys.argv:
            print(f"growth: {name[5:]}: {small:.3f} s, and {large:.3f} s for four times the input"
                  + ("" if good else ": failed"), flush=True)
    print(f"growth: {passed} passed, {failed} failed, 0 skipped")
    return failed > 0


sys.exit(main())

"""What comes from outside is asked what it is before it is read, and never reaches a terminal raw; JSON has the layouts that commands/README.md tells.

RUN names the program (./run), LAYOUTS the file whose table of JSON layouts is checked (commands/README.md). Usage: tests/test_outside.py [WORD...],
only the tests whose name has one of the words. Each function that begins with test_ is one test; check() counts.
"""
import json
import os
import pty
import re
import select
import shutil
import struct
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
RUN = os.path.abspath(os.environ.get("RUN", os.path.join(ROOT, "run")))
LAYOUTS = os.path.abspath(os.environ.get("LAYOUTS", os.path.join(ROOT, "commands", "README.md")))
DEMO = os.path.join(ROOT, "tests", "demo")
PATIENCE = 20  # seconds after which a command counts as waiting
FILES = sorted(name for name in os.listdir(DEMO) if os.path.isfile(os.path.join(DEMO, name)))
passed = failed = skipped = 0


def check(condition, *what):
    global passed, failed
    if condition:
        passed += 1
    else:
        failed += 1
        print("outside: failed:", *what)


def run(*arguments, text=b"", **environment):
    """Exit code (None if the command had to be ended), standard output, standard error."""
    try:
        p = subprocess.run([RUN, *arguments], input=text, capture_output=True, timeout=PATIENCE, env={**os.environ, **environment})
    except subprocess.TimeoutExpired:
        return None, b"", b""
    return p.returncode, p.stdout, p.stderr


def on_terminal(arguments, **environment):
    """All that the command writes to a terminal."""
    pid, fd = pty.fork()
    if pid == 0:
        try:
            os.execve(RUN, [os.fsencode(RUN), *map(os.fsencode, arguments)], {**os.environ, "TERM": "xterm", **environment})
        finally:
            os._exit(127)
    out, end = b"", time.monotonic() + PATIENCE
    while time.monotonic() < end and select.select([fd], [], [], end - time.monotonic())[0]:
        try:
            chunk = os.read(fd, 65536)
        except OSError:
            chunk = b""
        if not chunk:
            break
        out += chunk
    else:
        os.kill(pid, 9)
    os.close(fd)
    os.waitpid(pid, 0)
    return out


def write(name, content):
    with open(name, "wb" if isinstance(content, bytes) else "w") as f:
        f.write(content if isinstance(content, (bytes, str)) else json.dumps(content))


def checkpoint(name, tensors, metadata=None):
    """tensors: name -> (dtype, shape, bytes)."""
    header, data = ({"__metadata__": metadata} if metadata else {}), b""
    for key, (dtype, shape, values) in tensors.items():
        header[key] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    write(name, struct.pack("<Q", len(text)) + text + data)


# ---- pipes, devices, folders, sockets and links that lead nowhere ---------------------------------------------------------

def make_pipe(name):
    os.mkfifo(name)


def make_socket(name):
    import socket
    socket.socket(socket.AF_UNIX).bind(name)


KINDS = {"pipe": make_pipe, "device": lambda name: os.symlink("/dev/zero", name), "folder": os.mkdir, "socket": make_socket,
         "terminal": lambda name: os.symlink("/dev/tty", name), "loop": lambda name: os.symlink(os.path.basename(name), name),
         "nothing": lambda name: os.symlink("missing", name), "proc": lambda name: os.symlink("/proc/self/status", name)}


def test_model_files():
    """Each file of a model in turn: every command ends, with a code of its own."""
    names = FILES + ["added_tokens.json", "special_tokens_map.json", "chat_template.jinja", "model.safetensors.index.json", "vocab.json",
                     "merges.txt", "model.safetensors.undo"]
    for kind, make in KINDS.items():
        for name in names:
            shutil.rmtree("model", ignore_errors=True)
            shutil.copytree(DEMO, "model")
            path = os.path.join("model", name)
            if os.path.exists(path):
                os.remove(path)
            if name.endswith("index.json"):
                os.remove("model/model.safetensors")
            make(path)
            for command in (["info"], ["generate", "-n", "1", "hi", "-m"], ["tokenize", "hi", "-m"], ["hash"]):
                code, _, err = run(*command, "model")
                check(code in (0, 1), kind, name, command[0], "exit", code, err[-200:])
            code, _, err = run("split", "model", "shards", "--by-layer")
            check(code in (0, 1), kind, name, "split: exit", code, err[-200:])
            shutil.rmtree("shards", ignore_errors=True)


def test_arguments():
    """Each argument that names a file."""
    shutil.copy(os.path.join(DEMO, "model.safetensors"), "a.safetensors")
    text = [["generate", "-m", DEMO, "-n", "1", "-f"], ["tokenize", "-m", DEMO, "-f"], ["logits", "-m", DEMO, "-f"], ["json"],
            ["explain", "-m", DEMO, "-f"], ["perplexity", "-m", DEMO], ["hash", "--check"]]
    models = [["info"], ["info", "a.safetensors", "--tensor", "model.norm.weight", "--npy"], ["hash"], ["diff", "a.safetensors"],
              ["diff", "a.safetensors", "a.safetensors", "--patch"], ["edit"], ["edit", "a.safetensors", "--mask"],
              ["edit", "a.safetensors", "--patch"], ["edit", "a.safetensors", "--tensor", "model.norm.weight", "--from"],
              ["json", "--header"], ["tokenize", "hi", "-m"], ["generate", "-n", "1", "hi", "-m"], ["split", "a.safetensors"],
              ["merge", "a.safetensors"], ["logits", "-m", DEMO, "hi", "--all", "--out"], ["bench", "-m"]]
    for kind, make in KINDS.items():
        for command in text + models:
            name = f"x.{kind}"
            if os.path.lexists(name):
                shutil.rmtree(name) if kind == "folder" else os.remove(name)
            make(name)
            if kind == "device" and command[-1] in ("--npy", "--out"):
                continue  # /dev/zero takes what is written
            if kind == "terminal" and command in text:
                continue  # it was asked to read the keyboard
            code, out, err = run(*command, name)
            check(code is not None, kind, *command, "waits")
            if kind in ("pipe", "device", "folder", "socket", "loop") and command in text:
                check(code in (1, 2) and name.encode() in err and not out, kind, *command, code, err)


def test_pipes_that_are_wanted():
    """A shell's <(...) is read to its end, however late it comes; a pipe with a reader is written."""
    script = "\"$0\" tokenize -m \"$1\" -f <(sleep 0.3; printf hello; sleep 0.3; printf ' there') --json"
    bash = shutil.which("bash")
    if bash:
        out = subprocess.run([bash, "-c", script, RUN, DEMO], capture_output=True, timeout=PATIENCE).stdout
        check(out and out == run("tokenize", "-m", DEMO, "hello there", "--json")[1], "<(...)", out)
        script = "\"$0\" logits -m \"$1\" hi --all --out >(wc -c >count; mv count size); while ! test -e size; do sleep 0.1; done; cat size"
        out = subprocess.run([bash, "-c", script, RUN, DEMO], capture_output=True, timeout=PATIENCE).stdout
        check(int(out or 0) > 0, ">(...)", out)
    code, _, err = run("json", "-", text=b"[1]")
    check(code == 0, "standard input", err)
    code, _, err = run("tokenize", "-m", DEMO, "-f", "/dev/null")
    check(code in (0, 2), "/dev/null", code, err)
    with open("/dev/zero", "rb") as zero:
        p = subprocess.run([RUN, "json"], stdin=zero, capture_output=True, timeout=PATIENCE)
        check(p.returncode == 1 and b"is a device" in p.stderr, "endless standard input", p.stderr)


# ---- text that would drive a terminal -------------------------------------------------------------------------------------

EVIL = "e\x1b]0;PWNED\x07\x1b[5;99m\x9b2J\x7f\u202e\u2028\u2066\u061c\u200fx"
RAW = re.compile(b"[\x00-\x08\x0b-\x1f\x7f]|\xc2[\x80-\x9f]|\xd8\x9c|\xe2\x80[\x8e\x8f\xa8-\xae]|\xe2\x81[\xa6-\xa9]")
OURS = re.compile(rb"\x1b\[(0|1|2|[39][0-7]|4[0-7]|[34]8;5;[0-9]+)?m|\r(?=\n)|\r\x1b\[K")  # colors and progress


def is_clean(out):
    out = OURS.sub(b"", out)
    try:
        out.decode()
    except UnicodeDecodeError:
        return False
    return not RAW.search(out)


def evil_names():
    """The same as a file's name, with bytes that are not UTF-8, too."""
    return [os.fsencode(EVIL) + b"\xff\x9b.safetensors", os.fsencode(EVIL) + b".safetensors"]


def hostile_model():
    os.mkdir("model")
    for name in FILES:
        shutil.copy(os.path.join(DEMO, name), "model")
    path = "model/tokenizer.json"
    tokenizer = json.load(open(path))
    tokenizer["added_tokens"].append({"id": 2815, "content": EVIL, "special": False, "single_word": False, "lstrip": False,
                                      "rstrip": False, "normalized": False})
    write(path, tokenizer)
    return EVIL


def test_terminal():
    float_bytes = struct.pack("<4f", 1, 2, 3, 4)
    commands = []
    for i, name in enumerate(evil_names()):
        try:
            checkpoint(name, {EVIL: ("F32", [4], float_bytes), "b": ("F32", [2, 2], float_bytes)}, {EVIL: EVIL})
        except OSError:
            continue  # the file system takes no such name
        other = b"other" + name
        checkpoint(other, {EVIL: ("F32", [4], float_bytes[::-1]), EVIL + "2": ("I64", [2], float_bytes)})
        broken = b"broken" + name
        checkpoint(broken, {EVIL: (EVIL, [4], float_bytes)})
        field = b"field" + name
        text = json.dumps({EVIL: {"dtype": "F32", "shape": [4], "data_offsets": [0, 16], EVIL: 1}}).encode()
        write(field, struct.pack("<Q", len(text)) + text + float_bytes)
        folder = b"folder%d" % i + os.fsencode(EVIL)
        os.mkdir(folder)
        write(os.path.join(folder, b"model.safetensors.index.json"), {"weight_map": {EVIL: os.fsdecode(name), "x": EVIL}})
        write(os.path.join(folder, b"config.json"), {"architectures": [EVIL], "model_type": EVIL})
        lines = b"list%d" % i + os.fsencode(EVIL)
        write(lines, b"0" * 64 + b"  " + name.replace(b"\\", b"\\\\") + b"\n" + EVIL.encode() + b"\n")
        commands += [["info", f] for f in (name, other, broken, field, folder, name + b"missing")]
        commands += [["info", name, "--json"], ["info", name, "--stats"], ["info", name, "--stats", "--json"], ["info", name, "--tensor", EVIL],
                     ["info", name, "--tensor", EVIL, "--json"], ["info", name, "--at", "400"], ["info", name, "--at", "30"],
                     ["info", name, "--at", "30", "--json"], ["info", name, "--find", EVIL + "3"], ["info", name, "--tensor", EVIL + "3"],
                     ["info", name, "--tensor", "b", "--slice", EVIL], ["info", name, "--tensor", EVIL, "--npy", name],
                     ["diff", name, other], ["diff", name, other, "--json"], ["diff", name, broken], ["json", "--header", name],
                     ["json", name], ["hash", name], ["hash", name, "--json"], ["hash", "--check", lines], ["hash", "--check", lines, "--json"],
                     ["hash", "--check", name], ["edit", name, "--tensor", EVIL, "--set", "5", "--dry-run"],
                     ["edit", name, "--tensor", EVIL, "--set", EVIL], ["edit", name, "--tensor", EVIL, "--from", other, "--dry-run"],
                     ["edit", name, "--mask", other], ["edit", name, "--patch", other], ["edit", name, "--undo"],
                     ["edit", name, "--tensor", EVIL, "--set", "5"], ["edit", name, "--undo"],
                     ["split", name, name], ["split", name, b"parts" + name, "--by-layer"], ["merge", b"parts" + name, name],
                     ["generate", "-m", name, "hi"], ["tokenize", "-m", folder, "hi"], ["generate", "-m", folder, "hi"]]
    hostile_model()
    here = ["-m", "model"]
    ids = ["--ids", "2815,5"]
    commands += [["tokenize", *here, EVIL], ["tokenize", *here, EVIL, "--json"], ["tokenize", *here, *ids], ["tokenize", *here, *ids, "--json"],
                 ["logits", *here, EVIL], ["logits", *here, EVIL, "--json"], ["explain", *here, EVIL], ["explain", *here, *ids, "--json"],
                 ["perplexity", *here, *ids, "--tokens"], ["generate", *here, "-n", "2", EVIL], ["generate", *here, *ids, "-n", "2", "--json"],
                 ["generate", *here, "-n", "2", "--stop", EVIL, "hi", "--system", EVIL, "--chat"]]
    for command in ("info", "generate", "chat", "tokenize", "logits", "explain", "perplexity", "diff", "edit", "split", "merge", "json",
                    "hash", "bench"):
        commands += [[command, "--" + EVIL], [command, "-" + EVIL[1:]], [command, EVIL, EVIL, EVIL], [command, "--json=" + EVIL]]
    commands += [[EVIL], ["--" + EVIL], ["help", EVIL], ["generate", *here, "-n", EVIL], ["generate", *here, "--temperature", EVIL],
                 ["generate", *here, "-w", EVIL], ["generate", *here, "--kv", EVIL], ["generate", *here, "--ids", EVIL],
                 ["generate", *here, "-t", EVIL], ["split", "model", "x", "--max-shard-size", EVIL], ["generate", "-m", EVIL + "/" + EVIL]]
    write("evil.json", {EVIL: [EVIL]})
    write("broken.json", '{"a": ' + EVIL)
    commands += [["json", "evil.json"], ["json", "--canonical", "evil.json"], ["json", "broken.json"]]
    for command in commands:
        out = on_terminal(command)
        check(out and is_clean(out), "on a terminal:", *command, out[-300:])
        _, out, err = run(*command)
        check(is_clean(err), "standard error:", *command, err[-300:])
        if "--json" in command:
            check(is_clean(out), "JSON:", *command, out[-300:])
    for name in ("RUN_ISA", "RUN_WEIGHTS", "HF_HOME", "HF_HUB_CACHE", "TERM", "LC_ALL", "COLUMNS", "NO_COLOR"):
        for command in (["generate", *here, "-n", "1", "hi"], ["info", "owner/model"], ["bench", "-m", "owner/model"]):
            check(is_clean(on_terminal(command, **{name: EVIL})), name, *command)
    text = json.loads(run("json", "evil.json")[1])
    check(text == {EVIL: [EVIL]}, "the escaped document is the same")


# ---- 40 columns -----------------------------------------------------------------------------------------------------------

def test_narrow():
    for command in (["info", DEMO], ["explain", "-m", DEMO, "hi"]):
        out = on_terminal(command, COLUMNS="40", NO_COLOR="1").decode().replace("\r", "")
        wide = [line for line in out.split("\n") if len(line) > 40 and not line.startswith(("model.", "memory for", "bf16 gives", "weights in"))
                and "/" not in line]
        check(out and not wide, *command, wide[:5])
    out = on_terminal(["info", DEMO], COLUMNS="40", NO_COLOR="1").decode()
    check("2.3 MB" in out and "...embed_tokens.weight" in out, "the figure and the end of a name")
    line = "model.norm.weight   dtype=BF16  shape=[128]\n" + " " * 28 + "data["
    check(line in run("info", DEMO, COLUMNS="40")[1].decode(), "the two lines of a tensor")


# ---- JSON layouts ---------------------------------------------------------------------------------------------------------

def parse_layout(text):
    """'a b? c{d e} f[g] h[]' -> {name: (optional, inner)}; inner: None, "[]", "{*}" or (bracket, a dict like this)."""
    tokens = re.findall(r"[a-z_0-9]+\??|\{\*\}|\[\]|[][{}]", text)

    def members():
        out = {}
        while tokens and tokens[0] not in "]}":
            name, inner = tokens.pop(0), None
            if tokens and tokens[0] in ("{*}", "[]"):
                inner = tokens.pop(0)
            elif tokens and tokens[0] in "[{":
                bracket = tokens.pop(0)
                inner = (bracket, members())
                tokens.pop(0)
            out[name.rstrip("?")] = (name.endswith("?"), inner)
        return out
    return members()


def mismatch(value, layout, path=""):
    """What of the value is not in the layout, or the other way round; "" if nothing."""
    if list(value) != [name for name in layout if name in value]:
        return f"{path}: {list(value)}"
    for name, (optional, inner) in layout.items():
        if name not in value and not optional:
            return f"{path}.{name} is missing"
        v = value.get(name)
        if v is None:
            continue
        if isinstance(v, dict) != (inner == "{*}" or bool(inner) and inner[0] == "{") or isinstance(v, list) != (bool(inner) and inner[0] == "["):
            return f"{path}.{name} is {type(v)}"
        if isinstance(inner, tuple):
            for item in v if inner[0] == "[" else [v]:
                wrong = mismatch(item, inner[1], path + "." + name)
                if wrong:
                    return wrong
    return ""


def test_layouts():
    global skipped
    rows = re.findall(r"^\| `([a-z][^`]*)` \| `([^`]*)` \|$", open(LAYOUTS).read().partition("# JSON layouts")[2], re.M)
    if not rows:
        skipped += 1
        print("outside: skipped: no table of JSON layouts in", LAYOUTS)
        return
    layouts = {command: parse_layout(text) for command, text in rows}
    shutil.copy(os.path.join(DEMO, "model.safetensors"), "one.safetensors")
    shutil.copy("one.safetensors", "two.safetensors")
    run("edit", "two.safetensors", "--tensor", "model.norm.weight", "--set", "1")
    run("diff", "one.safetensors", "two.safetensors", "--patch", "patch.safetensors")
    checkpoint("mask.safetensors", {"model.norm.weight": ("BOOL", [128], bytes(128))})
    checkpoint("ints.safetensors", {"a": ("I64", [2], bytes(15) + b"\x80"), "b": ("F32", [0, 3], b"")})
    write("list", run("hash", "one.safetensors")[1])
    write("text", "Once upon a time")
    demo = ["-m", DEMO]
    norm = ["info", "one.safetensors", "--tensor", "model.norm.weight"]
    commands = {
        "info FILE": [["info", "one.safetensors"], ["info", "ints.safetensors"]],
        "info FOLDER": [["info", DEMO], ["info", "empty"]],
        "info --stats": [["info", "ints.safetensors", "--stats"]],
        "info --tensor": [norm, ["info", "ints.safetensors", "--tensor", "b"]],
        "info --tensor --stats": [[*norm, "--stats"], ["info", "ints.safetensors", "--tensor", "b", "--stats"]],
        "info --at": [["info", "one.safetensors", "--at", n] for n in ("3", "30", "9999")],
        "generate": [["generate", *demo, "hi", "-n", "3"], ["generate", *demo, "--ids", "5", "-n", "1"]],
        "tokenize": [["tokenize", *demo, "hi"]], "tokenize --ids": [["tokenize", *demo, "--ids", "1,2"]],
        "logits": [["logits", *demo, "hi"]], "explain": [["explain", *demo, "hi"]], "perplexity": [["perplexity", *demo, "text"]],
        "perplexity --tokens": [["perplexity", *demo, "text", "--tokens"]],
        "diff": [["diff", "one.safetensors", "two.safetensors"], ["diff", "one.safetensors", "ints.safetensors"]],
        "edit --tensor": [["edit", "one.safetensors", "--tensor", "model.norm.weight", "--set", "1", "--dry-run"]],
        "edit --mask": [["edit", "one.safetensors", "--mask", "mask.safetensors", "--dry-run"]],
        "edit --patch": [["edit", "one.safetensors", "--patch", "patch.safetensors", "--dry-run"]],
        "edit --undo": [["edit", "two.safetensors", "--undo"]],
        "split": [["split", DEMO, "parts", "--by-layer"]], "merge": [["merge", "parts", "merged.safetensors"]],
        "hash": [["hash", "one.safetensors"], ["hash", DEMO]], "hash --check": [["hash", "--check", "list"]],
        "bench": [["bench", *demo, "-p", "8", "-n", "4", "-r", "1"], ["bench", *demo, "-p", "0", "-n", "0", "-r", "1"]],
    }
    os.mkdir("empty")
    shutil.copy("one.safetensors", "empty/model.safetensors")
    check(list(layouts) == list(commands), "commands:", set(layouts) ^ set(commands))
    for name, cases in commands.items():
        for case in cases:
            code, out, err = run(*case, "--json")
            check(code in (0, 1) and out, *case, code, err)
            wrong = mismatch(json.loads(out), layouts.get(name, {})) if out else "no document"
            check(not wrong, *case, wrong)


def main():
    for name, test in list(globals().items()):
        if not name.startswith("test_") or (sys.argv[1:] and not any(word in name for word in sys.argv[1:])):
            continue
        work = tempfile.mkdtemp(prefix="outside-test-")
        os.chdir(work)
        try:
            test()
        finally:
            os.chdir("/")
            shutil.rmtree(work, ignore_errors=True)
    print(f"outside: {passed} passed, {failed} failed, {skipped} skipped")
    sys.exit(1 if failed else 0)


os.environ.pop("COLUMNS", None)
main()

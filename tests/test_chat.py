"""run chat as its users meet it: through pipes, and on pseudo-terminals whose screen is kept as a terminal would.

RUN names the program (./run). Usage: tests/test_chat.py [WORD...], only the tests whose name has one of the words. Each function
below that begins with test_ is one test; check() counts.
"""
import fcntl
import json
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
import unicodedata

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
RUN = os.path.abspath(os.environ.get("RUN", os.path.join(ROOT, "run")))
DEMO = os.path.join(ROOT, "tests", "demo")
WORK = tempfile.mkdtemp(prefix="chat-test-")
ENDLESS, DRIVING = os.path.join(WORK, "endless"), os.path.join(WORK, "driving")
PATIENCE = 60  # seconds until something that must come is missing
FRANCE, COW = "What is the capital of France?", "And what does a cow say?"
UP, DOWN, RIGHT, LEFT, HOME, END, DELETE = (b"\033[" + k for k in (b"A", b"B", b"C", b"D", b"H", b"F", b"3~"))
passed = failed = skipped = 0

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's job in the background begins with both ignored
signal.signal(signal.SIGQUIT, signal.SIG_DFL)


def check(condition, *what):
    global passed, failed
    if condition:
        passed += 1
    else:
        failed += 1
        frame = sys._getframe(1)
        print(f"{frame.f_code.co_name}:{frame.f_lineno}: failed:", *what)
    return condition


def skip(what):
    global skipped
    skipped += 1
    print("skipped:", what)


def environment(**changes):
    env = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "HF_HOME", "HF_HUB_CACHE", "LINES", "COLUMNS")}
    env.update({"TERM": "xterm", "HOME": WORK}, **changes)
    return env


# ---- models -----------------------------------------------------------------------------------------------------------

def rows_changed(folder, change, **config):
    """The demo model in a folder of its own, its embedding (which is the head, too) changed: change(row) -> bytearray of BF16."""
    os.mkdir(folder)
    for name in ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(os.path.join(DEMO, name), folder)
    with open(os.path.join(folder, "config.json"), "r+") as f:
        text = json.dumps({**json.load(f), **config})
        f.seek(0)
        f.truncate()
        f.write(text)
    data = bytearray(open(os.path.join(DEMO, "model.safetensors"), "rb").read())
    length = struct.unpack("<Q", data[:8])[0]
    begin = 8 + length + json.loads(data[8:8 + length])["model.embed_tokens.weight"]["data_offsets"][0]
    width = 2 * 128

    def row(i):
        return slice(begin + i * width, begin + (i + 1) * width)
    change(data, row)
    with open(os.path.join(folder, "model.safetensors"), "wb") as f:
        f.write(data)


def make_models():
    def never_ends(data, row):
        for i in (2813, 2815):
            data[row(i)] = bytes(256)
    rows_changed(ENDLESS, never_ends, max_position_embeddings=4000000)

    vocabulary = json.load(open(os.path.join(DEMO, "tokenizer.json")))["model"]["vocab"]
    the, escape = vocabulary["The"], vocabulary["\u011b"]  # byte 0x1b as byte-level BPE writes it

    def begins_with_escape(data, row):  # twice the row of "The": wherever that is the likeliest, escape is likelier
        double = bytearray(data[row(the)])
        for i in range(0, len(double), 2):
            value = struct.unpack_from("<H", double, i)[0]
            struct.pack_into("<H", double, i, value + 0x80 if value & 0x7f80 else 0)
        data[row(escape)] = double
    rows_changed(DRIVING, begins_with_escape)


# ---- pipes ------------------------------------------------------------------------------------------------------------

def piped(text, *options, model=DEMO, program="chat"):
    """Exit code, standard output and standard error of a run that reads text."""
    if not isinstance(text, bytes):
        text = text.encode()
    done = subprocess.run([RUN, program, "-m", model, *options], input=text, capture_output=True, timeout=PATIENCE,
                          env=environment(), cwd=WORK)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def saved(name):
    with open(os.path.join(WORK, name), encoding="utf-8") as f:
        return json.load(f)


def save(name, exchanges, system=None):
    messages = [{"role": role, "content": text} for e in exchanges for role, text in zip(("user", "assistant"), e)]
    with open(os.path.join(WORK, name), "w", encoding="utf-8") as f:
        json.dump({"system": system, "messages": messages}, f)


def exchanges_of(name):
    texts = [m["content"] for m in saved(name)["messages"]]
    return list(zip(texts[::2], texts[1::2]))


def tokens_of(stderr):
    """/tokens: {name of the row: numbers}."""
    return {line.split()[0]: [int(n) for n in re.findall(r"\d+", line[9:])] for line in stderr.splitlines()
            if re.match(r"(system|context|\d)", line)}


def test_piped():
    code, out, err = piped(f"{FRANCE}\n\n{COW}\n法国的首都是哪里？\r\n{FRANCE}", "--greedy", "-q")
    check(out == "The capital of France is Paris.\nA cow says moo.\n法国的首都是巴黎。\nThe capital of France is Paris.\n", repr(out))
    check((code, err) == (0, ""), code, err)
    check(piped("", "-q") == (0, "", ""))
    folder = os.open(WORK, os.O_RDONLY)
    done = subprocess.run([RUN, "chat", "-m", DEMO, "-q"], stdin=folder, capture_output=True, env=environment())
    os.close(folder)
    check(done.returncode == 1 and done.stderr.startswith(b"run chat: standard input: "), done)
    code, out, err = piped(f"{FRANCE}\n", "--greedy")
    check(err == "", "no statistics off a terminal", err)
    check(piped(f"/exit\n{FRANCE}\n", "-q") == (0, "", ""))
    demo = subprocess.run([RUN, "chat", "--greedy"], input=FRANCE.encode(), capture_output=True, env=environment(), cwd=WORK)
    check(demo.stdout == b"The capital of France is Paris.\n" and b"demo model" in demo.stderr, demo)
    code, out, err = piped("a\\\nb\n/save --force c.json\n", "--greedy", "-q", "-n", "1")
    check([q for q, a in exchanges_of("c.json")] == ["a\\", "b"], "a line is a turn, whatever it ends in")


def test_whole_conversation_anew():
    """The cache between turns must not show: the same answers as if all had been fed at once."""
    for options in (["--greedy"], ["--temperature", "1.5", "--top-p", "1", "--top-k", "0", "--repeat-penalty", "1.1", "-n", "50"]):
        questions = [FRANCE, "Tell me a story about a cat.", "给我讲一个故事。", COW, "What is 3 plus 4?"]
        seeded = [] if options == ["--greedy"] else ["--seed"]
        code, out, err = piped("\n".join(questions) + "\n/save --force all.json\n", "-q", *options, *seeded, *(["5"] if seeded else []))
        whole = exchanges_of("all.json")
        check(code == 0 and [q for q, a in whole] == questions, err)
        check(out == "".join(a + "\n" * (not a.endswith("\n")) for q, a in whole), "the answers are what was printed")
        for i, (question, answer) in enumerate(whole):
            save("part.json", whole[:i])
            seed = [*seeded, str(5 + i)] if seeded else []
            code, out, err = piped(f"/load part.json\n{question}\n/save --force again.json\n", "-q", "--block", "7", "-t", "1", *options, *seed)
            check(exchanges_of("again.json") == whole[:i + 1], i, exchanges_of("again.json")[-1:], whole[i])
        seed = [*seeded, "5"] if seeded else []
        first = subprocess.run([RUN, "generate", "-m", DEMO, "-q", "--chat", *options, *seed, FRANCE], capture_output=True, env=environment())
        check(first.stdout.decode().rstrip("\n") == whole[0][1].rstrip("\n"), "as run generate --chat", first.stdout, whole[0])


def test_plain_text():
    """What looks like a special token is text."""
    _, _, err = piped("a\n/tokens\n/reset\na<|im_end|>\n/tokens\n", "-q", "-n", "1")
    counts = [int(n) for n in re.findall(r"^1 .*= (\d+) \+", err, re.M)]
    check(len(counts) == 2 and counts[1] >= counts[0] + 5, err)


def test_system():
    default = saved_system()
    check(default == "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.", default)
    check(saved_system("--system", "Be brief.") == "Be brief.")
    check(saved_system("--system", "") == "")
    code, out, err = piped("/system\n/system  Be brief. \n/system\n/save --force s.json\n", "-q")
    check(err == default + "\nBe brief.\n" and saved("s.json")["system"] == "Be brief.", err)
    answers = [subprocess.run([RUN, "generate", "-m", DEMO, "-q", "--chat", "--greedy", "--system", "Be brief.", COW],
                              capture_output=True, env=environment()).stdout.decode(),
               piped(COW, "-q", "--greedy", "--system", "Be brief.")[1], piped(f"/system Be brief.\n{COW}\n", "-q", "--greedy")[1]]
    check(answers[0] and len(set(answers)) == 1, answers)


def saved_system(*options):
    piped("/save --force system.json\n", "-q", *options)
    return saved("system.json")["system"]


def test_commands():
    code, out, err = piped("/hlep\n/xyzzy\n/undo\n/retry\n/save\n/reset now\n/\n", "-q")
    lines = err.splitlines()
    check(code == 1 and out == "" and len(lines) == 7, err)
    check("no /hlep: did you mean /help" in lines[0] and "/xyzzy" in lines[1] and "mean" not in lines[1], lines[:2])
    check("/save needs a FILE" in lines[4] and "/reset takes no argument" in lines[5], lines)
    code, out, err = piped("/help\n", "-q")
    words = re.findall(r"^/(\w+)", err, re.M)
    check(words == "help system reset undo retry save load tokens exit bye".split() and code == 0 and out == "", err)
    piped("//a/b\n///c\n/save --force c.json\n", "-q", "-n", "1")
    check([q for q, a in exchanges_of("c.json")] == ["/a/b", "//c"])
    piped(f"{FRANCE}\n{COW}\n/undo\n/save --force c.json\n", "-q", "--greedy")
    check(exchanges_of("c.json") == [(FRANCE, "The capital of France is Paris.")])
    code, out, err = piped(f"{FRANCE}\n/reset\n/tokens\n{COW}\n", "-q", "--greedy")
    check(out.endswith("A cow says moo.\n") and tokens_of(err)["context"][0] == tokens_of(err)["system"][0], out, err)
    story = ["--seed", "3", "--temperature", "1.5", "--top-k", "0", "--top-p", "1", "-q"]
    code, out, err = piped("Tell me a story.\n/retry\n/save --force c.json\n", *story)
    first, second = out.split("\n", 1)
    check(first != second.rstrip("\n") and [(q, a.rstrip("\n")) for q, a in exchanges_of("c.json")] == [("Tell me a story.", second.rstrip("\n"))], out)
    check(piped("Tell me a story.\n/retry\n", *story)[1] == out, "the same seed, the same answers")
    check(piped("Tell me a story.\n", *story, "--seed", "4")[1] == second, "retry: the next seed")
    check(piped("", "--json")[0] == 2 and piped("", "--temperature", "x")[0] == 2 and piped("", "extra")[0] == 2)


def test_files():
    strange = 'tab\t "quote" \\ 猫 \u2028 \u0001 end'
    save("strange.json", [(strange, "yes"), ("", "")], "sys\ntem")
    code, out, err = piped("/load strange.json\n/save --force copy.json\n", "-q")
    check(code == 0 and saved("copy.json") == saved("strange.json"), err)
    with open(os.path.join(WORK, "other.json"), "w") as f:  # as other programs write it
        json.dump({"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}, {"role": "assistant", "content": "A"}]}, f)
    piped("/load other.json\n/save --force copy.json\n", "-q")
    check(saved("copy.json")["system"] == "S" and exchanges_of("copy.json") == [("U", "A")])
    before = sorted(os.listdir(WORK))
    bad = ["{", "[]", "{}", '{"messages": 1}', '{"messages": [1]}', '{"messages": [{"role": "user", "content": "x"}]}',
           '{"messages": [{"role": "assistant", "content": "x"}]}', '{"messages": [{"role": "user", "content": 1}]}',
           '{"messages": [], "system": 3}', '{"messages": [{"role": "system", "content": null}, {"role": "user"}]}', "", "\0"]
    for text in bad:
        with open(os.path.join(WORK, "bad.json"), "w") as f:
            f.write(text)
        code, out, err = piped(f"{FRANCE}\n/load bad.json\n/save --force kept.json\n", "-q", "--greedy")
        check(code == 1 and err.count("\n") == 1 and "bad.json: not a saved conversation" in err, text, err)
        check(exchanges_of("kept.json") == [(FRANCE, "The capital of France is Paris.")], text)
    code, out, err = piped("/load missing.json\n/save no/where.json\n/save .\n", "-q")
    check(code == 1 and err.count("\n") == 3 and "missing.json" in err and "no/where.json" in err, err)
    check(sorted(os.listdir(WORK)) == sorted(before + ["bad.json", "kept.json"]), "nothing else is left behind", os.listdir(WORK))


def test_context():
    questions = [f"What is {i} plus 2?" for i in range(1, 8)]
    code, out, err = piped("\n".join(questions) + "\n/tokens\n/save --force c.json\n", "-q", "--greedy", "--ctx", "90")
    rows = tokens_of(err)
    check(code == 0 and "full" in err and rows["context"][0] <= 90 == rows["context"][1], err)
    check(len(exchanges_of("c.json")) == 7, "the whole conversation is saved")
    dropped = int(re.findall(r"no longer sees the first (\d+)", err)[-1])
    save("rest.json", exchanges_of("c.json")[dropped:6])
    check(piped(f"/load rest.json\n{questions[6]}\n", "-q", "--greedy", "--ctx", "90")[1] == out.splitlines()[6] + "\n", "as if the oldest had not been")
    # an answer that runs into the end goes on behind fewer exchanges; Chinese characters are not cut in two
    for ctx in range(100, 116):
        code, out, err = piped(f"{FRANCE}\n{COW}\n给我讲一个小猫的故事。\n/tokens\n", "-q", "--greedy", "--ctx", str(ctx), "-n", "45")
        check(code == 0 and "\ufffd" not in out and "no longer sees" in err and "ends here" not in err, ctx, out, err)
    # nothing to leave out
    code, out, err = piped("Tell me a story about a cat.\n/tokens\n" + FRANCE + "\n", "-q", "--greedy", "--ctx", "70")
    check(code == 0 and "ends here" in err and out.endswith("The capital of France is Paris.\n"), out, err)
    check(70 <= tokens_of(err)["context"][0] <= 75, err)
    # a question that is too long: said, taken back, and on it goes
    code, out, err = piped(f"{FRANCE}\n{'word ' * 200}\n{COW}\n/save --force c.json\n", "-q", "--greedy", "--ctx", "100")
    check(code == 1 and out == "The capital of France is Paris.\nA cow says moo.\n", out)
    check(re.search(r"has \d+ tokens with the system text, but the context holds only 100", err) and "full" not in err, err)
    check(len(exchanges_of("c.json")) == 2)


def cpu_ticks(pid):
    with open(f"/proc/{pid}/stat") as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])


def test_pipe_signals():
    def start(*options, model=DEMO):
        return subprocess.Popen([RUN, "chat", "-m", model, "-q", "--greedy", *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, env=environment())
    p = start()
    p.stdin.write(FRANCE.encode() + b"\n")
    p.stdin.flush()
    check(p.stdout.readline() == b"The capital of France is Paris.\n", "an answer comes before the next question is there")
    if os.path.exists(f"/proc/{p.pid}/stat"):
        time.sleep(0.3)
        before = cpu_ticks(p.pid)
        time.sleep(1)
        check(cpu_ticks(p.pid) - before <= 2, "an idle chat uses no CPU", cpu_ticks(p.pid) - before)
    p.send_signal(signal.SIGINT)
    out, err = p.communicate(timeout=PATIENCE)
    check((p.returncode, out, err) == (130, b"", b""), p.returncode, out, err)
    p = start(model=ENDLESS)
    p.stdin.write(b"Tell me a story.\nAnother one.\n")
    p.stdin.flush()
    first = p.stdout.read(20)
    p.send_signal(signal.SIGINT)
    out, err = p.communicate(timeout=PATIENCE)
    check(p.returncode == 130 and len(first) == 20 and out.endswith(b"\n"), p.returncode, out[-100:], err)
    if os.path.exists("/dev/full"):
        with open("/dev/full", "wb") as full:
            done = subprocess.run([RUN, "chat", "-m", DEMO, "-q"], input=FRANCE.encode(), stdout=full, stderr=subprocess.PIPE, env=environment())
        check(done.returncode == 1 and done.stderr.count(b"\n") == 1 and b"standard output" in done.stderr, done)
    p = start(model=ENDLESS)
    p.stdout.close()
    p.stdin.write(b"Tell me a story.\n")
    p.stdin.close()
    check(p.wait(PATIENCE) == -signal.SIGPIPE, p.returncode)
    p.stderr.close()


# ---- a terminal -------------------------------------------------------------------------------------------------------

class Screen:
    """What a terminal shows: rows of cells, a wide character in the first of two; rows wrapped by itself are marked."""

    def __init__(self, columns=80, lines=24):
        self.columns, self.lines = columns, lines
        self.rows, self.soft = [[""] * columns], [False]
        self.row = self.column = self.top = 0
        self.pending, self.modes, self.unknown, self.rest = False, set(), [], ""

    def down(self):
        self.row += 1
        if self.row == len(self.rows):
            self.rows.append([""] * self.columns)
            self.soft.append(False)
        self.top = max(self.top, self.row - self.lines + 1)

    def character(self, c):
        width = 0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        if width == 0:
            at = self.column if self.pending else self.column - 1
            while at > 0 and self.rows[self.row][at] is None:
                at -= 1
            self.rows[self.row][at] += c
            return
        if self.pending or self.column + width > self.columns:
            self.soft[self.row] = True
            self.down()
            self.column = 0
        self.rows[self.row][self.column:self.column + width] = [c] + [None] * (width - 1)
        self.column += width
        self.pending = self.column == self.columns
        self.column -= self.pending

    def escape(self, parameters, final):
        n = int(parameters or 0) if parameters.isdigit() or not parameters else 0
        row = self.rows[self.row]
        self.pending = self.pending and final in "hlm"
        if final == "A":
            self.row = max(self.top, self.row - max(n, 1))
        elif final == "C":
            self.column = min(self.columns - 1, self.column + max(n, 1))
        elif final == "K" and n == 0:
            row[self.column:] = [""] * (self.columns - self.column)
        elif final == "J" and n == 0:
            row[self.column:] = [""] * (self.columns - self.column)
            self.soft[self.row] = False
            del self.rows[self.row + 1:], self.soft[self.row + 1:]
        elif final == "J" and n == 2:
            self.rows += [[""] * self.columns for _ in range(self.lines)]
            self.soft += [False] * self.lines
            self.top, self.row = len(self.rows) - self.lines, len(self.rows) - self.lines
        elif final == "H":
            self.row, self.column = self.top, 0
        elif final in "hl" and parameters.startswith("?"):
            (self.modes.add if final == "h" else self.modes.discard)(parameters)
        elif final != "m":
            self.unknown.append(parameters + final)

    def feed(self, text):
        text = self.rest + text
        self.rest = re.search(r"(\033(\[[0-9;?]*)?)?$", text).group()
        text = text[:len(text) - len(self.rest)]
        for control, parameters, final, c in re.findall(r"(\033\[([0-9;?]*)([@-~]))|([\s\S])", text):
            if control:
                self.escape(parameters, final)
            elif c == "\r":
                self.column, self.pending = 0, False
            elif c == "\n":
                self.down()
                self.pending = False
            elif c == "\b":
                self.column, self.pending = max(0, self.column - 1), False
            elif c == "\t":
                self.column = min(self.columns - 1, self.column // 8 * 8 + 8)
            elif c >= " ":
                self.character(c)
            elif c != "\a":
                self.unknown.append(c)

    def resize(self, columns, lines):
        """As most terminals do: rows that are too long are broken."""
        rows, soft, row, column = [], [], 0, self.column
        for i, cells in enumerate(self.rows):
            used = max([j + 1 for j, c in enumerate(cells) if c != ""] + [1])
            pieces = [cells[j:min(j + columns, used)] for j in range(0, used, columns)]
            if i == self.row:
                row, column = len(rows) + self.column // columns, self.column % columns
                pieces += [[] for _ in range(self.column // columns + 1 - len(pieces))]
            rows += [p + [""] * (columns - len(p)) for p in pieces]
            soft += [True] * (len(pieces) - 1) + [False]
        self.rows, self.soft, self.row, self.column, self.pending = rows, soft, row, column, False
        self.columns, self.lines, self.top = columns, lines, max(0, len(rows) - lines)

    def text(self):
        return ["".join(c or ("" if c is None else " ") for c in row).rstrip() for row in self.rows]


class Terminal:
    """run chat on a pseudo-terminal, started by something like a shell when its job control is wanted."""

    def __init__(self, *options, model=DEMO, columns=80, lines=24, jobs=False, quiet=True, stdout=None, stderr=None, env=None, wait=True, ignore=()):
        self.master, self.slave = pty.openpty()
        self.screen, self.output = Screen(columns, lines), ""
        self.size(columns, lines)
        self.before = termios.tcgetattr(self.slave)
        self.before[3] |= termios.NOFLSH  # or else the system drops what was printed but not yet read at each Ctrl-C
        termios.tcsetattr(self.slave, termios.TCSANOW, self.before)
        command = [RUN, "chat", "-m", model, *(["-q"] if quiet else []), *options]
        env = environment(**(env or {}))
        self.commands, self.reports = os.pipe(), os.pipe()
        self.child = os.fork()
        if self.child == 0:
            try:
                for signal_number in (signal.SIGINT, signal.SIGPIPE):
                    signal.signal(signal_number, signal.SIG_DFL)
                for signal_number in ignore:
                    signal.signal(signal_number, signal.SIG_IGN)
                os.setsid()
                fcntl.ioctl(self.slave, termios.TIOCSCTTY, 0)
                for fd, other in ((0, None), (1, stdout), (2, stderr)):
                    os.dup2(self.slave if other is None else other, fd)
                if jobs:
                    os._exit(self.shell(command, env))
                os.chdir(WORK)
                os.closerange(3, 256)
                os.execve(RUN, command, env)
            finally:
                os._exit(127)
        self.pid, self.code = self.child, None
        if jobs:
            self.pid = int(self.report() or self.child)
        if wait:
            self.expect("> ")

    def shell(self, command, env):
        """Runs the job in the foreground; tells what becomes of it, and continues it on request."""
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        pid = os.fork()
        if pid == 0:
            os.setpgid(0, 0)
            os.tcsetpgrp(0, os.getpid())
            signal.signal(signal.SIGTTOU, signal.SIG_DFL)
            os.chdir(WORK)
            os.closerange(3, 256)
            os.execve(RUN, command, env)
        os.write(self.reports[1], b"%d\n" % pid)
        while True:
            _, status = os.waitpid(pid, os.WUNTRACED)
            os.tcsetpgrp(0, os.getpgrp())
            if not os.WIFSTOPPED(status):
                return os.waitstatus_to_exitcode(status) & 0xff
            os.write(self.reports[1], b"stopped\n")
            os.read(self.commands[0], 1)
            os.tcsetpgrp(0, pid)
            os.kill(pid, signal.SIGCONT)

    def report(self):
        """The shell's next word about its job; what there is of it if the shell ends or says nothing."""
        line, end = b"", time.time() + PATIENCE
        while not line.endswith(b"\n") and time.time() < end:
            if select.select([self.reports[0]], [], [], 0.02)[0]:
                line += os.read(self.reports[0], 1)
            elif not self.read(0) and self.gone():
                break
        return line.decode().strip()

    def size(self, columns, lines):
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def resize(self, columns, lines):
        self.settle()
        since = len(self.output)
        self.screen.resize(columns, lines)
        self.size(columns, lines)
        self.until(lambda: len(self.output) > since, "painted anew")

    def send(self, keys):
        keys = keys if isinstance(keys, bytes) else keys.encode()
        while keys:
            sent = os.write(self.master, keys[:1000])
            keys = keys[sent:]
            if keys:
                self.read(0.01)

    def read(self, seconds):
        """Whatever comes within that time; False: nothing."""
        if not select.select([self.master], [], [], seconds)[0]:
            return False
        raw = getattr(self, "raw", b"") + os.read(self.master, 65536)
        end = len(raw)
        while end and end > len(raw) - 4 and raw[end - 1] >= 0x80:  # a character that is not whole yet
            end -= 1
            if raw[end] >= 0xc0:
                break
        try:
            raw.decode()
            end = len(raw)
        except UnicodeDecodeError:
            pass
        self.raw, text = raw[end:], raw[:end].decode(errors="replace")
        self.output += text
        self.screen.feed(text)
        return True

    def expect(self, text, since=0):
        """Waits until text is in what came after position `since` of the output."""
        end = time.time() + PATIENCE
        while text not in self.output[since:]:
            if time.time() > end or (not self.read(0.05) and self.gone()):
                check(False, "missing", repr(text), "in", repr(self.output[since:][-500:]))
                return False
        return True

    def settle(self, seconds=0.05):
        while self.read(seconds):
            pass

    def until(self, condition, *what):
        end = time.time() + PATIENCE / 10
        while not condition() and time.time() < end:
            self.read(0.02)
        return check(condition(), sys._getframe(1).f_code.co_name, *what)

    def line(self, keys, begin="\033[?2004h"):
        """Types keys and Return, and waits for the next prompt, before which begin comes. Returns what came."""
        since = len(self.output)
        self.send(keys if isinstance(keys, bytes) else keys.encode())
        self.send(b"\r")
        if self.expect(begin, since):
            self.expect("> ", self.output.index(begin, since))
        return self.output[since:]

    def raw_mode(self):
        return not termios.tcgetattr(self.slave)[3] & termios.ICANON

    def gone(self):
        if self.code is None:
            pid, status = os.waitpid(self.child, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
        return self.code is not None

    def close(self, code=0):
        """Waits for the end; the terminal must be as it was."""
        end = time.time() + PATIENCE
        while not self.gone():
            self.read(0.02)
            if time.time() > end:
                os.kill(self.child, signal.SIGKILL)
        self.settle(0.02)
        name = sys._getframe(1).f_code.co_name
        check(self.code == code, name, "exit", self.code, "expected", code, repr(self.output[-300:]))
        check(termios.tcgetattr(self.slave) == self.before, name, "the terminal is as before")
        check(not self.screen.modes, name, "modes left on", self.screen.modes)
        check(not self.screen.unknown, name, "unknown sequences", self.screen.unknown)
        for fd in (self.master, self.slave, *self.commands, *self.reports):
            os.close(fd)
        return self.output


def test_dialogue():
    t = Terminal("--greedy")
    check(t.raw_mode() and "?2004" in "".join(t.screen.modes), "raw while editing")
    t.line(FRANCE)
    t.line(COW)
    check(t.screen.text() == ["> " + FRANCE, "The capital of France is Paris.", "> " + COW, "A cow says moo.", ">"], t.screen.text())
    t.line("")
    t.send(b"\x04")
    t.close()
    t = Terminal()
    t.send("/exit\r")
    t.close()
    t = Terminal("--greedy", quiet=False)
    check("/help" in t.output)
    out = t.line(FRANCE)
    check(re.search(r"\d+ tokens, [\d.]+ tok/s; prompt 38, 38 of them new; context 50 of 512", out), out)
    out = t.line(COW)
    new = re.search(r"prompt (\d+), (\d+) of them new", out)
    check(new and int(new[1]) > 60 and int(new[2]) < 30, "only new ids are read", out)
    out = t.line("/retry")
    check("prompt" in out and re.search(r"prompt (\d+), [01] of them new", out), out)
    t.send(b"\x04")
    t.close()


def test_editing():
    """Keys and the message that they make."""
    cases = [
        ("abc", "abc"), (b"abc" + LEFT + LEFT + b"X", "aXbc"), (b"abc\x01X\x05Y", "XabcY"), (b"abc" + HOME + b"X" + END + b"Y", "XabcY"),
        (b"ac\x02b", "abc"), (b"ab\x02\x02\x06X", "aXb"), ("a👨‍👩‍👧\x7fb", "ab"), ("a👍🏽\x7fb", "ab"), ("🇫🇷🇩🇪\x7fb", "🇫🇷b"), ("❤️\x7fb", "b"), (b"abcd\x02\x02\x0b", "ab"), (b"abcd\x02\x02\x15", "cd"),
        (b"one two  \x17X", "one X"), (b"one two\x17\x01\x19 ", "two one "), (b"abcd\x02\x02\x0b\x01\x19", "cdab"),
        (b"abc\x7f\x08X", "aX"), (b"abc\x01\x04" + DELETE + b"X", "Xc"), (b"a\033[1~b\033[4~c\033[7~d\033[8~e", "dbace"), (b"\033OC\033ODab\033OHc\033OFd", "cabd"),
        ("猫和狗".encode() + LEFT + LEFT + "咪".encode() + RIGHT + b"\x7f", "猫咪狗"), ("你好世界".encode() + b"\x02\x7f" + HOME + DELETE, "好界"),
        ("法国的首都是哪里".encode() + LEFT * 5 + "（巴黎）".encode() + END + "？".encode(), "法国的（巴黎）首都是哪里？"),
        ("e\u0301a".encode() + LEFT + b"\x7fx", "xa"), ("xe\u0301".encode() + LEFT + b"y", "xye\u0301"), ("\U0001f600a".encode() + LEFT + b"\x7f", "a"),
        (b"a\xffb\xe4\xbdc", "a\ufffdb\ufffdc"), (b"a\tb", "a\tb"), (b"a\033[15~\033[1;2P\x1d\x0e\x16b", "ab"),
        (b"one\\\rtwo", "one\ntwo"), (b"one\\\r\\\rthree" + UP + b"2", "one\n2\nthree"), (b"one\\\rtwo" + UP + b"X", "oneX\ntwo"), (b"one\\\rtwo\x01\x7f", "onetwo"),
        (b"one\\\rtwo" + UP + b"\x0b", "onetwo"), (b"one\\\rtwo\x15X", "one\nX"), (b"ab\\\rcd" + UP + LEFT + DOWN + b"X", "ab\ncXd"),
        (b"\033[200~one\rtwo\r\nthree\t\x07\033[201~four", "one\ntwo\nthree\tfour"), (b"a\x02\033[200~x\ny\033[201~z", "x\nyza"),
        (b"/\033[200~/exit\r/exit\033[201~", "/exit\n/exit"), ("\033[200~" + "很长的文字 " * 60 + "\033[201~!", "很长的文字 " * 60 + "!"),
    ]
    t = Terminal("--greedy", "-n", "1")
    for keys, message in cases:
        t.line(keys)
    t.line("/save --force edits.json")
    t.send(b"\x04")
    t.close()
    got = [q for q, a in exchanges_of("edits.json")]
    check(len(got) == len(cases), got)
    for (keys, message), question in zip(cases, got):
        check(question == message, repr(keys), repr(question), "expected", repr(message))
    t = Terminal("--greedy", "-n", "1")
    for byte in "猫".encode():  # a character that comes byte after byte
        t.send(bytes([byte]))
        time.sleep(0.01)
    t.line("")
    t.send(b"\033")  # a lone escape does not swallow what is typed later
    t.settle(0.3)
    t.line("x")
    t.line("/save --force edits.json")
    t.send(b"\x04")
    t.close()
    check([q for q, a in exchanges_of("edits.json")] == ["猫", "x"], exchanges_of("edits.json"))


def test_history():
    t = Terminal("--greedy", "-n", "1")
    for keys in ("one", "two", "two", "thr\\\ree", UP * 3 + b"!", UP + UP + UP + UP + UP + UP + DOWN + b"?", b"draft" + UP + UP + DOWN * 4 + b"s", UP + b"\x03",):
        if keys.endswith(b"\x03" if isinstance(keys, bytes) else "\x03"):
            t.send(keys)
            t.settle()
        else:
            t.line(keys)
    t.line("/save --force h.json")
    t.send(b"\x04")
    t.close()
    got = [q for q, a in exchanges_of("h.json")]
    check(got == ["one", "two", "two", "thr\nee", "two!", "two?", "drafts"], got)


def shows(t, rows, cursor, what):
    """The last rows of the screen, and where the cursor is in them, must become these."""
    def now():
        text = t.screen.text()
        while text and not text[-1] and len(text) - 1 > t.screen.row:
            text.pop()
        return text[-len(rows):], (t.screen.row - (len(text) - len(rows)), t.screen.column)
    if not t.until(lambda: now() == (rows, cursor), what):
        print("   ", now(), "expected", rows, cursor)


def test_screen():
    t = Terminal("-n", "1", columns=20, lines=6)
    t.send("abc")
    shows(t, ["> abc"], (0, 5), "plain")
    t.send(LEFT + "猫".encode())
    shows(t, ["> ab猫c"], (0, 6), "wide")
    t.send(b"\x7f" + RIGHT + "defghijklmnopqr".encode())
    shows(t, ["> abcdefghijklmnopqr", ""], (1, 0), "a full row")
    t.send("st")
    shows(t, ["> abcdefghijklmnopqr", "st"], (1, 2), "wrapped")
    t.send(LEFT * 3)
    shows(t, ["> abcdefghijklmnopqr", "st"], (0, 19), "back to the row above")
    t.send("国".encode())
    shows(t, ["> abcdefghijklmnopq", "国rst"], (1, 2), "a wide character that does not fit")
    t.send(b"\x01" + "好".encode())
    shows(t, ["> 好abcdefghijklmnop", "q国rst"], (0, 4), "inserted at the beginning")
    t.send(b"\x03")
    shows(t, ["> 好abcdefghijklmnop", "q国rst^C", ">"], (2, 2), "cleared")
    t.send(b"one\\\rtwo")
    shows(t, ["> one", "  two"], (1, 5), "two lines")
    t.send(UP)
    shows(t, ["> one", "  two"], (0, 5), "up")
    t.send(b"\x15")
    shows(t, [">", "  two"], (0, 2), "cut")
    t.send(b"\x0b" + b"\x0b" + b"x" * 18 + b"\\\ry")
    shows(t, ["> " + "x" * 18, "  y"], (1, 3), "a full row that ends in a newline has no empty one behind it")
    t.send(b"\x03")
    t.send(b"\\\r".join(b"row %d" % i for i in range(10)))
    shows(t, ["  row 4", "  row 5", "  row 6", "  row 7", "  row 8", "  row 9"], (5, 7), "taller than the screen")
    t.send(UP * 7)
    shows(t, ["  row 2", "  row 3", "  row 4", "  row 5", "  row 6", "  row 7"], (0, 7), "and up")
    t.send(UP * 2)
    shows(t, ["> row 0", "  row 1", "  row 2", "  row 3", "  row 4", "  row 5"], (0, 7), "to its beginning")
    t.send(b"\x03")
    t.settle()
    t.send(b"\x0c")
    t.send("abc")
    t.settle()
    check(t.screen.text()[t.screen.top:] == ["> abc"], "Ctrl-L", t.screen.text())
    t.send(b"\x03\x03\x03")
    t.close(130)


def test_resize():
    t = Terminal("-n", "1", "--greedy", columns=40)
    t.line("x")
    above = t.screen.text()[:2]
    t.send("0123456789" * 5)
    shows(t, ["> " + ("0123456789" * 4)[:38], "890123456789"], (1, 12), "40 columns")
    t.resize(25, 24)
    shows(t, ["> 01234567890123456789012", "3456789012345678901234567", "89"], (2, 2), "25 columns")
    t.resize(24, 24)
    t.resize(17, 24)
    shows(t, ["> 012345678901234", "56789012345678901", "23456789012345678", "9"], (3, 1), "17 columns")
    check(t.screen.text()[:2] == above and len(t.screen.text()) == 6, "what was above stays", t.screen.text())
    t.resize(60, 24)
    shows(t, ["> " + "0123456789" * 5], (0, 52), "60 columns")
    check(t.screen.text()[:2] == above, t.screen.text())
    t.line("!")
    t.line("/save --force r.json")
    t.send(b"\x04")
    t.close()
    check(exchanges_of("r.json")[-1][0] == "0123456789" * 5 + "!")
    for columns in (1, 2, 3, 4, 5):  # hardly a terminal, but no crash
        t = Terminal("-n", "1", columns=columns, lines=2)
        t.send("猫abc猫" + "\\\rx")
        t.settle()
        t.screen.modes.clear()
        t.send(b"\x03\x03\x03")
        t.close(130)


def test_interrupts():
    def until_interrupted(t, keys, text, since=0):
        t.send(keys)
        t.expect(text, since)
    t = Terminal()
    t.send(b"\x03\x03")
    t.close(130)
    t = Terminal()  # once does not leave, and is forgotten with the next line
    for _ in range(2):
        since = len(t.output)
        t.send(b"\x03")
        t.expect("again to leave", since)
        t.settle()
        t.line("/tokens")
        t.settle()
    t.send("exit\r")
    t.close()
    t = Terminal()
    t.send("/bye\r")
    t.close()
    t = Terminal()
    t.send("some text")
    t.settle(0.02)
    t.send(b"\x03")
    shows(t, ["> some text^C", ">"], (1, 2), "a line is cleared")
    t.send("\033[200~pasted\rtext")  # in the middle of a paste
    t.settle()
    t.send(b"\x03")
    t.line("/tokens")
    t.send(b"\x03\x03")
    t.close(130)
    for sent in (lambda t: os.kill(t.pid, signal.SIGINT), lambda t: t.send(b"\x03")):  # while answering, and then on it goes
        t = Terminal("--greedy", model=ENDLESS)
        t.send("Tell me a story about a cat.\r")
        t.expect("Once")
        check(not t.raw_mode(), "not raw while answering")
        since = len(t.output)
        sent(t)
        t.expect("> ", since)
        t.line("/save --force i.json")
        question, answer = exchanges_of("i.json")[0]
        check(answer and answer in t.output.replace("\r\n", "\n").replace("^C", ""), "kept as far as it came", answer[:100])
        since = len(t.output)
        t.send("/retry\r")
        t.expect("Once", since)
        t.send(b"\x03")
        t.settle()
        t.send(b"\x04")
        t.close()
    t = Terminal("--greedy", "--block", "16", model=ENDLESS, quiet=False, env={"RUN_ISA": "scalar"})  # while reading the prompt
    t.send(b"\033[200~" + b"This is a long message. " * 2500 + b"\033[201~\r")
    t.settle(0.5)
    check("new; context" not in t.output, "still reading")
    since = len(t.output)
    t.send(b"\x03")
    t.expect("taken back", since)
    t.expect("> ", since)
    t.line("/save --force i.json")
    check(exchanges_of("i.json") == [])
    t.send(b"\x03\x03")
    t.close(130)
    t = Terminal("--greedy", model=ENDLESS)  # twice in a row
    t.send("Tell me a story.\r")
    t.expect("Once")
    while not t.gone():
        t.send(b"\x03")
        t.read(0.05)
    t.close(130)
    for pause in (0.004, 0.008, 0.012, 0.016, 0.03):  # while loading
        t = Terminal(wait=False)
        while "\n" not in t.output and not t.gone():  # until there is a program that the terminal belongs to
            t.read(pause)
            t.send(b"\x03")
        t.close(t.code if t.code == -signal.SIGINT else 130)


def test_typing_ahead():
    """What is typed during an answer is not shown in it, and is the next message."""
    t = Terminal("--greedy", "-n", "3000", model=ENDLESS)
    t.send("Tell me a story about a cat.\r")
    t.expect("Once")
    since = len(t.output)
    t.send("/save --force ahead.js")
    t.send("x\x7fon\rhalf")
    t.expect("> ", since)
    t.settle(0.2)
    check("ahead" not in t.output[since:t.output.index("\033[?2004h", since)], "nothing is shown in the answer")
    check(t.screen.text()[-1] == "> half" and os.path.exists(os.path.join(WORK, "ahead.json")), "used then", t.screen.text()[-3:])
    t.send(b"\x15\x04")
    t.close()
    t = Terminal("--greedy", model=ENDLESS, jobs=True)
    t.send("Tell me a story about a cat.\r")
    t.expect("Once")
    check(not termios.tcgetattr(t.slave)[3] & termios.ECHO, "no echo while answering")
    t.send(b"\x1a")
    check(t.report() == "stopped" and termios.tcgetattr(t.slave) == t.before, "put back while stopped")
    os.write(t.commands[1], b"c")
    t.until(lambda: not termios.tcgetattr(t.slave)[3] & termios.ECHO, "no echo again")
    t.send(b"\x1c")
    t.close(-signal.SIGQUIT & 0xff)


def test_endings():
    """The terminal is put back whatever ends the program."""
    for signal_number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGINT, signal.SIGBUS):
        t = Terminal()
        if signal_number != signal.SIGINT:
            t.send("some text")
        t.settle(0.05)
        check(t.raw_mode())
        os.kill(t.pid, signal_number)
        t.close({signal.SIGINT: 130, signal.SIGBUS: 1}.get(signal_number, -signal_number))
    t = Terminal()
    t.send(b"\x1c")  # Ctrl-\
    t.close(-signal.SIGQUIT)
    t = Terminal("--greedy", model=ENDLESS)
    t.send("Tell me a story.\r")
    t.expect("Once")
    os.kill(t.pid, signal.SIGTERM)
    t.close(-signal.SIGTERM)

    for ignored in (False, True):  # the terminal goes away
        t = Terminal(ignore=[signal.SIGHUP] if ignored else [])
        t.settle()
        os.close(t.slave)
        os.close(t.master)
        end = time.time() + PATIENCE
        while not t.gone() and time.time() < end:
            time.sleep(0.01)
        check(t.code in ((0, 1) if ignored else (-signal.SIGHUP,)), "hung up", ignored, t.code)


def test_stopping():
    t = Terminal("-n", "1", jobs=True)
    t.send("ab" + "\\\rcd")
    t.send(LEFT + UP)
    t.settle()
    check(t.raw_mode())
    for stop in (lambda: t.send(b"\x1a"), lambda: os.kill(t.pid, signal.SIGTSTP)):
        stop()
        check(t.report() == "stopped")
        t.settle(0.05)
        check(termios.tcgetattr(t.slave) == t.before and not t.screen.modes, "put back while stopped")
        os.write(t.commands[1], b"c")
        t.until(lambda: t.raw_mode() and t.screen.modes, "raw again")
        shows(t, ["> ab", "  cd"], (0, 3), "painted again")
    os.kill(t.pid, signal.SIGSTOP)  # cannot be caught; the shell may change the terminal meanwhile
    check(t.report() == "stopped")
    termios.tcsetattr(t.slave, termios.TCSANOW, t.before)
    since = len(t.output)
    os.write(t.commands[1], b"c")
    t.until(lambda: t.raw_mode() and "> " in t.output[since:], "raw and painted again after SIGSTOP")
    t.settle()  # or else line() would take that painting for its own prompt
    t.line("X")
    t.line("/save --force z.json")
    t.send(b"\x04")
    t.close()
    check(exchanges_of("z.json")[0][0] == "aXb\ncd", exchanges_of("z.json"))
    t = Terminal("--greedy", model=ENDLESS, jobs=True)  # while answering
    t.send("Tell me a story.\r")
    t.expect("Once")
    t.send(b"\x1a")
    check(t.report() == "stopped")
    t.settle()
    since = len(t.output)
    os.write(t.commands[1], b"c")
    t.until(lambda: len(t.output) > since + 20, "the answer goes on")
    t.send(b"\x03")
    t.expect("> ", since)
    t.send(b"\x04")
    t.close()


def test_dumb():
    for env in ({"TERM": "dumb"}, {"TERM": ""}):
        t = Terminal("--greedy", env=env)
        check(not t.raw_mode())
        t.line(FRANCE, "Paris.")
        t.send("one\\\n")
        t.expect("... ")
        t.line("two", "\n")
        t.line("/save --force d.json", "\n")
        check([q for q, a in exchanges_of("d.json")] == [FRANCE, "one\ntwo"])
        t.send(b"\x04")
        check("\033" not in t.close(), "no escape sequences")
    t = Terminal(env={"TERM": "dumb"})
    t.send(b"\x03")
    t.close(130)
    with open(os.path.join(WORK, "out"), "wb") as out:  # answers into a file, questions from a terminal
        t = Terminal("--greedy", stdout=out.fileno())
        t.line(FRANCE, "\n")
        t.send(b"\x04")
        t.close()
    with open(os.path.join(WORK, "out"), "rb") as out:
        check(out.read() == b"The capital of France is Paris.\n")
    with open(os.path.join(WORK, "err"), "wb") as err:
        t = Terminal("--greedy", quiet=False, stderr=err.fileno())
        t.line(FRANCE)
        t.send(b"\x04")
        t.close()
    with open(os.path.join(WORK, "err"), "rb") as err:
        check(b"tok/s" not in err.read(), "no statistics off a terminal")


def test_colour():
    t = Terminal("--greedy")
    t.line(FRANCE)
    t.send(b"\x04")
    out = t.close()
    check("\033[1m> \033[0m" in out and set(re.findall(r"\033\[[\d;]*m", out)) == {"\033[1m", "\033[0m"})
    t = Terminal("--greedy", env={"NO_COLOR": "1"})
    t.line(FRANCE)
    t.send(b"\x04")
    check(not re.search(r"\033\[[\d;]*m", t.close()))


def test_model_text():
    """Text of a model can't drive the terminal; into a pipe it goes as it is."""
    code, out, err = piped(FRANCE, "--greedy", "-q", "-n", "1", model=DRIVING)
    check(out == "\033\n", repr(out))
    t = Terminal("--greedy", "-n", "1", model=DRIVING)
    out = t.line(FRANCE)
    check("\033[?2004l\\x1b\r\n" in out, repr(out))
    save("evil.json", [("x", "y")], "\033]0;title\a\033[31mred")
    t.line("/load evil.json")
    out = t.line("/system")
    check("\\x1b]0;title\\x07\\x1b[31mred" in out, repr(out))
    t.line("/lo\033[31m")
    t.send(b"\x04")
    t.close()


def test_idle():
    t = Terminal("--greedy")
    t.line(FRANCE)
    if os.path.exists(f"/proc/{t.pid}/stat"):
        t.settle(0.3)
        before = cpu_ticks(t.pid)
        time.sleep(1)
        check(cpu_ticks(t.pid) - before <= 2, "an idle prompt uses no CPU")
    t.send(b"\x04")
    t.close()


def main():
    words = sys.argv[1:]
    try:
        make_models()
        for name, function in list(globals().items()):
            if name.startswith("test_") and (not words or any(w in name for w in words)):
                started = time.time()
                function()
                if words:
                    print(f"{name}: {time.time() - started:.1f} s")
    finally:
        shutil.rmtree(WORK, ignore_errors=True)
    print(f"chat: {passed} passed, {failed} failed, {skipped} skipped")
    return failed > 0


sys.exit(main())

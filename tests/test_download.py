"""Drives download.sh against a model hub of our own (download_server.py), with curl and wget, under several shells.

Each function below is one test. It can run with curl and with GNU wget under dash, bash and busybox's sh (under the
latter with busybox's sed, awk and so on): six combinations, of which a test takes as many as it names: one where no
tool and no shell plays a part; two, where the tool does: one with each; three, where the shell does: one with each.
They take turns, so that the tests together show each of them; --all runs all. What the machine lacks is skipped.
Usage: tests/test_download.py [-v] [--all] [WORD...]; with words only the tests whose name has one of them.
"""
import concurrent.futures
import gzip
import json
import os
import pty
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from download_server import ConnectProxy, World, answer, git_sha1, sample_files, sha256  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SCRIPT = os.path.join(ROOT, "download.sh")
MODEL, PINNED = "test/tiny", "Qwen/Qwen2.5-0.5B-Instruct"
TOKEN = "hf_secretSECRETsecret"
SMALL, OPTIONAL = ["config.json", "tokenizer.json"], ["generation_config.json", "tokenizer_config.json"]
WEIGHTS = "model.safetensors"
UTILITIES = """awk cat cmp cp dd df dirname grep gzip kill ln mkdir mktemp mv ps readlink rm rmdir sed sha1sum sha256sum
sh sleep sort tail tr uname wc""".split()
SHELLS = {"dash": ["dash"], "bash": ["bash"], "busybox": ["busybox", "sh"]}
TESTS = []

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's job in the background begins with both ignored
signal.signal(signal.SIGQUIT, signal.SIG_DFL)


class Skip(Exception):
    pass


def test(runs=1, tools=("curl", "wget"), shells=tuple(SHELLS)):
    """Registers a test for each tool and shell; the last field tells whether it belongs to the short run."""
    def register(function):
        pairs = [(tools[i % len(tools)], shells[i % len(shells)]) for i in range(len(tools) * len(shells))]
        assert len(set(pairs)) == len(pairs)
        first = len({entry[0] for entry in TESTS})  # where its turn begins
        for i, (tool, shell) in enumerate(pairs):
            TESTS.append((function, tool, shell, (i - first) % len(pairs) < runs))
        return function
    return register


def gnu_wget():
    path = shutil.which("wget")
    return path if path and b"GNU Wget 1" in subprocess.run([path, "--version"], capture_output=True).stdout else None


def link_tools(folder, tool, shell):
    """A folder for PATH with the usual utilities (busybox's own under its shell) and one tool to download with."""
    os.mkdir(folder)
    for name in UTILITIES:
        place = shutil.which("busybox") if shell == "busybox" else shutil.which(name)
        if place:
            os.symlink(place, os.path.join(folder, name))
    place = {"curl": shutil.which("curl"), "wget": gnu_wget(), "busybox-wget": shutil.which("busybox"),
             "none": "-"}[tool]
    if not place:
        raise Skip("no " + tool)
    if place != "-":
        os.symlink(place, os.path.join(folder, "wget" if tool == "busybox-wget" else tool))


class Case:
    """One run of a test: a folder, a hub, and download.sh with its surroundings."""

    def __init__(self, tool, shell):
        if not shutil.which(SHELLS[shell][0]):
            raise Skip("no " + shell)
        self.tool, self.shell, self.worlds = tool, shell, []
        self.top = tempfile.mkdtemp(prefix="download-test-")
        self.bin = os.path.join(self.top, "bin")
        try:
            link_tools(self.bin, tool, shell)
        except Skip:
            shutil.rmtree(self.top)
            raise
        self.dir = os.path.join(self.top, "out")
        self.home = os.path.join(self.top, "home")
        self.tmp = os.path.join(self.top, "tmp")
        for folder in (self.dir, self.home, self.tmp):
            os.mkdir(folder)
        self.script = os.path.join(self.top, "download.sh")  # with no ./run beside it
        shutil.copy(SCRIPT, self.script)
        self.model = MODEL
        self.world = self.new_world()
        self.env = {"PATH": self.bin, "HOME": self.home, "TMPDIR": self.tmp, "HF_ENDPOINT": self.world.endpoint,
                    "DOWNLOAD_WAIT": "0", "DOWNLOAD_TIMEOUT": "2", "DOWNLOAD_TRIES": "4"}

    def new_world(self, *arguments, **options):
        world = World(*(arguments or (MODEL, sample_files())), **options)
        self.worlds.append(world)
        return world

    def close(self):
        for world in self.worlds:
            world.close()
        shutil.rmtree(self.top, ignore_errors=True)

    def command(self, *options):
        shell = SHELLS[self.shell]
        return [shutil.which(shell[0]), *shell[1:], self.script, *options, self.model, self.dir]

    def into_cache(self, *arguments):
        """From now on the cache is filled, not a folder."""
        command = self.command()[:-2] + list(arguments or ["--cache", self.model])
        self.command = lambda *options: command

    def run(self, *options, check=0, preexec=None):
        """Runs download.sh; keeps exit code and output."""
        done = subprocess.run(self.command(*options), env=self.env, capture_output=True, text=True, timeout=120,
                              stdin=subprocess.DEVNULL, preexec_fn=preexec, cwd=self.top)
        self.code, self.out, self.err = done.returncode, done.stdout, done.stderr
        if check is not None:
            expect(self.code == check, "exit %d, expected %d:\n%s" % (self.code, check, self.err))
        expect(not os.listdir(self.tmp), "left in TMPDIR: %s" % os.listdir(self.tmp))
        expect(".download.lock" not in os.listdir(self.dir) if os.path.isdir(self.dir) else True, "lock left")
        return self

    def start(self, *options):
        nothing = subprocess.DEVNULL
        return subprocess.Popen(self.command(*options), env=self.env, stdin=nothing, stdout=nothing, stderr=nothing,
                                start_new_session=True, cwd=self.top)

    def path(self, name):
        return os.path.join(self.dir, name)

    def read(self, name):
        with open(self.path(name), "rb") as file:
            return file.read()

    def write(self, name, data):
        with open(self.path(name), "wb") as file:
            file.write(data)

    def names(self):
        return sorted(n for n in os.listdir(self.dir) if n != ".download.lock") if os.path.isdir(self.dir) else []

    def part(self, data=None, name=WEIGHTS):
        return "%s.%s.part" % (name, sha256(self.world.files[name] if data is None else data)[:12])

    def exact(self, world=None, names=None):
        """Every file is there, is right, and nothing else is there."""
        files = (world or self.world).files
        for name in names or files:
            expect(name in self.names(), "%s is missing" % name)
            expect(self.read(name) == files[name], "%s differs" % name)
        expect(self.names() == sorted(names or files), "in the folder: %s" % self.names())

    def bodies(self, name=WEIGHTS, where="storage"):
        return self.world.asked(where, "GET", name)

    def wait_for(self, condition, seconds=30):
        end = time.time() + seconds
        while not condition():
            expect(time.time() < end, "waited in vain")
            time.sleep(0.02)

    def pin(self, model=PINNED, files=None):
        """A copy of download.sh whose table holds the digests of our own files."""
        self.model = model
        self.world.model = model
        self.world.files = sample_files(optional=True)
        files = files or self.world.files
        short = model.replace("Qwen/Qwen2.5-", "")
        lines = ["%s @ - %s" % (short, self.world.commit)]
        for name, data in files.items():
            lines.append("%s %s %d %s" % (short, name, len(data), (git_sha1 if name == SMALL[0] else sha256)(data)))
        with open(SCRIPT) as file:
            text = file.read()
        text, count = re.subn(r"(?s)(pins\(\) \{\n    cat <<'END'\n).*?(END\n\})",
                              lambda m: m[1] + "\n".join(lines) + "\n" + m[2], text)
        expect(count == 1, "no table in download.sh")
        with open(self.script, "w") as file:
            file.write(text)

    def wrap_tool(self):
        """Puts a script in the tool's place that writes its arguments down."""
        place = os.path.join(self.bin, self.tool)
        real = os.path.realpath(place)
        os.unlink(place)
        log = os.path.join(self.top, "argv")
        with open(place, "w") as file:
            file.write("#!/bin/sh\nprintf '%%s\\n' \"$*\" >>'%s'\nexec '%s' \"$@\"\n" % (log, real))
        os.chmod(place, 0o755)
        return log


def expect(condition, text):
    if not condition:
        raise AssertionError(text)


def says(case, *words):
    for word in words:
        expect(word in case.err, "no \"%s\" in:\n%s" % (word, case.err))


def silent_on(case, *words):
    for word in words:
        expect(word not in case.err, "\"%s\" in:\n%s" % (word, case.err))


def at_work(word):
    """The processes that have a word in their command line (none where there is no /proc)."""
    found = []
    for process in filter(str.isdigit, os.listdir("/proc") if os.path.isdir("/proc") else []):
        try:
            with open("/proc/%s/cmdline" % process, "rb") as file:
                if word.encode() in file.read():
                    found.append(process)
        except OSError:
            pass
    return found


def sharded():
    files = sample_files()
    data = files.pop(WEIGHTS)
    names = ["model-0000%d-of-00003.safetensors" % (i + 1) for i in range(3)]
    for i, name in enumerate(names):
        files[name] = data[i * 30000:(i + 1) * 30000 + 100]
    weight_map = {"model.layers.%d.w" % i: names[i % 3] for i in range(30)}
    files["model.safetensors.index.json"] = json.dumps({"metadata": {"total_size": 90000}, "weight_map": weight_map},
                                                       indent=2).encode()
    return files


def only(name, reply):
    """A hook that answers requests for one file."""
    return lambda request: reply(request) if request.name == name else None


def fail_first(times, reply, where=None):
    """A hook: the first requests (for a file) get another answer."""
    left = [times]

    def hook(request):
        if left[0] and (where is None or request.name == where):
            left[0] -= 1
            return reply
        return None
    return hook


# ---- the 25 scenarios -----------------------------------------------------------------------------------------------

@test(runs=6)
def s01_fresh(c):
    c.world.files = sample_files(optional=True)
    c.run().exact()
    expect(len(c.bodies()) == 1 and c.bodies()[0].range is None, "one whole GET of the weights")
    expect(c.out == "", "stdout stays empty without ./run")
    says(c, "Next: ")


@test()
def s02_storage_etag_is_no_digest(c):
    c.run().exact()
    c.world.hooks.append(only(WEIGHTS, lambda r: c.world.big(WEIGHTS, **{"X-Linked-Etag": '"%s"' % ("a" * 64)})))
    os.unlink(c.path(WEIGHTS))
    c.run(check=5)
    expect(c.names() == sorted(SMALL), "nothing under the final name")


@test(runs=2)
def s02_digest_only_from_the_hub(c):
    """A mirror that hands out the storage's headers with the file: their 64 digits are no SHA-256."""
    def hook(request):
        data = c.world.files[WEIGHTS]
        return answer(200, {**c.world.common(), "ETag": '"%s"' % sha256(data)}, data)
    c.world.hooks.append(only(WEIGHTS, hook))
    c.run(check=5)
    says(c, "gives no digest")


@test(runs=2)
def s03_small_file_by_307(c):
    c.run().exact()
    cached = [r for r in c.world.asked("hub", "GET") if r.path.startswith("/api/resolve-cache/")]
    expect(len(cached) == 2 and all("etag=" in r.query and "download=true" in r.query for r in cached), "query kept")
    status, headers, body = c.world.small("config.json")
    c.world.hooks.append(only("config.json", lambda r: answer(status, headers, body.replace(b"Q", b"q"))))
    os.unlink(c.path("config.json"))
    c.run(check=5)
    expect("config.json" not in c.names(), "git SHA-1 checked")


@test(runs=2)
def s04_weak_etag_and_gzip(c):
    c.world.direct = c.world.packed = True
    c.run().exact()
    expect(all(r.headers.get("Accept-Encoding") == "identity" for r in c.world.asked("hub")), "identity asked for")


@test(runs=3)
def s05_cut_at_40_percent(c):
    c.world.storage_faults = ["cut40"]
    c.run().exact()
    asked = [(r.where, r.method, r.range) for r in c.world.asked(name=WEIGHTS)][-4:]
    hub = ("hub", "HEAD", None)
    expect(asked == [hub, ("storage", "GET", None), hub, ("storage", "GET", "bytes=40000-")], "requests: %s" % asked)


@test()
def s05_cut_many_times_is_progress(c):
    c.world.storage_faults = ["cut30"] * 9
    c.run().exact()


@test(runs=2)
def s06_killed_then_again(c):
    c.world.storage_faults = ["stall"]
    c.env["DOWNLOAD_TIMEOUT"] = "30"
    process = c.start()
    c.wait_for(lambda: c.part() in c.names() and len(c.read(c.part())) > 30000)  # curl holds the last bytes back
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    expect(WEIGHTS not in c.names(), "no final name")
    shutil.rmtree(c.tmp)
    os.mkdir(c.tmp)
    c.run().exact()
    expect(re.fullmatch("bytes=(3|4)....-", c.bodies()[-1].range), "resumed")


@test(runs=2)
def s06_killed_script_only(c):
    """The curl or wget that was left behind would go on writing into the part: it is ended."""
    c.world.storage_faults = ["stall"]
    c.env["DOWNLOAD_TIMEOUT"] = "30"
    process = c.start()
    c.wait_for(lambda: c.part() in c.names() and len(c.read(c.part())) > 30000)  # curl holds the last bytes back
    process.kill()
    process.wait()
    shutil.rmtree(c.tmp)
    os.mkdir(c.tmp)
    c.run().exact()
    expect(re.fullmatch("bytes=(3|4)....-", c.bodies()[-1].range), "resumed")
    expect(not at_work(c.dir + "/"), "still at work: %s" % at_work(c.dir + "/"))


@test(runs=3)
def s06_interrupted(c):
    c.world.storage_faults = ["stall", "stall"]
    c.env["DOWNLOAD_TIMEOUT"] = "30"
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        process = c.start()
        c.wait_for(lambda: len(c.bodies()) == (1 if number == signal.SIGINT else 2) and c.part() in c.names())
        os.kill(process.pid, number)
        process.wait(timeout=30)
        expect(process.returncode == code, "exit %d" % process.returncode)
        expect(c.names() == sorted(SMALL + [c.part()]) and not os.listdir(c.tmp), "only the part stays: %s" % c.names())
        expect(not os.path.exists(c.path(".download.lock")), "lock removed")
    c.run().exact()


@test(runs=2)
def s07_link_expired(c):
    c.world.storage_faults = ["cut40", "expired", "expired"]
    c.run().exact()
    silent_on(c, "gated", "HF_TOKEN")
    expect(len(c.world.asked("hub", "HEAD", WEIGHTS)) == 5, "hub asked before each try")


@test(runs=2)
def s08_range_ignored(c):
    c.world.storage_faults = ["cut40", "ignore-range"]
    c.run().exact()


@test(runs=2)
def s09_wrong_offset_or_total(c):
    for fault in ("wrong-offset", "wrong-total"):
        c.world.forget()
        c.world.storage_faults = ["cut40", fault]
        c.run().exact()
        expect([r.range for r in c.bodies()] == [None, "bytes=40000-", None], "restart after " + fault)
        os.unlink(c.path(WEIGHTS))


@test()
def s10_part_is_complete(c):
    c.write(c.part(), c.world.files[WEIGHTS])
    c.run().exact()
    expect(not c.bodies(), "no body")


@test(runs=2)
def s10_416_when_size_is_unknown(c):
    c.world.hooks.append(only(WEIGHTS, lambda r: c.world.big(WEIGHTS, **{"X-Linked-Size": None})))
    c.write(c.part(), c.world.files[WEIGHTS])
    c.run().exact()
    os.unlink(c.path(WEIGHTS))
    c.write(c.part(), c.world.files[WEIGHTS] + b"more")
    c.run().exact()


@test()
def s11_part_is_too_large(c):
    c.write(c.part(), c.world.files[WEIGHTS] + b"<Error>")
    c.run().exact()
    expect([r.range for r in c.bodies()] == [None], "from the start")


@test()
def s12_one_byte_wrong(c):
    data = c.world.files[WEIGHTS]
    c.write(c.part(), data[:500] + b"?" + data[501:])
    c.run().exact()
    says(c, "fetching it again")
    os.unlink(c.path(WEIGHTS))
    c.world.forget()
    c.world.storage_faults = ["flip"] * 9
    c.run(check=5)
    expect(len(c.bodies()) == 2 and c.names() == sorted(SMALL), "one clean retry, then the end: %s" % c.names())
    says(c, sha256(data))


@test()
def s12_finished_file_with_a_flipped_byte(c):
    c.run().exact()
    data = c.world.files[WEIGHTS]
    c.write(WEIGHTS, data[:500] + b"?" + data[501:])
    c.run()
    expect(c.read(WEIGHTS) == data, "mended")
    expect(c.read(WEIGHTS + ".old")[500:501] == b"?", "what was there is kept")


@test()
def s13_upstream_changed(c):
    c.world.storage_faults = ["cut40"]
    c.env["DOWNLOAD_TRIES"] = "1"
    c.run(check=1)
    expect(c.part() in c.names(), "part kept")
    c.world.files = sample_files("2")
    c.world.commit = "d" * 40
    c.world.forget()
    c.run()
    expect([r.range for r in c.bodies()] == [None], "not spliced")
    expect(all(c.read(n) == c.world.files[n] for n in c.world.files), "all of the new commit")
    expect(not [n for n in c.names() if n.endswith(".part")], "old part removed")


@test()
def s13_commit_changes_between_two_files(c):
    """The branch moves on after the first answer: all files stay with the first commit, or it is an error."""
    first = c.world.commit

    def hook(request):
        if "/resolve/main/" in request.path and request.name != "config.json":
            return answer(500)
        if request.name == WEIGHTS:
            return c.world.big(WEIGHTS, **{"X-Repo-Commit": "d" * 40})
        return None
    c.world.hooks.append(hook)
    c.run(check=5)
    says(c, first, "d" * 40)


@test()
def s14_already_there(c):
    c.run().exact()
    before = {n: os.stat(c.path(n)).st_mtime_ns for n in c.names()}
    c.world.forget()
    c.run().exact()
    expect(not c.world.asked(None, "GET"), "no body")
    expect(before == {n: os.stat(c.path(n)).st_mtime_ns for n in c.names()}, "untouched")


@test(runs=3)
def s15_sharded(c):
    c.world.files = sharded()
    c.run().exact()
    expect(all(len(c.bodies("model-0000%d-of-00003.safetensors" % i)) == 1 for i in (1, 2, 3)), "each shard once")
    c.world.forget()
    c.run().exact()
    expect(not c.world.asked(None, "GET"), "all there")


@test()
def s15_no_weights(c):
    del c.world.files[WEIGHTS]
    c.run(check=3)
    says(c, "model.safetensors")
    expect(c.names() == [], "no file of 15 bytes: %s" % c.names())


@test()
def s15_vocab_and_merges(c):
    del c.world.files["tokenizer.json"]
    c.world.files["vocab.json"], c.world.files["merges.txt"] = b'{"a":0}', b"#version: 0.2\na b\n"
    c.run().exact()
    del c.world.files["merges.txt"]
    os.unlink(c.path("merges.txt"))
    c.run(check=3)
    says(c, "merges.txt")


@test()
def s16_no_such_revision(c):
    c.run("--revision", "v9", check=3)
    says(c, '"v9"')
    expect(len(c.world.log) == 1 and c.names() == [], "no retry, no file")
    c.run("--revision=v1/0").exact()


@test()
def s17_no_such_repository(c):
    c.model = "test/none"
    c.dir = os.path.join(c.top, "new")
    c.run(check=3)
    says(c, "private", "test/none")
    expect(len(c.world.log) == 1 and not os.path.exists(c.dir), "no retry, no folder")
    c.env["HF_TOKEN"] = TOKEN
    c.world.hooks.append(lambda r: answer(404, {"X-Error-Code": "RepoNotFound"}))
    c.run(check=3)


@test(runs=2)
def s18_gated(c):
    for status, message in ((401, "Access to model test/tiny is restricted."), (403, "not in the authorized list")):
        c.world.forget()
        c.world.hooks = [lambda r: answer(status, {"X-Error-Code": "GatedRepo", "X-Error-Message": message})]
        c.run(check=4)
        says(c, "gated", c.world.endpoint + "/test/tiny", "HF_TOKEN")
        expect(len(c.world.log) == 1 and c.names() == [], "no retry, no file")
    c.world.hooks = [lambda r: answer(403, {"X-Error-Message": "Access to this resource is disabled.\x1b[2J"})]
    c.run(check=4)
    says(c, "Access to this resource is disabled.")
    silent_on(c, "\x1b", "gated")


@test(runs=2)
def s19_bad_token_on_public_repository(c):
    c.env["HF_TOKEN"] = TOKEN
    message = "Invalid credentials in Authorization header"
    c.world.hooks.append(lambda r: r.token and answer(401, {"X-Error-Message": message}, b'{"error":"Invalid"}'))
    c.run().exact()
    says(c, "token")
    silent_on(c, TOKEN)
    expect(len([r for r in c.world.log if r.token]) == 1, "not sent again")


@test(runs=3)
def s20_token_stays_with_the_hub(c):
    log = c.wrap_tool()
    c.env["HF_TOKEN"] = TOKEN + "\r\n"
    c.world.storage_faults = ["cut40"]
    c.run().exact()
    hub, storage = c.world.asked("hub"), c.world.asked("storage")
    expect(hub and all(r.token == "Bearer " + TOKEN for r in hub), "the hub sees it, after its own redirects too")
    expect(len(storage) == 2 and not any(r.token for r in storage), "the storage doesn't")
    with open(log) as file:
        arguments = file.read()
    expect(arguments.count("\n") >= 10 and "secret" not in arguments, "not in argv")
    silent_on(c, "secret")


@test(runs=2)
def s20_token_file_and_second_endpoint(c):
    os.makedirs(os.path.join(c.home, ".cache/huggingface"))
    with open(os.path.join(c.home, ".cache/huggingface/token"), "w") as file:
        file.write(TOKEN + "\n")
    c.run().exact()
    expect(all(r.token == "Bearer " + TOKEN for r in c.world.asked("hub")), "read from the file")
    other = c.new_world()
    c.world.hooks.append(lambda r: answer(404, {"X-Error-Code": "RepoNotFound"}))
    c.env["HF_ENDPOINT"] += " " + other.endpoint
    os.unlink(c.path(WEIGHTS))
    c.run().exact()
    expect(other.asked("hub") and not any(r.token for r in other.log), "not for the second address")
    c.env["HF_TOKEN"] = 'a"\nurl = http://127.0.0.1:1/'
    c.run(check=2)
    silent_on(c, "url =")


@test(runs=2)
def s21_rate_limit(c):
    busy = answer(429, {**c.world.common(), "RateLimit": '"resolvers";r=0;t=2'})
    c.world.hooks = [fail_first(1, busy, "config.json"), fail_first(1, answer(429, {"Retry-After": "1"}), WEIGHTS)]
    start = time.time()
    c.run().exact()
    expect(time.time() - start >= 3, "waited")
    os.unlink(c.path(WEIGHTS))
    c.world.hooks = [fail_first(1, answer(429, {"Retry-After": "1000", "RateLimit": '"resolvers";r=0;t=3'}))]
    c.run(check=8)
    says(c, "1000 s")


@test(runs=2)
def s22_503_then_success(c):
    c.world.hooks = [fail_first(2, answer(503)), fail_first(1, answer(504), WEIGHTS)]
    c.world.storage_faults = ["503", "429"]
    c.run().exact()
    os.unlink(c.path(WEIGHTS))
    c.world.forget()
    c.world.hooks = [fail_first(99, answer(503))]
    c.run(check=1)
    expect(len(c.world.log) == 4, "four tries")
    says(c, "503", "4 tries")


def closed_port(c):
    """A port where nothing answers; it stays bound, so that no other test gets it meanwhile."""
    c.socket = socket.socket()
    c.socket.bind(("127.0.0.1", 0))
    return c.socket.getsockname()[1]


@test(runs=2)
def s22_second_mirror(c):
    c.env["HF_ENDPOINT"] = "http://127.0.0.1:%d, %s/" % (closed_port(c), c.world.endpoint)
    c.run().exact()
    says(c, "going on with " + c.world.endpoint)
    c.env["HF_ENDPOINT"] = "http://127.0.0.1:%d" % closed_port(c)
    os.unlink(c.path(WEIGHTS))
    c.run(check=1)
    says(c, "4 tries")


@test()
def s22_mirror_with_other_bytes(c):
    """The first hub names the digest, then fails; the mirror has other weights of the same length."""
    mirror = c.new_world(MODEL, {**c.world.files, WEIGHTS: sample_files("2")[WEIGHTS]})
    c.env["HF_ENDPOINT"] = c.world.endpoint + " " + mirror.endpoint
    c.world.storage_faults = ["503"] * 9
    c.run(check=5)
    expect(WEIGHTS not in c.names() and not mirror.asked("storage"), "refused by its digest, before the body")
    mirror.hooks = [only(WEIGHTS, lambda r: mirror.big(WEIGHTS, **{"X-Linked-Etag": None}))]
    c.world.storage_faults = ["503"] * 9
    c.run(check=5)
    expect(WEIGHTS not in c.names() and len(mirror.asked("storage", "GET")) == 2, "refused by its bytes")
    mirror.files = c.world.files
    c.world.storage_faults = ["503"] * 9
    c.run().exact()


@test()
def s22_pinned_digest_holds(c):
    c.pin(files=sample_files("2", optional=True))
    c.world.hooks = [only(WEIGHTS, lambda r: c.world.big(WEIGHTS, **{"X-Linked-Etag": None}))]
    c.run(check=5)
    expect(WEIGHTS not in c.names(), "not accepted")


@test(runs=2)
def s23_mirror_redirects_to_hub(c):
    mirror = c.new_world()
    mirror.hooks.append(lambda r: answer(308, {"Location": c.world.endpoint + r.path}))
    c.env["HF_ENDPOINT"] = mirror.endpoint + " " + c.world.endpoint
    c.env["HF_TOKEN"] = TOKEN
    c.run().exact()
    silent_on(c, "going on with")
    expect(all(r.token for r in mirror.log) and not any(r.token for r in c.world.log), "token for the first only")
    c.env["HF_ENDPOINT"] = mirror.endpoint
    os.unlink(c.path(WEIGHTS))
    c.run(check=5)
    says(c, "no model hub")


@test(runs=2)
def s23_no_length_on_head(c):
    c.world.direct = True

    def hook(request):
        if request.method != "HEAD" or request.name not in c.world.files:
            return None
        status, headers, body = c.world.big(WEIGHTS) if request.name == WEIGHTS else c.world.small(request.name)
        return status, {**headers, "fault": "no-head-length"}, body
    c.world.hooks.append(hook)
    c.run().exact()


@test()
def s23_web_page_or_pointer(c):
    page = b"<!DOCTYPE html><html>Sign in to the hotel</html>"
    c.world.hooks = [lambda r: answer(200, {"Content-Type": "text/html"}, page)]
    c.run(check=5)
    says(c, "web page")
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize 100000\n" % (b"a" * 64)
    headers = {**c.world.common(), "ETag": '"%s"' % git_sha1(pointer)}
    c.world.hooks = [only(WEIGHTS, lambda r: answer(200, headers, pointer))]
    c.run(check=5)
    says(c, "Git LFS pointer")
    expect(c.names() == sorted(SMALL), "not kept")
    c.world.hooks = [lambda r: answer(200, {"ETag": '"abc-5"'}, b"{}")]
    c.run(check=5)
    says(c, "no model hub")


@test()
def s24_too_little_space(c):
    c.world.hooks.append(only(WEIGHTS, lambda r: c.world.big(WEIGHTS, **{"X-Linked-Size": "1000000000000000"})))
    c.run(check=6)
    says(c, "100000000000", "are free")
    expect(not c.world.asked(None, "GET") and c.names() == [], "before any body")
    c.world.hooks.clear()
    os.unlink(os.path.join(c.bin, "df"))
    with open(os.path.join(c.bin, "df"), "w") as file:
        file.write("#!/bin/sh\necho Filesystem 1024-blocks Used Available Capacity Mounted\necho x 1000 950 60 95% /\n")
    os.chmod(os.path.join(c.bin, "df"), 0o755)
    c.run(check=6)
    c.write(c.part(), c.world.files[WEIGHTS][:50000])
    c.run().exact()


def make_cache(c, links=True, leave_out=()):
    top = os.path.join(c.home, "hub/models--test--tiny")
    snapshot = os.path.join(top, "snapshots", c.world.commit)
    for folder in (snapshot, os.path.join(top, "blobs"), os.path.join(top, "refs")):
        os.makedirs(folder)
    with open(os.path.join(top, "refs/main"), "w") as file:
        file.write(c.world.commit)
    for name, data in c.world.files.items():
        digest = sha256(data) if name == WEIGHTS else git_sha1(data)
        if name in leave_out:
            continue
        with open(os.path.join(top, "blobs", digest) if links else os.path.join(snapshot, name), "wb") as file:
            file.write(data)
        if links:
            os.symlink("../../blobs/" + digest, os.path.join(snapshot, name))
    c.env["HF_HUB_CACHE"] = os.path.join(c.home, "hub")
    return top


@test(runs=3)
def s24_offline_with_cache(c):
    c.env["HF_HUB_OFFLINE"] = "YES"
    c.env["HF_HUB_CACHE"] = os.path.join(c.home, "hub")
    c.run(check=3)
    says(c, "offline")
    top = make_cache(c)
    c.run().exact()
    link = os.path.join(top, "snapshots", c.world.commit, WEIGHTS)
    expect(not os.path.islink(c.path(WEIGHTS)) and os.path.islink(link), "copied")
    blob = os.path.join(top, "blobs", sha256(c.world.files[WEIGHTS]))
    with open(blob, "r+b") as file:
        file.write(b"x")
    os.unlink(c.path(WEIGHTS))
    c.run(check=5)
    expect(WEIGHTS not in c.names(), "a damaged copy is refused")
    expect(not c.world.log, "nobody asked")


@test()
def s24_offline_partial_and_plain(c):
    c.env["HF_HUB_OFFLINE"] = "1"
    make_cache(c, leave_out=(WEIGHTS,))
    c.run(check=3)
    says(c, WEIGHTS)
    shutil.rmtree(os.path.join(c.home, "hub"))
    make_cache(c, links=False)
    c.run().exact()
    expect(not c.world.log, "nobody asked")


@test()
def s24_cache_saves_the_download(c):
    make_cache(c)
    c.run().exact()
    expect(not c.bodies(), "weights copied from the cache")


@test(runs=2)
def s25_environment(c):
    c.env.update(HF_ENDPOINT=c.world.endpoint + "//", HF_HOME="", HF_TOKEN="", HF_HUB_CACHE="", HF_HUB_OFFLINE="",
                 TRANSFORMERS_OFFLINE="0")
    with open(os.path.join(c.home, ".curlrc"), "w") as file:
        file.write("include\ninsecure\noutput = /dev/null\nproxy = http://127.0.0.1:1\n")
    with open(os.path.join(c.home, ".wgetrc"), "w") as file:
        file.write("output_document = /dev/null\nhttp_proxy = http://127.0.0.1:1/\nuse_proxy = on\n")
    with open(os.path.join(c.home, ".netrc"), "w") as file:
        file.write("machine 127.0.0.1 login me password secret\nmachine localhost login me password secret\n")
    c.env["WGETRC"] = os.path.join(c.home, ".wgetrc")
    c.dir = os.path.join(c.top, "a folder", "with  spaces & 'quotes'")
    c.run().exact()
    c.world.hooks.append(lambda r: answer(401, {"WWW-Authenticate": 'Basic realm="hub"'}))
    os.unlink(c.path(WEIGHTS))
    c.run(check=3)
    expect(not any(r.token for r in c.world.log), "no credentials of .netrc")


@test(runs=2)
def s25_https_through_proxy(c):
    if not shutil.which("openssl"):
        raise Skip("no openssl")
    key, certificate = os.path.join(c.top, "key.pem"), os.path.join(c.top, "cert.pem")
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate,
                    "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"],
                   check=True, capture_output=True)
    world = c.new_world(MODEL, sample_files(), certificate=(certificate, key))
    proxy = ConnectProxy()
    c.env.update(HF_ENDPOINT=world.endpoint, https_proxy="http://127.0.0.1:%d" % proxy.port)
    c.run(check=1)
    says(c, "certificate")
    expect(proxy.count == 1 and not world.log, "one try, through the proxy, and checking is never switched off")
    c.env.update(CURL_CA_BUNDLE=certificate, SSL_CERT_FILE=certificate, HF_TOKEN=TOKEN)
    c.run().exact(world)
    expect(proxy.count > 10, "all through the proxy")
    world.hooks.append(only(WEIGHTS, lambda r: world.big(WEIGHTS, Location=c.world.link(WEIGHTS))))
    os.unlink(c.path(WEIGHTS))
    c.run(check=5)
    says(c, "unencrypted")
    proxy.close()


@test(runs=3, tools=("busybox-wget",))
def s25_busybox_wget(c):
    c.run(check=1)
    says(c, "install curl")
    c.pin()
    c.env["HF_TOKEN"] = TOKEN
    c.world.storage_faults = ["cut40", "expired", "wrong-offset"]
    c.run().exact()
    expect(not any(r.token for r in c.world.log), "no token, which it could only take as an argument")
    expect([r.range for r in c.bodies()][1] == "bytes=40000-", "resumed")


@test(tools=("none",))
def s25_no_tool(c):
    c.run(check=1)
    says(c, "needs curl or wget")


@test()
def s25_other_hash_programs(c):
    for name in ("sha1sum", "sha256sum"):
        os.unlink(os.path.join(c.bin, name))
    c.run(check=1)
    says(c, "sha256sum", "openssl")
    if not shutil.which("openssl"):
        raise Skip("no openssl")
    os.symlink(shutil.which("openssl"), os.path.join(c.bin, "openssl"))
    c.run().exact()


# ---- more of the kind -----------------------------------------------------------------------------------------------

@test()
def x_two_copies_at_once(c):
    c.world.storage_faults = ["stall1"]
    c.env["DOWNLOAD_TIMEOUT"] = "30"
    process = c.start()
    c.wait_for(lambda: c.part() in c.names())
    second = subprocess.run(c.command(), env=c.env, capture_output=True, text=True, timeout=60)
    expect(second.returncode == 7 and "another copy" in second.stderr, "%d: %s" % (second.returncode, second.stderr))
    process.wait(timeout=30)
    expect(process.returncode == 0, "the first goes on")
    c.exact()


@test(tools=("curl",))
def x_stale_lock(c):
    dead = subprocess.Popen(["true"])
    dead.wait()
    c.write(".download.lock", b"%s %d -\n" % (os.uname().nodename.encode(), dead.pid))
    c.run().exact()
    c.write(".download.lock", b"elsewhere 1 -\n")
    done = subprocess.run(c.command(), env=c.env, capture_output=True, text=True)
    expect(done.returncode == 7 and "elsewhere" in done.stderr, "a lock of another host is left alone")


@test(runs=2)
def x_stall(c):
    c.world.storage_faults = ["stall"]
    start = time.time()
    c.env["DOWNLOAD_TIMEOUT"] = "1"
    c.run().exact()
    expect(time.time() - start < 30, "ended in time")
    expect(c.bodies()[-1].range == "bytes=40000-", "resumed")


@test()
def x_shard_names(c):
    names = ["../x.safetensors", "/etc/x.safetensors", "..\\\\x.safetensors", "\\u002e./x.safetensors", "config.json",
             "a/b.safetensors", ".x.safetensors", "a b.safetensors", "x.safetensors\\u0000", "-o.safetensors"]
    for name in names if c.tool == "curl" and c.shell == "dash" else names[:2]:
        c.world.files = sharded()
        c.world.files[name] = b"not ours"
        c.world.files["model.safetensors.index.json"] = (
            '{"metadata":{},"weight_map":{"a":"model-00001-of-00003.safetensors",\n"b" : "%s"}}' % name).encode()
        c.run("--quiet", check=5)
        says(c, "plain file name")
        expect(not c.bodies("model-00001-of-00003.safetensors"), "before any shard")


@test(runs=2)
def x_slice_with_status_200(c):
    c.world.storage_faults = ["cut40", "slice-200"]
    c.run().exact()
    expect(len(c.bodies()) == 2, "a right Content-Range is a resume, whatever the status")


@test(runs=2)
def x_short_without_length(c):
    c.world.storage_faults = ["no-length"]
    c.run().exact()
    os.unlink(c.path(WEIGHTS))
    c.world.hooks.append(only(WEIGHTS, lambda r: c.world.big(WEIGHTS, **{"X-Linked-Size": None})))
    c.world.storage_faults = ["no-length"]
    c.run().exact()


@test(runs=2)
def x_gzip_cut(c):
    c.world.direct = c.world.packed = True
    cut = c.world.small("tokenizer.json")
    cut[1]["fault"] = "cut50"
    c.world.hooks.append(fail_first(1, cut, "none"))
    hooks = [fail_first(1, cut)]
    c.world.hooks.append(lambda r: r.name == "tokenizer.json" and r.method == "GET" and hooks[0](r))
    c.run().exact()


@test(runs=2)
def x_head_refused(c):
    c.world.hooks.append(lambda r: r.method == "HEAD" and answer(405))
    c.run().exact()
    expect(c.world.asked("hub", "GET", WEIGHTS)[0].range == "bytes=0-0", "one byte asked for")


@test(runs=2)
def x_disk_full_in_the_middle(c):
    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (50000, 50000))
    c.run(check=1, preexec=limit)
    says(c, "disk")
    expect(WEIGHTS not in c.names() and len(c.read(c.part())) > 0, "part kept")
    c.run().exact()


@test(runs=2)
def x_redirect_circle_and_glued(c):
    c.world.hooks = [lambda r: answer(302, {"Location": r.path})]
    c.run(check=5)
    says(c, "circle")
    c.world.hooks = [lambda r: answer(302, {"Location": "file:///etc/passwd"})]
    c.run(check=None)
    expect(c.code != 0 and c.names() == [], "no other scheme")


@test()
def x_pinned_files(c):
    c.pin()
    c.run().exact()
    expect(all(c.world.commit in r.path for r in c.world.asked("hub")), "at the known commit")
    c.world.forget()
    c.run().exact()
    expect(not c.world.log, "all there and known: nobody asked")
    c.world.commit = "d" * 40
    c.world.files = {**c.world.files, **{n: sample_files("3")[n] for n in (WEIGHTS, "config.json")}}
    c.run("--revision", "main")
    expect(c.read(WEIGHTS) == c.world.files[WEIGHTS], "another revision is taken at the hub's word")


@test()
def x_the_next_command_at_the_end(c):
    c.pin()
    with open(os.path.join(c.top, "run"), "w") as file:
        file.write("#!/bin/sh\necho \"$@\"\n")
    os.chmod(os.path.join(c.top, "run"), 0o755)
    c.run().exact()
    expect(c.out == "" and c.err.endswith("Next: %s chat -m %s\n" % (os.path.join(c.top, "run"), c.dir)), c.err)
    expect("Fetched 5 files" in c.err and c.err.count("\n") < 12, c.err)
    c.dir = os.path.join(c.top, "it's my model")
    c.run()
    typed = subprocess.run(c.err.rpartition("Next: ")[2], shell=True, capture_output=True, text=True)
    expect(typed.stdout == "chat -m %s\n" % c.dir, c.err)
    c.run("-q")
    expect(c.out == c.err == "", "quiet")


@test(tools=("curl",), shells=("dash",))
def x_with_the_real_program(c):
    program = os.environ.get("RUN") or os.path.join(ROOT, "run")
    if not os.access(program, os.X_OK):
        raise Skip("no ./run built")
    demo = os.path.join(ROOT, "tests/demo")
    for name in SMALL + OPTIONAL + [WEIGHTS]:
        c.world.files.pop(name, None)
        if os.path.exists(os.path.join(demo, name)):
            with open(os.path.join(demo, name), "rb") as file:
                c.world.files[name] = file.read()
    program = shutil.copy(program, os.path.join(os.path.realpath(c.top), "run"))
    c.run().exact()
    info = subprocess.run([program, "info", c.dir], capture_output=True, text=True)
    expect("model.embed_tokens.weight   dtype=BF16  shape=" in info.stdout, "run info: " + info.stdout + info.stderr)
    for folder in (c.top, c.home if len(c.top) < 30 else c.top):  # beside download.sh, and elsewhere
        c.env["HF_HOME"] = os.path.join(folder, "hf")

        def info():
            return subprocess.run([program, "info", MODEL], capture_output=True, text=True, env=c.env, cwd=folder)
        advice = re.search(r"; (\S*download.sh --cache \S+) fetches it$", info().stderr)
        expect(advice, "what to type when the cache has no such model")
        typed = subprocess.run(advice[1], shell=True, capture_output=True, text=True, env=c.env, cwd=folder)
        expect(typed.returncode == 0, advice[1] + ": " + typed.stderr)
        expect("model.embed_tokens.weight   dtype=BF16  shape=" in info().stdout, "in the cache: " + info().stderr)


@test()
def x_symlink_under_a_part_name(c):
    target = os.path.join(c.top, "dropped")
    os.symlink(target, c.path(c.part()))
    c.run()
    expect(not os.path.lexists(target) and not os.path.islink(c.path(WEIGHTS)), "nothing is written through the link")
    expect(c.read(WEIGHTS) == c.world.files[WEIGHTS], "the file is right")


def more_files():
    files = sample_files(optional=True)
    files["added_tokens.json"], files["chat_template.jinja"] = b'{"<x>": 7}', b"{{ messages }}"
    files["additional_chat_templates/tool_use.jinja"] = b"{{ tools }}"
    return files


def listed(paths):
    """The hub's list with other paths in it."""
    body = json.dumps([{"size": 1, "path": path} for path in paths]).encode()
    return lambda r: "/tree/" in r.path and answer(200, {}, body)


@test(runs=3)
def x_templates_and_added_tokens(c):
    c.world.files = more_files()
    c.run()
    for name, data in c.world.files.items():
        expect(c.read(name) == data, name)
    c.world.forget()
    c.run()
    expect([r.path for r in c.world.asked(None, "GET") if "/tree/" not in r.path] == [], "all there")
    shutil.rmtree(c.path("additional_chat_templates"))
    os.symlink(c.home, c.path("additional_chat_templates"))
    c.run(check=1)
    says(c, "is a link")
    expect(os.listdir(c.home) == [], "nothing goes through the link")


@test(runs=2)
def x_lists_of_templates(c):
    """Only plain names in that folder are asked for; a list that can't be had is told; a busy hub is asked again."""
    c.world.files["chat_template.jinja"] = b"{{ messages }}"
    folder = "additional_chat_templates/"
    c.world.hooks = [listed([folder + "../../evil.jinja", folder + "a b.jinja", folder + "x/y.jinja", "evil.jinja"])]
    c.run().exact()
    expect(not [r for r in c.world.log if r.path.endswith(".jinja") and r.name != "chat_template.jinja"], "asked")
    for refusal in (answer(403), answer(200, {"fault": "endless"}, b'[{"path":"')):
        c.world.hooks = [lambda r: "/tree/" in r.path and refusal]
        c.run().exact()
        says(c, "does not list additional_chat_templates", "going on without")
    expect(c.world.sent < 16 << 20, "%d MB sent" % (c.world.sent >> 20))
    c.world.files = more_files()
    c.world.hooks = [lambda r: "/tree/" in r.path and busy(r)]
    busy = fail_first(1, answer(429))
    c.run()
    expect(c.read(folder + "tool_use.jinja") == b"{{ tools }}", "after the second try")


@test(runs=3)
def x_fills_the_cache(c):
    """The layout of huggingface_hub: blobs by digest, relative links to them, refs/main without a line end."""
    c.world.files = more_files()
    c.env["HF_HOME"] = "~/hf"
    top = os.path.join(c.home, "hf/hub/models--test--tiny")
    c.into_cache()
    c.run()
    for name, data in c.world.files.items():
        place = os.path.join(top, "snapshots", c.world.commit, name)
        digest = sha256(data) if name == WEIGHTS else git_sha1(data)
        expect(os.readlink(place) == "../" * (2 + name.count("/")) + "blobs/" + digest, "link of " + name)
        with open(place, "rb") as file:
            expect(file.read() == data, name)
    with open(os.path.join(top, "refs/main")) as file:
        expect(file.read() == c.world.commit, "refs/main")
    expect(sorted(os.listdir(top)) == ["blobs", "refs", "snapshots"] and len(os.listdir(top + "/blobs")) == 8
           and os.listdir(top + "/refs") == ["main"], "nothing else")
    expect(c.names() == [], "nothing in the other folder")
    says(c, "Fetched 8 files", "chat -m test/tiny\n")
    c.world.forget()
    c.run()
    expect([r for r in c.world.asked(None, "GET") if "/tree/" not in r.path] == [], "found in the cache")
    c.env["HF_HUB_OFFLINE"] = "1"
    subprocess.run(Case.command(c), env=c.env, capture_output=True, check=True, timeout=60)
    expect(all(c.read(name) == data for name, data in c.world.files.items()), "all of it can be taken from there")
    del c.env["HF_HUB_OFFLINE"]
    c.world.commit = "d" * 40
    c.world.forget()
    c.run()
    expect(not c.bodies(), "another snapshot shares the blobs")
    expect(os.path.exists(os.path.join(top, "snapshots", "d" * 40, WEIGHTS)), "linked")
    os.rename(top + "/blobs", top + "/elsewhere")
    os.symlink("elsewhere", top + "/blobs")
    c.run(check=1)
    says(c, "is a link")


@test()
def x_cache_and_known_digests(c):
    c.pin()
    c.env["HF_HUB_CACHE"] = os.path.join(c.home, "hub")
    c.into_cache()
    c.run()
    top = os.path.join(c.home, "hub/models--Qwen--Qwen2.5-0.5B-Instruct")
    expect(sorted(os.listdir(top + "/blobs")) == sorted((sha256 if n == WEIGHTS else git_sha1)(d)
           for n, d in c.world.files.items()), "small files have their name in git, as the hub gives it")
    c.world.forget()
    c.run()
    expect(not c.world.log, "nobody asked")
    c.env["HF_HUB_OFFLINE"] = "1"
    c.run(check=2)


@test(runs=2)
def x_which_access_is_missing(c):
    c.env["HF_TOKEN"] = TOKEN
    for status, headers, words in (
            (401, {"X-Error-Code": "GatedRepo"}, ["refuses the access token", "set another HF_TOKEN"]),
            (403, {"X-Error-Code": "GatedRepo"}, ["gated", "accept its terms at " + c.world.endpoint + "/test/tiny"]),
            (401, {}, ["refuses the access token", "does not give test/tiny", "HF_TOKEN"])):
        c.world.hooks = [lambda r: answer(status, headers)]
        c.run(check=4)
        says(c, *words)
        silent_on(c, TOKEN, "refuses the access token" if status == 403 else "accept its terms")
    c.world.hooks = [lambda r: answer(404, {"X-Error-Code": "RepoNotFound"})]
    c.run(check=3)
    silent_on(c, "refuses", "gated")


@test(runs=2)
def x_nothing_raw_reaches_a_terminal(c):
    evil = "\x1b[31m \x9b31m \u202eevil".encode("utf-8", "surrogateescape").decode("latin-1") + "\x9d0;T\x9c"
    for headers in ({"X-Error-Message": evil}, {"X-Error-Message": evil, "Location": "http://a" + evil}):
        for status in (403, 400, 302):
            c.world.hooks = [lambda r: answer(status, headers)]
            done = subprocess.run(c.command(), env=c.env, capture_output=True, timeout=60)
            expect(done.returncode != 0 and not re.search(rb"[^\n -~]", done.stdout + done.stderr), "%s" % done.stderr)


@test(runs=6)
def x_more_than_announced(c):
    c.world.storage_faults = ["endless"]
    c.run(check=5)
    says(c, "sends more than the 100000 bytes")
    silent_on(c, "limit exceeded")  # of a shell
    expect(c.part() not in c.names() and WEIGHTS not in c.names(), "nothing of it stays: %s" % c.names())
    c.world.storage_faults = ["cut40", "endless"]
    c.run().exact()


@test(runs=2)
def x_more_than_one_byte(c):
    """Where HEAD is refused one byte is asked for; a server that sends on and on is cut off."""
    etag = '"%s"' % git_sha1(c.world.files["config.json"])
    body = answer(200, {**c.world.common(), "ETag": etag, "fault": "endless"})
    c.world.hooks.append(lambda r: answer(405) if r.method == "HEAD" else r.range == "bytes=0-0" and body)
    start = c.world.sent
    c.run(check=None)
    requests = len(c.world.asked("hub", "GET"))
    expect(c.world.sent - start < requests * (16 << 20), "%d MB sent" % (c.world.sent >> 20))


@test()
def x_packed_bomb(c):
    """A small body that unpacks to far more than the file has."""
    packed = gzip.compress(bytes(64 << 20))
    headers = {**c.world.common(), "ETag": 'W/"%s"' % git_sha1(b"{}"), "X-Linked-Size": "2", "Content-Encoding": "gzip"}
    c.world.hooks.append(only("tokenizer.json", lambda r: answer(200, headers, packed)))
    c.env["DOWNLOAD_TRIES"] = "1"
    c.run(check=1)
    says(c, "could not be unpacked")


@test(runs=2)
def x_links_under_temporary_names(c):
    target = os.path.join(c.top, "precious")
    with open(target, "wb") as file:
        file.write(b"precious")
    c.world.direct = c.world.packed = True
    names = [c.part(name=n).replace(sha256(c.world.files[n])[:12], git_sha1(c.world.files[n])[:12]) for n in SMALL]
    for name in names:
        os.symlink(target, c.path(name))
        os.symlink(target, c.path(name + ".plain"))
    c.run().exact()
    os.symlink(target, c.path(".download.lock"))
    done = subprocess.run(c.command(), env=c.env, capture_output=True, text=True)
    expect(done.returncode == 1 and ".download.lock is a link" in done.stderr, "%d %s" % (done.returncode, done.stderr))
    with open(target, "rb") as file:
        expect(file.read() == b"precious", "nothing is written through a link")
    os.unlink(c.path(".download.lock"))
    c.world.direct = c.world.packed = False
    os.unlink(c.path(WEIGHTS))
    os.mkfifo(c.path(c.part()))
    c.run().exact()


@test()
def x_symlink_under_the_final_name(c):
    target = os.path.join(c.top, "precious")
    with open(target, "wb") as file:
        file.write(b"precious")
    os.symlink(target, c.path(WEIGHTS))
    c.run()
    with open(target, "rb") as file:
        expect(file.read() == b"precious", "not written through the link")
    expect(c.read(WEIGHTS) == c.world.files[WEIGHTS] and not os.path.islink(c.path(WEIGHTS)), "a file of its own")


@test(tools=("curl",))
def x_usage(c):
    def code(*arguments):
        done = subprocess.run([shutil.which(SHELLS[c.shell][0]), *SHELLS[c.shell][1:], SCRIPT, *arguments], env=c.env,
                              capture_output=True, text=True, cwd=c.dir)
        expect(done.returncode == 0 or (done.stdout == "" and done.stderr.startswith("download.sh: ")), done.stderr)
        return done.returncode, done.stdout
    expect(code("--help")[0] == 0 and "Exit code:" in code("-h")[1], "help")
    for wrong in (["--revision"], ["--nope"], ["-x"], ["models"], ["../x"], ["a/../b"],
                  ["a/b/c"], ["a/b?c"], [MODEL, "x", "y"], ["--revision", "../x"], ["--revision", "a b"], ["--", "-q"]):
        expect(code(*wrong)[0] == 2, "%s: exit %d" % (wrong, code(*wrong)[0]))
    for name, value in (("DOWNLOAD_TRIES", "-1"), ("DOWNLOAD_WAIT", "soon"), ("HF_ENDPOINT", "ftp://x")):
        before = c.env.get(name)
        c.env[name] = value
        expect(code()[0] == 2, name)
        c.env[name] = before or ""
    expect(c.names() == [] and not c.world.log, "nothing done")


@test()
def x_progress_on_a_terminal(c):
    c.world.storage_faults = ["stall2"]
    c.env["DOWNLOAD_TIMEOUT"] = "30"
    main, terminal = pty.openpty()
    process = subprocess.Popen(c.command(), env=c.env, stdout=terminal, stderr=terminal, stdin=subprocess.DEVNULL,
                               cwd=c.top)
    os.close(terminal)
    shown = b""
    try:
        while True:
            more = os.read(main, 65536)
            if not more:
                break
            shown += more
    except OSError:
        pass
    os.close(main)
    expect(process.wait() == 0, "exit: %s" % shown)
    expect(re.search(rb"0.0 MB of 0.1 MB, (36|39|40)%", shown), "progress: %s" % shown)
    c.exact()


@test(tools=("curl",), shells=("dash",))
def x_table_of_digests(c):
    with open(SCRIPT) as file:
        table = re.search(r"(?s)pins\(\) \{\n    cat <<'END'\n(.*?)END\n", file.read())[1].split("\n")[:-1]
    models = {}
    for line in table:
        model, name, size, digest = line.split(" ")
        expect(re.fullmatch("[0-9a-f]{64}|[0-9a-f]{40}", digest) and re.fullmatch("[0-9]+|-", size), line)
        expect(name not in models.setdefault(model, {}), "twice: " + line)
        models[model][name] = (size, digest)
    expect(set(models["0.5B-Instruct"]) == {"@", WEIGHTS, *SMALL, *OPTIONAL}, "the default model is known in full")
    expect(all(len(m["@"][1]) == 40 for m in models.values()), "commits")
    weights = [v for m in models.values() for n, v in m.items() if n.endswith(".safetensors")]
    expect(len({d for _, d in weights}) == len(weights), "a digest twice")
    expect(all(len(d) == 64 and int(s) > 9e8 for s, d in weights), "weights have a SHA-256 and a size")


# ---- running them ---------------------------------------------------------------------------------------------------

def run_one(entry):
    function, tool, shell, _ = entry
    name = "%s [%s, %s]" % (function.__name__, tool, shell)
    start = time.time()
    case = None
    try:
        case = Case(tool, shell)
        function(case)
        return name, "passed", "", time.time() - start
    except Skip as reason:
        return name, "skipped", str(reason), time.time() - start
    except Exception as problem:  # any other end of a test is a failure
        return name, "failed", "%s: %s" % (type(problem).__name__, problem), time.time() - start
    finally:
        if case:
            case.close()


def main():
    words = [w for w in sys.argv[1:] if not w.startswith("-")]
    chosen = [t for t in TESTS if (t[3] or words or "--all" in sys.argv)
              and (not words or any(w in "%s [%s, %s]" % (t[0].__name__, t[1], t[2]) for w in words))]
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    with concurrent.futures.ThreadPoolExecutor(max_workers=6) as pool:
        for name, result, text, seconds in pool.map(run_one, chosen):
            counts[result] += 1
            if result != "passed" or "-v" in sys.argv:
                print("%s: %s%s (%.1f s)" % (name, result, ": " + text if text else "", seconds), flush=True)
    print("download: %(passed)d passed, %(failed)d failed, %(skipped)d skipped" % counts)
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())

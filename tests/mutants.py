"""Do the tests notice when the code is wrong? Operators and constants of a file are changed, one at a time, and the
module's own tests run. It prints how many changes they noticed, and each one that no test noticed.

    python3 tests/mutants.py [COUNT] [FILE..]

COUNT changes of each FILE are chosen by chance (another SEED=N chooses others); "all" tries every one. Default: $MUTANTS
or 40, of all files of TESTS_OF. A test that hangs or crashes has noticed, too. Exit 1 if fewer than MINIMUM % are
noticed in a file. With GOLDEN=DIR the tests use the larger reference data.

A change that compiles to the same machine code is none and is counted apart, as is one that does not compile. Changes
that make no difference to what a caller can see stand in EQUIVALENT, each with its reason, and are counted apart as well.
"""
import glob, os, random, re, resource, shutil, subprocess, sys, tempfile
from concurrent.futures import ThreadPoolExecutor

MINIMUM = 90
TESTS_OF = {"json.c": ["test_json"],
            "safetensors.c": ["test_safetensors", "test_weights"],
            "checkpoint/weights.c": ["test_weights", "test_checkpoint"],
            "tokenizer.c": ["test_tokenizer"],
            "tokenizer/added.c": ["test_tokenizer"],
            "tokenizer/read.c": ["test_tokenizer"],
            "tokenizer/trie.c": ["test_tokenizer"],
            "tokenizer/chat.c": ["test_tokenizer"]}
MODULES = [".", "base", "kernels", "tokenizer", "generate", "checkpoint"] # folders

EQUIVALENT = "tests/data/equivalent_changes.txt"
FLAGS = "-std=c11 -O1 -w -I.".split()
CC = os.environ.get("CC", "cc")
JOBS = 2


def equivalent_changes():
    """{file: {(code with the changed part in «», what that becomes)}}"""
    found = {}
    with open(EQUIVALENT, encoding="utf-8") as f:
        for line in f:
            if line.startswith("["):
                changes = found.setdefault(line.strip("[]\n"), set())
            elif "\t" in line:
                changes.add(tuple(line.rstrip("\n").split("\t")))
    return found


def next_number(m):
    return "0" if m.group() == "1" else str(int(m.group(), 0) + 1)


BINARY = [("<", "<="), (">", ">="), ("+", "-"), ("-", "+"), ("*", "+"), ("/", "*"), ("%", "/"), ("&", "|"), ("|", "&"),
          ("^", "|")]
OPERATORS = [(r"(?<=\s)%s(?=\s)" % re.escape(a), b) for a, b in BINARY] + [
    (r"<=", "<"), (r">=", ">"), (r"==", "!="), (r"!=", "=="), (r"&&", "||"), (r"\|\|", "&&"), (r"\+=", "-="),
    (r"-=", "+="), (r"<<(?=\s)", ">>"), (r">>(?=\s)", "<<"), (r"\+\+", "--"), (r"--", "++"),
    (r"\btrue\b", "false"), (r"\bfalse\b", "true"), (r"(?<=[\s(])!(?=[\w(*])", ""),
    (r"\bcontinue;", "break;"), (r"\breturn -1\b", "return 0"), (r"(?<!return )(?<!\w)-1\b(?!\.)", "1"),
    (r"(?<![\w.-])(0x[0-9a-f]+|\d+)(?=[uU]?\b(?!\.))", next_number)]
BUFFERS = r"\bchar (\w+\[\w+\](, )?)+(;| =)|\bv?snprintf\([^,]+, [^,]+," # their sizes: more room makes no difference
CHECK = """
#include "%s/tests/check.h"
#undef check /* the first failure ends the run */
#define check(condition, ...) ((condition) ? (void)0 : _Exit(1))
"""


def blank(m):
    return re.sub(r"[^\n]", "\0", m.group())


def places(text):
    """(begin, end, replacement) of every possible change outside of comments, texts and preprocessor lines."""
    code = re.sub(r"/\*.*?\*/|//[^\n]*|\"(\\.|[^\"\\\n])*\"|'(\\.|[^'\\\n])+'", blank, text, flags=re.S)
    code = re.sub(BUFFERS, blank, re.sub(r"(?m)^\s*#(\\\n|[^\n])*", blank, code))
    for pattern, to in OPERATORS:
        for m in re.finditer(pattern, code):
            yield m.start(), m.end(), to(m) if callable(to) else to


def shown(text, begin, end, to):
    """The line with the changed part marked, and what that becomes."""
    first, last = text.rfind("\n", 0, begin) + 1, text.find("\n", end)
    return "%s«%s»%s" % (text[first:begin].lstrip(), text[begin:end], text[end:last]), to


def limit(seconds):
    """A wrong program may ask for any amount of time and memory."""
    def set_limits():
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
        resource.setrlimit(resource.RLIMIT_DATA, (2 << 30, 2 << 30))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    return set_limits


def passes(program, seconds, folder):
    """Whether it exits with 0 within so many seconds of processor time. A program that waits forever is ended after ten
    times as many looks, a second apart; a clock would go on while the machine is busy elsewhere."""
    tmp = tempfile.mkdtemp(dir=folder)
    child = subprocess.Popen([program], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                             env={**os.environ, "TMPDIR": tmp}, preexec_fn=limit(seconds))
    for _ in range(10 * seconds):
        try:
            child.wait(1)
            break
        except subprocess.TimeoutExpired:
            pass
    child.kill()
    shutil.rmtree(tmp, ignore_errors=True)
    return child.wait() == 0


def compile(source, to, *flags):
    return subprocess.run([CC, *FLAGS, *flags, "-c", source, "-o", to], stderr=subprocess.DEVNULL).returncode == 0


class Bench:
    """The object files of all modules and of the tests of some files, to be linked with a changed one."""

    def __init__(self, files, folder):
        self.folder, self.objects, self.seconds = folder, {}, {}
        with open(folder + "/first.h", "w") as f:
            f.write(CHECK % os.getcwd())
        tests = {t for file in files for t in TESTS_OF[file]}
        sources = [os.path.normpath(f) for m in MODULES for f in glob.glob(m + "/*.c") if f != "./run.c"]
        sources += ["tests/%s.c" % t for t in tests]
        for source in sources:
            self.objects[source] = to = folder + "/" + source.replace("/", "_") + ".o"
            extra = ["-include", folder + "/first.h"] if source.startswith("tests/") else []
            if not compile(source, to, *extra):
                sys.exit("mutants: %s does not compile" % source)
        for test in tests:
            program = self.link(test, "", folder + "/" + test)
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            if not passes(program, 120, folder):
                sys.exit("mutants: %s fails as it is" % test)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            self.seconds[test] = int(2 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)) + 2

    def link(self, test, file, to, changed=None):
        others = [o for f, o in self.objects.items() if f != file and not f.startswith("tests/")]
        objects = [self.objects["tests/%s.c" % test], *others, *([changed] if changed else [])]
        subprocess.run([CC, "-o", to, *objects, "-lm", "-lpthread"], check=True)
        return to

    def compile_text(self, text, folder):
        """The object file's bytes, or None if it does not compile."""
        with open(folder + "/changed.c", "w") as f:
            f.write(text)
        if not compile(folder + "/changed.c", folder + "/changed.o"):
            return None
        with open(folder + "/changed.o", "rb") as f:
            return f.read()

    def verdict(self, file, text, original):
        """What becomes of the tests with this text in place of the file, whose object file is `original`."""
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            code = self.compile_text(text, folder)
            if code is None:
                return "does not compile"
            if code == original:
                return "the same code"
            for test in TESTS_OF[file]:
                program = self.link(test, file, folder + "/test", folder + "/changed.o")
                if not passes(program, self.seconds[test], folder):
                    return "noticed"
            return "unnoticed"


def check_file(file, count, bench, equivalent):
    """How many changes of a file were noticed and tried, and whether that is enough. A change that says nothing of the
    tests is replaced by another."""
    with open(file) as f:
        text = f.read()
    with tempfile.TemporaryDirectory(dir=bench.folder) as folder:
        original = bench.compile_text(text, folder)
    candidates = list(places(text))

    def reason(candidate):
        line, to = shown(text, *candidate)
        return [key for key in equivalent if key[0] in line and key[1] == to]

    stale = equivalent - {key for c in candidates for key in reason(c)}
    for code, to in sorted(stale):
        print(f"  no such change any more: {file}: {code} -> {to}")
    random.Random(os.environ.get("SEED", "1")).shuffle(candidates)
    tally = dict.fromkeys(["noticed", "unnoticed", "equivalent", "the same code", "does not compile"], 0)

    def judge(candidate):
        begin, end, to = candidate
        if reason(candidate):
            return candidate, "equivalent"
        return candidate, bench.verdict(file, text[:begin] + to + text[end:], original)

    with ThreadPoolExecutor(JOBS) as pool:
        while candidates and (count is None or tally["noticed"] + tally["unnoticed"] < count):
            some = len(candidates)
            if count is not None:
                some = min(some, count - tally["noticed"] - tally["unnoticed"])
            for candidate, verdict in pool.map(judge, [candidates.pop() for _ in range(some)]):
                tally[verdict] += 1
                if verdict == "unnoticed":
                    line, to = shown(text, *candidate)
                    print(f"  unnoticed: {file}:{text.count(chr(10), 0, candidate[0]) + 1}: {line} -> {to}", flush=True)
    tried = tally["noticed"] + tally["unnoticed"]
    share = 100 * tally["noticed"] / max(tried, 1)
    rest = ", ".join(f"{n} {what}" for what, n in tally.items() if what not in ("noticed", "unnoticed"))
    print(f"{file}: {tally['noticed']} of {tried} changes noticed, {share:.1f}% ({rest}; {len(candidates)} not tried)",
          flush=True)
    return tally["noticed"], tried, share >= MINIMUM and not stale


def main():
    os.chdir(os.path.dirname(os.path.abspath(__file__)) + "/..")
    arguments = sys.argv[1:]
    is_count = arguments and (arguments[0] == "all" or arguments[0].isdigit())
    count = arguments.pop(0) if is_count else os.environ.get("MUTANTS", "40")
    files = arguments or list(TESTS_OF)
    unknown = [f for f in files if f not in TESTS_OF]
    if unknown:
        sys.exit("mutants: no tests are known for %s, only for %s" % (unknown[0], ", ".join(TESTS_OF)))
    with tempfile.TemporaryDirectory() as folder:
        bench, equivalent = Bench(files, folder), equivalent_changes()
        results = [check_file(f, None if count == "all" else int(count), bench, equivalent.get(f, set()))
                   for f in files]
    caught, tried = (sum(r[i] for r in results) for i in range(2))
    print(f"mutants: {caught} of {tried} changes noticed, {100 * caught / max(tried, 1):.1f}%")
    sys.exit(not all(good for _, _, good in results))


main()

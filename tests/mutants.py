"""Do the tests notice when the code is wrong? Operators and constants of json.c, safetensors*.c and tokenizer.c are
changed, one at a time, and the room's tests run: the share that fails is printed, and what no test noticed.

    python3 tests/mutants.py [COUNT [FILE..]]      COUNT changes of each file, chosen by chance (100); 0: all

With GOLDEN=DIR the tests use the larger reference data, too. An unnoticed change is not always a fault of the tests:
some make no difference (a buffer that grows earlier), or only to the wording of a message.
"""
import glob, os, random, re, subprocess, sys, tempfile

ROOMS = {"json.c": ["test_json", "test_safetensors"],
         "safetensors.c": ["test_safetensors", "test_checkpoint"],
         "safetensors_header.c": ["test_safetensors", "test_checkpoint"],
         "tokenizer.c": ["test_tokenizer"],
         "tokenizer_read.c": ["test_tokenizer"],
         "tokenizer_chat.c": ["test_tokenizer"]}
FLAGS = "-std=c11 -O1 -ffp-contract=off -D_GNU_SOURCE -w".split()
CC = os.environ.get("CC", "cc")
CHANGES = [(r"<=", "<"), (r">=", ">"), (r"==", "!="), (r"!=", "=="), (r"(?<=\s)<(?=\s)", "<="), (r"(?<=\s)>(?=\s)", ">="),
           (r"&&", "||"), (r"\|\|", "&&"), (r"(?<=\s)\+(?=\s)", "-"), (r"(?<=\s)-(?=\s)", "+"), (r"\+=", "-="), (r"-=", "+="),
           (r"(?<=\s)\*(?=\s)", "+"), (r"<<(?=\s)", ">>"), (r">>(?=\s)", "<<"), (r"(?<=\s)&(?=\s)", "|"), (r"(?<=\s)\|(?=\s)", "&"),
           (r"\+\+", "--"), (r"\btrue\b", "false"), (r"\bfalse\b", "true"), (r"(?<=[\s(])!(?=[\w(*])", ""),
           (r"\bcontinue;", "break;"), (r"\breturn -1\b", "return 0"),
           (r"(?<![\w.'\"])0x[0-9a-f]+(?![\w.])", lambda m: hex(int(m.group(), 16) + 1)),
           (r"(?<![\w.'\"])\d+(?![\w.])", lambda m: str(int(m.group()) + 1))]


def blank(m):
    return re.sub(r"[^\n]", "\0", m.group())


def places(text):
    """(begin, end, replacement) of every possible change, comments, texts and preprocessor lines aside."""
    code = re.sub(r"/\*.*?\*/|//[^\n]*|\"(\\.|[^\"\\\n])*\"|'(\\.|[^'\\\n])+'", blank, text, flags=re.S)
    code = re.sub(r"(?m)^\s*#(\\\n|[^\n])*", blank, code)
    for pattern, to in CHANGES:
        for m in re.finditer(pattern, code):
            yield m.start(), m.end(), to(m) if callable(to) else to


def run(program, seconds):
    try:
        return subprocess.run([program], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL, timeout=seconds, start_new_session=True).returncode
    except subprocess.TimeoutExpired:
        return -1


def objects(folder):
    made = {}
    for source in [f for f in glob.glob("*.c") if f != "run.c"] + ["tests/%s.c" % t for t in {t for r in ROOMS.values() for t in r}]:
        built = os.environ.get("BUILD", "build") + "/" + source[:-2] + ".o"
        if source not in ROOMS and os.path.exists(built) and os.path.getmtime(built) > os.path.getmtime(source):
            made[source] = built # by make
        elif os.path.exists(source):
            made[source] = folder + "/" + source.replace("/", "_") + ".o"
            subprocess.run([CC, *FLAGS, "-c", source, "-o", made[source]], check=True)
    return made


def compile_and_test(file, source, made, folder):
    """None: doesn't compile, or says the same machine code; else whether a test noticed."""
    changed = folder + "/changed.o"
    if subprocess.run([CC, *FLAGS, "-iquote", ".", "-c", source, "-o", changed], stderr=subprocess.DEVNULL).returncode:
        return None
    same = subprocess.run(["cmp", "-s", changed, folder + "/original.o"]).returncode == 0
    if same:
        return None
    for test in ROOMS[file]:
        if "tests/%s.c" % test not in made:
            continue
        rooms = [o for f, o in made.items() if f != file and not f.startswith("tests/")]
        subprocess.run([CC, "-o", folder + "/test", made["tests/%s.c" % test], changed, *rooms, "-lm", "-lpthread"], check=True)
        if run(folder + "/test", 60):
            return True
    return False


def check_file(file, count, made, folder):
    text = open(file).read()
    source = folder + "/changed.c"
    open(source, "w").write(text)
    subprocess.run([CC, *FLAGS, "-iquote", ".", "-c", source, "-o", folder + "/original.o"], check=True)
    candidates = list(places(text))
    random.Random(1).shuffle(candidates)
    caught = tried = 0
    for begin, end, to in candidates:
        if count and tried >= count:
            break
        open(source, "w").write(text[:begin] + to + text[end:])
        noticed = compile_and_test(file, source, made, folder)
        if noticed is None:
            continue
        tried += 1
        caught += noticed
        if not noticed:
            line = text.count("\n", 0, begin)
            print(f"  unnoticed: {file}:{line + 1}: {text[begin:end]} -> {to}: {text.splitlines()[line].strip()}", flush=True)
    print(f"{file}: {caught} of {tried} changes noticed, {100 * caught / max(tried, 1):.0f}% ({len(candidates)} possible)", flush=True)
    return caught, tried


def main():
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    os.chdir(os.path.dirname(os.path.abspath(__file__)) + "/..")
    files = sys.argv[2:] or [f for f in ROOMS if os.path.exists(f)]
    with tempfile.TemporaryDirectory() as folder:
        made = objects(folder)
        results = [check_file(f, count, made, folder) for f in files]
    caught, tried = (sum(r[i] for r in results) for i in range(2))
    print(f"mutants: {caught} of {tried} changes noticed, {100 * caught / max(tried, 1):.1f}%")


main()

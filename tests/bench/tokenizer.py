#!/usr/bin/env python3
"""MB/s of run's tokenizer beside tokenizers, tiktoken and fastokens on four texts.  Prints a Markdown table.

usage: tokenizer.py TOKENIZER.json [--size 5] [--rounds 3] [--document 64] [--engines run,tokenizers,tiktoken,fastokens]

The texts are put together from the tokenizer's own vocabulary by a fixed generator, so that no outside text is needed
and every run has the same bytes (their SHA-256 is printed): words in the order of their ids, by Zipf's law; Chinese
from pieces of Han characters; code as functions in the manner of C and Python; mixed: all of these, other scripts and
emoji in turn.  They are easier than real text for whoever remembers words.

Each round is a fresh process for each engine on one core: the tokenizer is opened, then each text is encoded document
by document (64 KB).  Time is the process' CPU time, which other load disturbs less than the clock.  The engines take
turns; of the rounds the median counts.  The ids of all of them must be those of `tokenizers`.  run's tokenizer is
compiled from this repository's sources with cc (tokenizer_time.c); the others are called from Python and hand over
their ids as they do to any Python program.
Needs: pip install tokenizers tiktoken fastokens, those of them that are asked for.
"""
import argparse
import array
import bisect
import datetime
import glob
import hashlib
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
import unicodedata

import peer

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TEXTS = ("mixed", "english", "chinese", "code")


# ---- the texts ------------------------------------------------------------------------------------------------------

def vocabulary(path):
    """Bytes of every entry, in the order of ids."""
    keep = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letter = {chr(b): b for b in keep}
    letter.update({chr(256 + i): b for i, b in enumerate(b for b in range(256) if b not in keep)})
    vocab = json.load(open(path, encoding="utf-8"))["model"]["vocab"]
    return [bytes(letter[c] for c in token) for token in sorted(vocab, key=vocab.get)]


class Zipf:
    """Draws from a list, the earlier the likelier."""

    def __init__(self, items, rng):
        self.items, self.rng, self.sums, total = items, rng, [], 0.0
        for rank in range(len(items)):
            total += 1 / (rank + 2.7)
            self.sums.append(total)

    def __call__(self):
        return self.items[min(bisect.bisect(self.sums, self.rng.random() * self.sums[-1]), len(self.items) - 1)]


class Writer:
    """Paragraphs of each kind."""

    def __init__(self, path, seed):
        self.rng = random.Random(seed)
        pieces = []
        for piece in vocabulary(path):
            try:
                pieces.append(piece.decode())
            except UnicodeDecodeError:
                pass
        pieces = [p for p in pieces if unicodedata.normalize("NFC", p) == p]
        self.word = Zipf([p[1:] for p in pieces if re.fullmatch(" [a-z]{2,}", p)][:30000], self.rng)
        self.end = Zipf([p for p in pieces if re.fullmatch("[a-z]{2,6}", p)][:2000], self.rng)
        self.han = Zipf([p for p in pieces if re.fullmatch("[\u4e00-\u9fa5]+", p)], self.rng)
        others = ["[\u0400-\u045f ]+", "[\u3040-\u30ff]+", "[\uac00-\ud7a3]+", "[\u0620-\u064a ]+", "[a-zà-öø-ÿ ]+"]
        found = [[p for p in pieces if re.fullmatch(o, p) and not p.isascii()][:4000] for o in others]
        self.others = [Zipf(f, self.rng) for f in found if f]

    def number(self, below):
        return int(self.rng.random() * below)

    def some(self, *choices):
        return choices[self.number(len(choices))]

    def english(self):
        sentences = []
        for _ in range(3 + self.number(5)):
            words = []
            for _ in range(5 + self.number(18)):
                kind, word = self.rng.random(), self.word()
                if kind < 0.03:
                    word = self.word() + self.end()
                elif kind < 0.05:
                    word = str(self.number(3000))
                elif kind < 0.07:
                    word = self.some("don't", "it's", "they're", "I'll", "we've", "she'd", "John's", "I'm")
                elif kind < 0.10:
                    word = word.capitalize()
                elif kind < 0.16:
                    word += ","
                words.append(word)
            text = " ".join(words)
            sentences.append(text[0].upper() + text[1:] + self.some(".", ".", ".", ".", "?", "!", ";", '."'))
        return " ".join(sentences) + "\n\n"

    def chinese(self):
        clauses = ["".join(self.han() for _ in range(2 + self.number(7))) + self.some("，", "，", "。", "、", "？", "；")
                   for _ in range(4 + self.number(20))]
        if self.rng.random() < 0.3:
            clauses.insert(len(clauses) // 2, str(self.number(10000)))
        return "".join(clauses)[:-1] + "。\n" + self.some("", "\n")

    def name(self):
        style = self.rng.random()
        if style < 0.5:
            return self.word()
        return self.word() + ("_" + self.word() if style < 0.8 else self.word().capitalize())

    def expression(self):
        return self.some(f"{self.name()}[{self.name()}]", f"{self.name()} + {self.number(256)}", f"{self.name()}()",
                         f"{self.name()}->{self.name()}", f'"{self.word()} %d\\n"',
                         f"{self.name()}({self.name()}, {self.name()})",
                         f"0x{self.number(65536):04x}", f"(float){self.name()} * 0.5f", f"!{self.name()}")

    def c_line(self):
        return self.some(f"if ({self.expression()} == {self.expression()}) {{", "}", "",
                         f"{self.name()} = {self.expression()};", f"return {self.expression()};",
                         f"/* {self.word()} {self.word()} the {self.word()} */",
                         f"for (int i = 0; i < {self.name()}; i++)", f"\t{self.name()}({self.expression()});")

    def python_line(self):
        return self.some(f"self.{self.name()} = {self.expression()}", f"# {self.word()} {self.word()}",
                         f"if not {self.name()}:", f"return {self.name()}", f"for {self.word()} in {self.name()}:",
                         f"{self.name()}.append({{'{self.word()}': {self.number(100)}}})")

    def code(self):
        first, line, last = self.some(
            (f"static int {self.name()}(const char *{self.word()}, size_t {self.word()})\n{{", self.c_line, "}\n\n"),
            (f"def {self.name()}(self, {self.word()}, {self.word()}=None):", self.python_line, "\n\n"))
        lines = ["    " * (1 + self.number(3)) + line() for _ in range(3 + self.number(10))]
        return "\n".join([first, *lines, last])

    def other(self):
        piece = self.others[self.number(len(self.others))]
        return "".join(piece() for _ in range(20 + self.number(60))) + self.some(" 😀", " 👍🏽", " 🎉🎉", "", "") + "\n"

    def mixed(self):
        return self.some(self.english, self.chinese, self.code, self.other)()

    def text(self, kind, size):
        parts, length = [], 0
        while length < size:
            parts.append(getattr(self, kind)())
            length += len(parts[-1].encode())
        return unicodedata.normalize("NFC", "".join(parts))


def documents(text, size):
    """Runs of whole lines of about SIZE bytes."""
    found, part, length = [], [], 0
    for line in text.splitlines(keepends=True):
        part.append(line)
        length += len(line.encode())
        if length >= size:
            found.append("".join(part))
            part, length = [], 0
    return found + (["".join(part)] if part else [])


# ---- the engines ----------------------------------------------------------------------------------------------------

def open_engine(engine, path):
    """A function from a text to its ids."""
    if engine == "tokenizers":
        from tokenizers import Tokenizer
        opened = Tokenizer.from_file(path)
        return lambda text: opened.encode(text).ids
    if engine == "fastokens":
        from fastokens import Tokenizer
        opened = Tokenizer.from_file(path)
        sample = opened.encode("a")
        return opened.encode if isinstance(sample, list) else lambda text: opened.encode(text).ids
    import tiktoken
    read = json.load(open(path, encoding="utf-8"))
    pattern = next(p["pattern"]["Regex"] for p in read["pre_tokenizer"]["pretokenizers"] if p["type"] == "Split")
    ranks = {piece: rank for rank, piece in enumerate(vocabulary(path))}
    opened = tiktoken.Encoding("qwen2", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    return opened.encode_ordinary


def child(engine, path, ids_path, texts):
    """tokenizer_time.c in Python."""
    if engine == "tiktoken":
        import tiktoken  # noqa: F401, loaded before the clock starts
    else:
        __import__(engine)
    begin = time.process_time()
    encode = open_engine(engine, path)
    open_ms, seconds = 1e3 * (time.process_time() - begin), []
    with open(ids_path, "wb") as out:
        for name in texts:
            parts = open(name, encoding="utf-8", newline="").read().split("\0")[:-1]
            encode(parts[0])
            begin = time.process_time()
            found = [encode(part) for part in parts]
            seconds.append(time.process_time() - begin)
            for ids in found:
                array.array("i", ids).tofile(out)
    print(json.dumps({"open_ms": open_ms, "seconds": seconds}))


def build(folder):
    """Compiles run's tokenizer as `make` does."""
    program = os.path.join(folder, "tokenizer_time")
    sources = [source for pattern in ("tokenizer.c", "tokenizer/*.c", "json.c", "base/*.c")
               for source in glob.glob(os.path.join(ROOT, pattern))]
    subprocess.run([os.environ.get("CC", "cc"), "-std=c11", "-O3", "-ffp-contract=off", "-I", ROOT, "-o", program,
                    os.path.join(ROOT, "tests", "bench", "tokenizer_time.c"), *sources, "-lm", "-lpthread"], check=True)
    return program


def measure(engine, program, path, ids_path, texts):
    command = [program] if engine == "run" else [sys.executable, os.path.abspath(__file__), "--child", engine]
    core = {min(os.sched_getaffinity(0))}
    done = subprocess.run(command + [path, ids_path, *texts], capture_output=True, text=True,
                          env={**os.environ, "TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"},
                          preexec_fn=lambda: os.sched_setaffinity(0, core))
    if done.returncode:
        sys.exit(f"{engine}: {done.stderr[-2000:]}")
    ids = hashlib.sha256(open(ids_path, "rb").read()).hexdigest()
    return {**json.loads(done.stdout.splitlines()[-1]), "ids": ids}


# ---- the table ------------------------------------------------------------------------------------------------------

def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("tokenizer", help="tokenizer.json of a Qwen2 model")
    p.add_argument("--engines", default="run,tokenizers,tiktoken,fastokens")
    p.add_argument("--size", type=float, default=5, help="MB of each text")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--document", type=int, default=64, help="KB")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--keep", help="folder to write the texts to")
    return p.parse_args()


def write_texts(a, folder):
    """Names of the files and their sizes."""
    names, sizes = [], []
    for kind in TEXTS:
        text = Writer(a.tokenizer, a.seed).text(kind, a.size * 1e6)
        names.append(os.path.join(folder, kind))
        sizes.append(len(text.encode()))
        with open(names[-1], "w", encoding="utf-8", newline="") as f:
            f.write("".join(part + "\0" for part in documents(text, a.document * 1000)))
        print(f"{kind}: {sizes[-1]} bytes, SHA-256 {hashlib.sha256(text.encode()).hexdigest()}  ", flush=True)
        if a.keep:
            os.makedirs(a.keep, exist_ok=True)
            with open(os.path.join(a.keep, kind + ".txt"), "w", encoding="utf-8", newline="") as f:
                f.write(text)
    return names, sizes


def print_table(found, sizes):
    reference = found.get("tokenizers", next(iter(found.values())))[0]["ids"]
    print("| MB/s | " + " | ".join(TEXTS) + " | open, ms | ids |\n|---|" + "---|" * (len(TEXTS) + 2))
    for engine, rounds in found.items():
        speeds = [sizes[i] / 1e6 / statistics.median(r["seconds"][i] for r in rounds) for i in range(len(TEXTS))]
        same = "same" if all(r["ids"] == reference for r in rounds) else "DIFFERENT"
        print(f"| {engine} | " + " | ".join(f"{s:.1f}" for s in speeds) +
              f" | {statistics.median(r['open_ms'] for r in rounds):.0f} | {same} |")
    return any(r["ids"] != reference for rounds in found.values() for r in rounds)


def main():
    if sys.argv[1:2] == ["--child"]:
        return child(sys.argv[2], sys.argv[3], sys.argv[4], sys.argv[5:])
    a = arguments()
    print(f"{peer.machine()}; one core  \n{datetime.datetime.now():%Y-%m-%d %H:%M}; {', '.join(peer.versions())}  ")
    with tempfile.TemporaryDirectory() as folder:
        texts, sizes = write_texts(a, folder)
        program, found, before = build(folder), {}, peer.load_average()
        for _ in range(a.rounds):
            for engine in a.engines.split(","):
                result = measure(engine, program, a.tokenizer, os.path.join(folder, "ids"), texts)
                found.setdefault(engine, []).append(result)
    print(f"load before {before}, after {peer.load_average()}\n")
    return int(print_table(found, sizes))


sys.exit(main())

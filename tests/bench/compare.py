#!/usr/bin/env python3
"""Speed, start and memory of run beside llama.cpp on one checkpoint.  Prints a Markdown table.

usage: compare.py MODEL [--types f32,bf16,bf16-fast,q8,q4] [--threads 2,1] [--parts prefill,decode,deep,batch,lookup,start,memory]

Each measurement is a fresh process, the two engines taking turns, and every round goes through all of them; of the
rounds the median counts, with the least and the most beside it.  llama.cpp runs with and without flash attention, and
the better of the two medians is its figure (--flash 1 or 0: only that one).

    prefill   tokens/s of a prompt of 512
    decode    tokens/s of 64 tokens from an empty cache; also the share of the read bandwidth that run's threads reach
    deep      the same behind 2048 positions
    batch     tokens/s of 8 sequences of 64 tokens, one of each in every step: run's generate --jsonl --parallel 8
    lookup    tokens/s of 64 greedy tokens behind a text that repeats itself (--text), with n-grams of it as drafts
    start     ms to the first token of a 4-token prompt: of run the whole process, of llama.cpp from opening the
              model on (Python's own start isn't counted), both from a warm page cache
    memory    peak resident MB with a prompt of 512 and 64 tokens (without what Python held before); one round

bf16-fast is `run -w bf16 --fast`, beside BF16.  Needs: pip install llama-cpp-python gguf numpy.  Wants a quiet machine:
the load before and after stands above the table.
"""
import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import time

import peer

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
UNITS = {"prefill": "tok/s", "decode": "tok/s", "deep": "tok/s", "batch": "tok/s", "lookup": "tok/s", "start": "ms", "memory": "MB"}


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model", help="folder of a Qwen2 checkpoint")
    p.add_argument("--run", default=os.path.join(ROOT, "run"))
    p.add_argument("--gguf", help="folder of the GGUF files (build/gguf/NAME)")
    p.add_argument("--types", default="f32,bf16,bf16-fast,q8,q4")
    p.add_argument("--threads", default="2,1")
    p.add_argument("--parts", default="prefill,decode,deep,batch,start,memory")
    p.add_argument("--text", default="Once upon a time, there was a girl. ", help="of lookup: eight times this")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--prompt", type=int, default=512)
    p.add_argument("--tokens", type=int, default=64)
    p.add_argument("--depth", type=int, default=2048, help="of deep")
    p.add_argument("--flash", default="1,0")
    p.add_argument("--json", help="write every single measurement to this file, too")
    a = p.parse_args()
    for key in ("types", "threads", "parts", "flash"):
        setattr(a, key, getattr(a, key).split(","))
    unknown = (set(a.types) - set(peer.TYPES) - {"bf16-fast"}) | (set(a.parts) - set(UNITS))
    if unknown:
        p.error("unknown type or part: " + ", ".join(sorted(unknown)))
    a.gguf = a.gguf or os.path.join(ROOT, "build", "gguf", os.path.basename(os.path.abspath(a.model)))
    return a


# ---- one measurement ------------------------------------------------------------------------------------------------

def run_command(a, command, kind, threads, *rest):
    words = [a.run, command, "-m", a.model, "-w", kind.split("-")[0], "-t", threads, "-q", "--json", *map(str, rest)]
    return words + ["--fast"] if kind.endswith("-fast") else words


def peak_mb(pid, peak):
    """The process' peak up to now; once it has ended, the last that was seen."""
    try:
        lines = open(f"/proc/{pid}/status").readlines()
    except OSError:
        return peak
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM")), peak)


def run_process(words, watch=False):
    """(output, ms, peak MB) of a whole process.  The peak is asked for every 5 ms, if at all: what wait4() says starts
    from the size of the process that started it."""
    begin, peak = time.perf_counter(), 0
    child = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    while watch and child.poll() is None:
        peak = peak_mb(child.pid, peak)
        time.sleep(0.005)
    output, _ = child.communicate()
    ms = 1e3 * (time.perf_counter() - begin)
    if child.returncode:
        sys.exit(f"{' '.join(words)[:200]}: exit {child.returncode}")
    return output, ms, peak


def measure_run(a, kind, threads, part):
    """(figure, share of the read bandwidth or None)"""
    if part == "batch":
        return measure_batch(a, kind, threads), None
    if part == "lookup":
        words = run_command(a, "generate", kind, threads, "--greedy", "--ignore-eos", "-n", a.tokens + 1, "--draft",
                            "lookup", 8 * a.text)
        return a.tokens / json.loads(run_process(words)[0])["stats"]["s"], None
    if part in ("start", "memory"):
        ids, tokens = peer.some_ids(4 if part == "start" else a.prompt, 2000), 1 if part == "start" else a.tokens
        words = run_command(a, "generate", kind, threads, "--greedy", "--ignore-eos", "-n", tokens,
                            "--ids", ",".join(map(str, ids)))
        _, ms, mb = run_process(words, part == "memory")
        return (ms if part == "start" else mb), None
    prompt, tokens = (a.prompt, 0) if part == "prefill" else (0, a.tokens)
    depth = a.depth if part == "deep" else 0
    words = run_command(a, "bench", kind, threads, "-p", prompt, "-n", tokens, "-d", depth, "-r", 1)
    report = json.loads(run_process(words)[0])
    if part == "prefill":
        return report["prefill"]["tok_s"], None
    return report["decode"]["tok_s"], report["decode"]["bandwidth_share"]


SEQUENCES = 8


def measure_batch(a, kind, threads):
    """Tokens/s after the first of each sequence."""
    ids = peer.some_ids(4 * SEQUENCES, 2000)
    requests = [{"ids": ids[4 * i:4 * i + 4], "max_tokens": a.tokens + 1} for i in range(SEQUENCES)]
    words = [a.run, "generate", "-m", a.model, "-w", kind.split("-")[0], "-t", threads, "-q", "--jsonl", "--greedy",
             "--ignore-eos", "--parallel", str(SEQUENCES)]
    done = subprocess.run(words, input="".join(json.dumps(r) + "\n" for r in requests), capture_output=True, text=True,
                          check=True)
    stats = [json.loads(line)["stats"] for line in done.stdout.splitlines()]
    return sum(s["tokens"] - 1 for s in stats) / max(s["s"] for s in stats)


def measure_peer(a, path, threads, part, flash):
    wanted = {"part": "decode" if part == "deep" else part, "threads": int(threads), "flash": int(flash),
              "prompt": a.prompt, "tokens": a.tokens, "depth": a.depth if part == "deep" else 0,
              "sequences": SEQUENCES}
    if part == "lookup":
        words = [a.run, "tokenize", "-m", a.model, "-q", "--json", 8 * a.text]
        wanted["ids"] = json.loads(run_process(words)[0])["ids"]
    return peer.ask("time", path, json.dumps(wanted))


def progress(text):
    if sys.stderr.isatty():
        print("\r\033[K" + text, end="", file=sys.stderr, flush=True)


def measure_all(a):
    """{(type, threads, part): {engine: [figures]}}; engines: run, share, flash1, flash0"""
    found, paths = {}, {k: peer.gguf_file(a.model, k.split("-")[0], a.gguf) for k in a.types}
    for turn in range(a.rounds):
        for kind, threads, part in ((k, t, p) for k in a.types for t in a.threads for p in a.parts):
            if part == "memory" and turn:
                continue
            progress(f"round {turn + 1} of {a.rounds}: {kind}, {threads} threads, {part}")
            row = found.setdefault((kind, threads, part), {})
            figure, share = measure_run(a, kind, threads, part)
            row.setdefault("run", []).append(figure)
            if share is not None:
                row.setdefault("share", []).append(share)
            for flash in a.flash:
                row.setdefault("flash" + flash, []).append(measure_peer(a, paths[kind], threads, part, flash))
    progress("")
    return found


# ---- the table ------------------------------------------------------------------------------------------------------

def digits(x):
    return f"{x:.1f}" if x < 100 else f"{x:.0f}"


def with_spread(values):
    text = digits(statistics.median(values))
    return text if len(values) == 1 else f"{text} ({digits(min(values))}-{digits(max(values))})"


def print_table(found):
    print("| type | threads | measured | run | llama.cpp | run / llama.cpp | share of bandwidth |")
    print("|---|---|---|---|---|---|---|")
    for (kind, threads, part), row in found.items():
        better = max if UNITS[part] == "tok/s" else min
        theirs = better((row[e] for e in row if e.startswith("flash")), key=statistics.median)
        ratio = statistics.median(row["run"]) / statistics.median(theirs)
        share = f"{100 * statistics.median(row['share']):.0f}%" if "share" in row else ""
        print(f"| {kind} | {threads} | {part}, {UNITS[part]} | {with_spread(row['run'])} | {with_spread(theirs)} "
              f"| {ratio:.2f} | {share} |")


def main():
    a = arguments()
    before, began = peer.load_average(), datetime.datetime.now()
    found = measure_all(a)
    version = subprocess.run([a.run, "--version"], capture_output=True, text=True).stdout.strip()
    print(f"{peer.machine()}  \n{began:%Y-%m-%d %H:%M}; {version}; {', '.join(peer.versions())}  ")
    print(f"prompt {a.prompt}, {a.tokens} tokens, deep {a.depth}; medians of {a.rounds} rounds (least-most); "
          f"tok/s: more is better, ms and MB: less  ")
    print(f"load before {before}, after {peer.load_average()}\n")
    print_table(found)
    if a.json:
        with open(a.json, "w") as f:
            json.dump([{"type": k, "threads": t, "part": p, **row} for (k, t, p), row in found.items()], f, indent=1)


main()

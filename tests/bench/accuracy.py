#!/usr/bin/env python3
"""What quantising costs: q8 and q4 against f32, beside llama.cpp's Q8_0 and Q4_0 on the same ids.  Markdown table.

usage: accuracy.py [MODEL] [--ids FILE | --text FILE] [--limit N]

Without MODEL: the demo model, on held-out stories and conversations that its own generator writes (tests/demo/made).
--text: one text, of which each paragraph is taken by itself.  --ids: a JSON list of lists of ids, or the full.json of
the reference data, whose cases are taken with their greedy continuation.

For each position the logits of f32 give the distribution p, those of the other weights q:

    KL          sum over the vocabulary of p (log p - log q), in nats, the mean over all positions; beside it the
                largest of one position
    perplexity  exp of the mean of -log q(next id)
    same top    share of positions whose likeliest token is the same

q8 and q4 keep keys and values as FP16 unless --kv says otherwise.  llama.cpp does so always, and rounds activations to
BF16 or 8 bits as its users have it; its F32 row shows what that alone makes.  Needs: pip install llama-cpp-python gguf
numpy.  Exit status 1 if q4 has a larger KL than its peer, or q8 one larger by a twentieth: those two round alike and
differ by chance.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

import numpy as np

import peer

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DEMO = os.path.join(ROOT, "tests", "demo")


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model", nargs="?", default=DEMO)
    p.add_argument("--run", default=os.path.join(ROOT, "run"))
    p.add_argument("--gguf", help="folder of the GGUF files (build/gguf/NAME)")
    p.add_argument("--ids")
    p.add_argument("--text")
    p.add_argument("--limit", type=int, help="most ids in all (8000; of a large vocabulary 256)")
    a = p.parse_args()
    vocab = json.load(open(os.path.join(a.model, "config.json")))["vocab_size"]
    a.limit = a.limit or (8000 if vocab < 10000 else 256)
    a.gguf = a.gguf or os.path.join(ROOT, "build", "gguf", os.path.basename(os.path.abspath(a.model)))
    return a


# ---- ids ------------------------------------------------------------------------------------------------------------

def demo_texts():
    """Held-out documents: of another seed than the training text's."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, os.path.join(DEMO, "made", "stories.py"), "--docs", "1", "--heldout", "60",
                        "--seed", "77", "--out", folder], check=True, stdout=subprocess.DEVNULL)
        return [json.loads(line)["text"] for line in open(os.path.join(folder, "heldout.jsonl"), encoding="utf-8")]


def encode(a, texts):
    lines = "".join(json.dumps({"text": t}) + "\n" for t in texts)
    done = subprocess.run([a.run, "tokenize", "-m", a.model, "--jsonl"], input=lines, capture_output=True, text=True,
                          check=True)
    return [json.loads(line)["ids"] for line in done.stdout.splitlines()]


def read_ids(a):
    """Lists of ids, --limit in all."""
    if a.ids:
        texts = json.load(open(a.ids))
        if isinstance(texts, dict):
            texts = [c["ids"] + c["greedy"] for c in texts["cases"]]
    elif a.text:
        texts = encode(a, [t for t in open(a.text, encoding="utf-8").read().split("\n\n") if t.strip()])
    else:
        texts = encode(a, demo_texts())
    left, kept = a.limit, []
    for ids in texts:
        kept += [ids[:left]] if len(ids[:left]) > 1 else []
        left -= len(ids[:left])
    return kept


# ---- logits ---------------------------------------------------------------------------------------------------------

def run_logits(a, texts, out, *options):
    with open(out, "wb") as all_:
        for ids in texts:
            subprocess.run([a.run, "logits", "-q", "-m", a.model, "--all", "--force", "--out", out + ".one",
                            "--ids", ",".join(map(str, ids)), *options], check=True)
            with open(out + ".one", "rb") as one:
                all_.write(one.read())
    os.remove(out + ".one")


def log_softmax(rows):
    x = rows.astype(np.float64)
    x -= x.max(axis=1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=1, keepdims=True))


def compare(texts, reference, other):
    """(mean KL, largest KL, perplexity of other, share of the same likeliest token)"""
    kl, nll, same = [], [], []
    positions = sum(map(len, texts))
    p_all, q_all = (np.memmap(f, "<f4", "r").reshape(positions, -1) for f in (reference, other))
    start = 0
    for ids in texts:
        for begin in range(0, len(ids), 64):
            end = min(begin + 64, len(ids))
            p, q = (log_softmax(x[start + begin:start + end]) for x in (p_all, q_all))
            kl.append((np.exp(p) * (p - q)).sum(axis=1))
            same.append(p.argmax(axis=1) == q.argmax(axis=1))
            nll += [-q[i - begin, ids[i + 1]] for i in range(begin, min(end, len(ids) - 1))]
        start += len(ids)
    kl, same = np.concatenate(kl), np.concatenate(same)
    return kl.mean(), kl.max(), float(np.exp(np.mean(nll))), same.mean()


def main():
    a = arguments()
    texts = read_ids(a)
    ways = [("run", name, ["-w", *name.split()]) for name in
            ("f32", "bf16", "bf16 --fast", "f32 --kv f16", "q8 --kv f32", "q8", "q4 --kv f32", "q4")]
    ways += [("llama.cpp", name, kind) for kind, name in peer.TYPES.items()]
    mean = {}
    print(f"{os.path.basename(os.path.abspath(a.model))}: {sum(map(len, texts))} ids in {len(texts)} texts; "
          f"{', '.join(peer.versions())}\n", flush=True)
    print("| engine | weights | mean KL from run's f32 | largest | perplexity | same top |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        reference, other = os.path.join(folder, "f32"), os.path.join(folder, "other")
        ids_file = os.path.join(folder, "ids.json")
        with open(ids_file, "w") as f:
            json.dump(texts, f)
        for engine, name, how in ways:
            out = other if mean else reference
            if engine == "run":
                run_logits(a, texts, out, *how)
            else:
                peer.ask("logits", peer.gguf_file(a.model, how, a.gguf), ids_file, out)
            kl, largest, perplexity, same = compare(texts, reference, out)
            mean[name] = kl
            print(f"| {engine} | {name} | {kl:.3g} | {largest:.3g} | {perplexity:.5g} | {100 * same:.1f}% |",
                  flush=True)
    q8, q4 = mean["q8"] / mean["Q8_0"], mean["q4"] / mean["Q4_0"]
    print(f"\nKL of q8 / Q8_0: {q8:.3f}; of q4 / Q4_0: {q4:.3f}")
    return int(q4 > 1 or q8 > 1.05)


sys.exit(main())

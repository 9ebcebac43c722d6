#!/usr/bin/env python3
"""Writes tests/data/sample_cases.jsonl: logits, options, and the ids that the reference's logits processors keep.

    python3 tests/make_sample_cases.py > tests/data/sample_cases.jsonl      (torch, transformers 5.24)

Each line is a case: {"logits", "seen", options as in generation_config.json, "ids": what is kept, "probs": theirs}.
Logits are multiples of 1/1024, so that the text has their exact values. Cases that rounding decides are left out; exact
ties are not.
"""
import json, random
import torch
from transformers.generation.logits_process import (MinPLogitsWarper, RepetitionPenaltyLogitsProcessor,
                                                    TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper)

random.seed(7)


def steps(o):
    if o.get("repetition_penalty", 1.0) != 1.0:
        yield RepetitionPenaltyLogitsProcessor(o["repetition_penalty"])
    if o.get("temperature", 1.0) != 1.0:
        yield TemperatureLogitsWarper(o["temperature"])
    if o.get("top_k", 0) != 0:
        yield TopKLogitsWarper(o["top_k"])
    if o.get("top_p", 1.0) < 1.0:
        yield TopPLogitsWarper(o["top_p"])
    if o.get("min_p", 0.0) > 0.0:
        yield MinPLogitsWarper(o["min_p"])


def decided_by_rounding(scores, step):
    p = torch.softmax(scores.double(), -1)[0]
    if isinstance(step, TopPLogitsWarper):
        sums = p.sort()[0].cumsum(-1) - (1 - step.top_p)
        close = sums.abs() < 1e-4
        return bool(close.any()) and step.top_p != 0.5
    if isinstance(step, MinPLogitsWarper):
        return bool(((p / p.max() - step.min_p).abs() < 1e-5).any()) and step.min_p != 1
    return False


def case(logits, seen, **o):
    scores = torch.tensor([logits], dtype=torch.float32)
    ids = torch.tensor([seen], dtype=torch.long)
    for step in steps(o):
        if decided_by_rounding(scores, step):
            return
        scores = step(ids, scores)
    probs = torch.softmax(scores.double(), -1)[0]
    left = [i for i, s in enumerate(scores[0].tolist()) if s != float("-inf")]
    print(json.dumps({"logits": logits, "seen": seen, **o, "ids": left,
                      "probs": [round(probs[i].item(), 9) for i in left]}))


def logits(n, grid):
    return [round(random.gauss(0, 3) * grid) / grid for _ in range(n)]


def seen(n):
    return [random.randrange(n) for _ in range(n // 3)]


# one step alone
for grid in (1024, 1):
    for r in (0.5, 1.05, 1.3, 2.0):
        case(logits(12, grid), seen(12), repetition_penalty=r)
    for t in (0.1, 0.7, 1.5, 100.0):
        case(logits(12, grid), [], temperature=t)
    for k in (1, 2, 5, 11, 12, 50):
        case(logits(12, grid), [], top_k=k)
    for p in (0.0, 1e-9, 0.1, 0.5, 0.8, 0.95, 0.999):
        case(logits(12, grid), [], top_p=p)
    for p in (0.001, 0.05, 0.3, 0.9, 1.0):
        case(logits(12, grid), [], min_p=p)

# exact ties and edges
case([-1.0, 1.0, 0.0], [0, 1, 2, 1], repetition_penalty=2.0)
for p in (0.0, 0.5, 0.9):
    case([1.0, 1.0], [], top_p=p)
    case([2.0, 2.0, 2.0, 2.0], [], top_p=p)
    case([0.0, 3.0, 3.0, -5.0, 3.0], [], top_p=p)
case([5.0, 5.0, 5.0, 4.0, 4.0], [], top_k=2)
case([5.0, 4.0, 4.0, 4.0, 3.0], [], top_k=2)
case([1.0] * 7, [], top_k=3, min_p=1.0)
case([0.0], [], top_k=1, top_p=0.3, min_p=0.5, temperature=0.3)
case([-100.0, -200.0, -300.0], [], top_p=0.9)

# all of them, growing
for i in range(60):
    n = random.choice((3, 8, 24, 70, 300))
    o = {}
    for key, values in (("repetition_penalty", (1.0, 1.1, 1.5)), ("temperature", (0.6, 0.7, 1.0, 1.3)),
                        ("top_k", (0, 3, 20, 50)), ("top_p", (0.5, 0.8, 0.95, 1.0)), ("min_p", (0.0, 0.05, 0.2))):
        o[key] = random.choice(values)
    case(logits(n, random.choice((1024, 4))), seen(n), **o)

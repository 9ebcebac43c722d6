#!/usr/bin/env python3
"""Writes tests/data/rope_bits.txt: the reference's inverse frequencies, bit for bit, for tests/test_net.c.

usage: make_rope_bits.py > tests/data/rope_bits.txt      (needs torch and transformers)

torch's portable kernels are asked for: its vector ones (AVX2, AVX-512) round one number in a thousand the other way, here the 38th at
head_dim 128 and theta 1e6, so that the reference itself differs from machine to machine. Ours is the correctly rounded one.

A line: a config.json on one line, a tab, the scale of cosine and sine, then inv_freq, each as the hex of its float32 bits.
"""
import json
import os
import struct

os.environ["ATEN_CPU_CAPABILITY"] = "default"

from transformers import Qwen2Config
from transformers.models.qwen2.modeling_qwen2 import Qwen2RotaryEmbedding


def bits(x):
    return struct.pack(">f", float(x)).hex()


def config(head_dim, **more):
    return {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 4 * head_dim, "intermediate_size": 8,
            "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 10,
            "max_position_embeddings": 32768, **more}


cases = [config(d, rope_theta=t) for d in (8, 24, 64, 80, 128) for t in (1e4, 1e6)]
for d in (64, 128):
    cases += [
        config(d, rope_theta=1e6, rope_scaling={"type": "linear", "factor": 3.0}),
        config(d, rope_theta=1e6, rope_scaling={"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}),
        config(d, rope_parameters={"rope_type": "yarn", "factor": 2.5, "original_max_position_embeddings": 48, "beta_fast": 16,
                                   "beta_slow": 2, "attention_factor": 1.25, "rope_theta": 1e4}),
        config(d, rope_parameters={"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096, "mscale": 1.0,
                                   "mscale_all_dim": 0.8, "truncate": False, "rope_theta": 1e5}),
    ]
for c in cases:
    rope = Qwen2RotaryEmbedding(Qwen2Config(**json.loads(json.dumps(c))))
    print(json.dumps(c), "\t", bits(rope.attention_scaling), " ", " ".join(bits(x) for x in rope.inv_freq), sep="")

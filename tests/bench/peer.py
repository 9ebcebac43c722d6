#!/usr/bin/env python3
"""llama.cpp beside run: what compare.py and accuracy.py share.

As a module: gguf_file() gives the GGUF file of a checkpoint in one weight type and writes it when it isn't there yet;
ask() starts this file as a process of its own.  As a program, one of

    peer.py write MODEL TYPE FILE           a GGUF file from a Qwen2 checkpoint
    peer.py time FILE '{"part": ...}'       one measurement in a fresh process
    peer.py logits FILE IDS.json OUT        float32 logits of every position of several texts

These need llama-cpp-python, gguf, numpy; importing the module needs the standard library alone.
"""
import glob
import json
import os
import subprocess
import sys
import time

# run's name of a weight type -> the peer's
TYPES = {"f32": "F32", "bf16": "BF16", "q8": "Q8_0", "q4": "Q4_0"}

TENSORS = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
           "lm_head.weight": "output.weight"}
LAYER_TENSORS = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
                 "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
                 "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}


# ---- the module's part ----------------------------------------------------------------------------------------------

def ask(*arguments):
    """The JSON value that a process of this file prints last."""
    command = [sys.executable, os.path.abspath(__file__), *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def gguf_file(model, kind, folder):
    """FOLDER/TYPE.gguf, written if it is missing."""
    path = os.path.join(folder, TYPES[kind] + ".gguf")
    if not os.path.exists(path):
        os.makedirs(folder, exist_ok=True)
        print("writing", path, file=sys.stderr, flush=True)
        ask("write", model, kind, path)
    return path


def versions():
    """Of Python and of the packages that are installed."""
    from importlib import metadata
    names = ["llama-cpp-python", "gguf", "numpy", "tokenizers", "tiktoken", "fastokens"]
    found = ["Python " + sys.version.split()[0]]
    for name in names:
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            pass
    return found


def machine():
    """Model and cores of the CPU, its wider instructions, memory."""
    facts = {}
    for line in open("/proc/cpuinfo"):
        key, _, value = line.partition(":")
        facts.setdefault(key.strip(), value.strip())
    flags = facts.get("flags", facts.get("Features", "")).split()
    wide = [f for f in ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "asimd") if f in flags]
    memory = int(open("/proc/meminfo").readline().split()[1]) / 2**20
    name = facts.get("model name", facts.get("CPU part", "?"))
    if "cpu family" in facts:
        name += f" (family {facts['cpu family']}, model {facts['model']})"
    return f"{name}, {len(os.sched_getaffinity(0))} cores, {' '.join(wide)}, {memory:.0f} GiB"


def load_average():
    return " ".join(f"{x:.2f}" for x in os.getloadavg())


# ---- GGUF -----------------------------------------------------------------------------------------------------------

def stored_tensors(folder):
    """(name, float32 array) of each tensor of the checkpoint's files."""
    import numpy as np
    for path in sorted(glob.glob(os.path.join(folder, "*.safetensors"))):
        bytes_ = np.memmap(path, np.uint8, "r")
        start = 8 + int(bytes_[:8].view("<u8")[0])
        header = json.loads(bytes(bytes_[8:start]))
        header.pop("__metadata__", None)
        for name, entry in header.items():
            begin, end = entry["data_offsets"]
            raw = bytes(bytes_[start + begin:start + end])
            if entry["dtype"] == "BF16":
                values = (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
            else:
                values = np.frombuffer(raw, {"F16": "<f2", "F32": "<f4"}[entry["dtype"]]).astype(np.float32)
            yield name, values.reshape(entry["shape"])


def write_parameters(writer, config):
    rope = config.get("rope_parameters") or {}
    heads = config["num_attention_heads"]
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config.get("num_key_value_heads", heads))
    writer.add_rope_freq_base(config.get("rope_theta") or rope["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])


def write_vocabulary(writer, tokenizer, config):
    """Token types: 1 normal, 3 control, 4 added by a user, 5 rows of the matrix that no token has."""
    size = config["vocab_size"]
    tokens, types = [f"[PAD{i}]" for i in range(size)], [5] * size
    for token, i in tokenizer["model"]["vocab"].items():
        tokens[i], types[i] = token, 1
    for added in tokenizer["added_tokens"]:
        tokens[added["id"]], types[added["id"]] = added["content"], 3 if added["special"] else 4
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in tokenizer["model"]["merges"]])
    end = config.get("eos_token_id", 0)
    writer.add_eos_token_id(end if isinstance(end, int) else end[0])


def write_gguf(model, kind, path):
    """Vectors stay F32, and with Q4_0 the embedding and the head are Q8_0: so it is in run's q4."""
    from gguf import GGMLQuantizationType, GGUFWriter, quants
    config = json.load(open(os.path.join(model, "config.json")))
    writer = GGUFWriter(path + ".part", "qwen2")
    write_parameters(writer, config)
    write_vocabulary(writer, json.load(open(os.path.join(model, "tokenizer.json"))), config)
    names = dict(TENSORS)
    for layer in range(config["num_hidden_layers"]):
        for ours, theirs in LAYER_TENSORS.items():
            for part in ("weight", "bias"):
                names[f"model.layers.{layer}.{ours}.{part}"] = f"blk.{layer}.{theirs}.{part}"
    for name, values in stored_tensors(model):
        if name == "lm_head.weight" and config.get("tie_word_embeddings"):
            continue
        type_ = TYPES[kind] if values.ndim > 1 else "F32"
        if type_ == "Q4_0" and name in ("model.embed_tokens.weight", "lm_head.weight"):
            type_ = "Q8_0"
        type_ = GGMLQuantizationType[type_]
        if type_ != GGMLQuantizationType.F32:
            values = quants.quantize(values, type_)
        writer.add_tensor(names[name], values, raw_dtype=type_)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    os.rename(path + ".part", path)


# ---- measurements ---------------------------------------------------------------------------------------------------

def memory_mb(key):
    """VmRSS (now) or VmHWM (the peak) of this process."""
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(key + ":")) / 1024


def some_ids(count, vocab):
    """Ids that differ from one another, the same in every run."""
    ids, x = [], 1
    for _ in range(count):
        x = (x * 6364136223846793005 + 1442695040888963407) % 2**64
        ids.append((x >> 33) % vocab)
    return ids


def measure(path, wanted):
    """wanted: part, threads, flash, prompt, tokens, depth.  Python and its packages are loaded before the clock starts,
    and what they take is subtracted from the memory."""
    import llama_cpp
    import numpy  # noqa: F401, llama_cpp would load it on the clock
    part, before = wanted["part"], memory_mb("VmRSS")
    prompt, tokens, depth = wanted["prompt"], wanted["tokens"], wanted["depth"]
    context = {"start": 64, "prefill": prompt + 64, "decode": depth + tokens, "memory": prompt + tokens}[part] + 64
    begin = time.perf_counter()
    llm = llama_cpp.Llama(model_path=path, n_ctx=context, n_batch=512, n_ubatch=512, n_threads=wanted["threads"],
                          n_threads_batch=wanted["threads"], flash_attn=bool(wanted["flash"]), verbose=False)
    ids = some_ids(context, llm.n_vocab())
    llm.eval(ids[:4])
    if part == "start":
        return 1e3 * (time.perf_counter() - begin)
    llm.reset()
    llm.eval(ids[:64])
    llm.reset()
    if part in ("prefill", "memory"):
        begin = time.perf_counter()
        llm.eval(ids[:prompt])
        if part == "prefill":
            return prompt / (time.perf_counter() - begin)
    elif depth:
        llm.eval(ids[:depth])
    begin = time.perf_counter()
    for i in ids[-tokens:]:
        llm.eval([i])
    return memory_mb("VmHWM") - before if part == "memory" else tokens / (time.perf_counter() - begin)


def measure_batch(path, wanted):
    """Tokens/s of several sequences, each of which gets a token in every step."""
    import llama_cpp
    n, tokens, warm_up = wanted["sequences"], wanted["tokens"], 4
    p = llama_cpp.llama_context_default_params()
    p.n_ctx, p.n_seq_max, p.kv_unified = n * (tokens + 64), n, False
    p.n_threads = p.n_threads_batch = wanted["threads"]
    p.flash_attn_type = int(wanted["flash"])
    llama_cpp.llama_backend_init()
    model = llama_cpp.llama_model_load_from_file(path.encode(), llama_cpp.llama_model_default_params())
    context, batch = llama_cpp.llama_init_from_model(model, p), llama_cpp.llama_batch_init(n, 0, 1)
    ids = some_ids(n * (tokens + warm_up), llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model)))
    batch.n_tokens = n
    for position in range(warm_up + tokens):
        if position == warm_up:
            begin = time.perf_counter()
        for i in range(n):
            batch.token[i], batch.pos[i], batch.logits[i] = ids[position * n + i], position, 1
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, i
        if llama_cpp.llama_decode(context, batch) != 0:
            sys.exit("llama_decode() failed")
    return n * tokens / (time.perf_counter() - begin)


def measure_lookup(path, wanted):
    """Tokens/s of a greedy answer with n-grams of prompt and answer as drafts."""
    import llama_cpp
    import numpy
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding
    ids, tokens = wanted["ids"], wanted["tokens"]
    llm = llama_cpp.Llama(model_path=path, n_ctx=len(ids) + tokens + 64, n_threads=wanted["threads"],
                          n_threads_batch=wanted["threads"], flash_attn=bool(wanted["flash"]), verbose=False,
                          draft_model=LlamaPromptLookupDecoding(num_pred_tokens=10))
    begin = None
    for i, _ in enumerate(llm.generate(numpy.array(ids), temp=0.0)):
        begin = begin or time.perf_counter()
        if i == tokens:
            return tokens / (time.perf_counter() - begin)


def write_logits(path, ids_path, out_path):
    import llama_cpp
    import numpy as np
    texts = json.load(open(ids_path))
    longest = max(map(len, texts))
    llm = llama_cpp.Llama(model_path=path, n_ctx=longest, n_batch=longest, n_ubatch=longest, logits_all=True,
                          verbose=False)
    with open(out_path, "wb") as out:
        for ids in texts:
            llm.reset()
            llm.eval(ids)
            llm.scores[:len(ids)].astype(np.float32).tofile(out)
    return llm.n_vocab()


def main():
    what, *rest = sys.argv[1:]
    if what == "write":
        result = write_gguf(*rest)
    elif what == "time":
        wanted = json.loads(rest[1])
        result = {"batch": measure_batch, "lookup": measure_lookup}.get(wanted["part"], measure)(rest[0], wanted)
    else:
        result = write_logits(*rest)
    print(json.dumps(result))


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Writes tests/data/tokenizer/configs.jsonl: what transformers' AutoTokenizer makes of a folder whose tokenizer_config.json,
added_tokens.json or special_tokens_map.json says something about tokens.

Needs transformers 5. Each line is {"files": {NAME: CONTENT}, "older": whether vocab.json and merges.txt take the place
of tokenizer.json, "encode": [...], "decode": [...]}; or it has "refused": words of the sentence with which the program
refuses what the reference cannot read, numbers otherwise than the files, or does in a way that the program does not.
The tokenizer is data/tokenizer/tokenizer.json.
"""
import json
import os
import tempfile
import warnings

os.environ["TRANSFORMERS_VERBOSITY"] = "error"
warnings.simplefilter("ignore")
from transformers import AutoTokenizer

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "data", "tokenizer")
CONFIG, MAP, ADDED = "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"
SMALL = json.load(open(os.path.join(HERE, "tokenizer.json")))
TEXTS = ["<|im_start|>a<tool_call>hi<|im_end|>", "a <X><Y> <Z>b<|endoftext|>", "xe\u0301x x\u00e9x <|fim_prefix|>hi",
         "I 'm here , you do n't . x ?"]
FLAGS = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
OWN = {str(a["id"]): {k: v for k, v in a.items() if k != "id"} for a in SMALL["added_tokens"]}


def token(text, **flags):
    return {"content": text, **FLAGS, **flags}


def typed(text, **flags):
    return {"__type": "AddedToken", **token(text, **flags)}


def config(**members):
    return {CONFIG: {"tokenizer_class": "Qwen2Tokenizer", **members}}


def decoder(changes, **members):
    return config(added_tokens_decoder={k: v for k, v in {**OWN, **changes}.items() if v}, **members)


X = {"600": token("<X>")}
# files, and words of our refusal
NEW = [
    ({},),
    (config(),),
    (decoder({}),),
    (decoder(X),),
    (decoder({"600": token("<X>", special=False)}),),
    (decoder({**X, "601": token("<Y>")}),),
    (decoder({"601": token("<Y>"), **X}),),
    (decoder({"700": token("<X>")}), '"<X>" is 700; expected 600'),
    (decoder({"600": None, "599": None}),),
    (decoder({"597": None}), 'expected 597'),
    (decoder({"597": token("<tool_call>")}),),
    (decoder({"596": token("<|im_end|>", special=False)}),),
    (decoder({"596": token("<X>")}),),
    (decoder({"596": token("<|im_start|>")}), '"<|im_start|>" is listed twice'),
    (decoder({"373": token("hi")}),),
    (decoder({"600": {"content": "x\u00e9x"}}),),
    (decoder({"600": {"content": "x\u00e9x", "special": True}}),),
    (decoder({"600": token("x\u00e9x", special=False, normalized=True)}),),
    (decoder({"600": token("x\u00e9x", special=False, normalized=True)}, eos_token="x\u00e9x"),),
    (decoder({"600": token("x\u00e9x", normalized=True)}, extra_special_tokens=["x\u00e9x"]),),
    (decoder({"600": token("<X>", lstrip=True)}), "lstrip"),
    (decoder({"600": "<X>"}), "an added token is"),
    (config(added_tokens_decoder=[token("<X>")]), "added_tokens_decoder"),
    (config(added_tokens_decoder={}),),
    (config(added_tokens_decoder={}, eos_token="<X>", pad_token="<Y>"),),
    (config(added_tokens_decoder={}, eos_token="<X>", unk_token="<Y>"),),
    (config(added_tokens_decoder={}, unk_token="<X>", pad_token="<Y>"),),
    (config(added_tokens_decoder={}, eos_token=None, unk_token=None, pad_token=None),),
    (config(additional_special_tokens=["<X>"]),),
    (config(additional_special_tokens=["<Y>", "<X>", "<Y>"]),),
    (config(additional_special_tokens=["<|im_start|>", "<tool_call>"]),),
    (decoder({}, additional_special_tokens=["<|im_start|>", "<|fim_prefix|>"]),),
    (config(extra_special_tokens=["<X>"]),),
    (config(extra_special_tokens=[typed("<X>"), "<Y>"]),),
    (config(extra_special_tokens={"image_token": "<X>", "b": "<Y>"}),),
    (config(extra_special_tokens={"b": "<Y>"}, image_token="<X>"),),
    (config(extra_special_tokens=["<Y>"], additional_special_tokens=["<X>"]),),
    (config(extra_special_tokens=[], additional_special_tokens=["<X>"]),),
    (config(extra_special_tokens=["<Y>"], image_token="<X>", y_token=typed("<Z>")),),
    (config(extra_special_tokens="<X>"), "extra_special_tokens"),
    (config(extra_special_tokens=[7]), "extra_special_tokens"),
    (config(bos_token="<X>"),),
    (config(bos_token=None),),
    (config(eos_token="<X>", pad_token="<Y>"),),
    (config(pad_token="<X>", eos_token="<Y>", unk_token="<Z>"),),
    (config(eos_token="<|im_end|>"),),
    (config(eos_token="<tool_call>"),),
    (config(eos_token=typed("<X>")),),
    (config(eos_token=typed("<X>", lstrip=True)),),
    (config(eos_token=7), "eos_token"),
    (config(unk_token="hi"),),
    (config(mask_token="<X>", cls_token="<Y>", sep_token="<Z>"),),
    (config(x_token=True, other_token={"a": 1}),),
    (config(split_special_tokens=False, add_prefix_space=False),),
    (config(add_prefix_space=None),),
    (config(split_special_tokens=True), "split_special_tokens is true"),
    (config(add_prefix_space=True), "add_prefix_space is true"),
    (config(add_bos_token=True, bos_token="<|im_start|>", add_eos_token=True),),
    (config(add_bos_token=False, add_eos_token=False),),
    (config(errors="strict", clean_up_tokenization_spaces=True),),
    (config(clean_up_tokenization_spaces=False),),
    (config(clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output=True,
            clean_up_tokenization_spaces=True), "corrupt_output is true"),
    ({ADDED: {"<X>": 600}},),
    ({**config(), ADDED: {"<Y>": 601, "<X>": 600}},),
    ({**config(), ADDED: {"<X>": 700}}, '"<X>" is 700; expected 600'),
    ({**config(), ADDED: {**{v["content"]: int(k) for k, v in OWN.items()}, "<X>": 600}},),
    ({**config(), ADDED: {"x\u00e9x": 600}},),
    ({**config(additional_special_tokens=["x\u00e9x"]), ADDED: {"x\u00e9x": 600}},),
    ({**config(), ADDED: {"<tool_call>": 600}}, '"<tool_call>" is listed twice'),
    ({**config(), ADDED: [7]}, "added_tokens.json"),
    ({**decoder({}), ADDED: {"<X>": 600}},),
    ({**config(), MAP: {"eos_token": "<X>"}},),
    ({**config(eos_token="<Y>"), MAP: {"eos_token": token("<X>"), "pad_token": None}},),
    ({**config(), MAP: {"additional_special_tokens": ["<X>"]}},),
    ({**config(extra_special_tokens=["<Y>"]), MAP: {"additional_special_tokens": ["<X>"]}},),
    ({**config(additional_special_tokens=["<Y>"]), MAP: {"additional_special_tokens": ["<X>"]}},),
    ({**decoder({}), MAP: {"eos_token": "<X>", "additional_special_tokens": ["<Y>"]}},),
    ({**config(), MAP: {"image_token": "<X>"}}, '"image_token" is not supported there'),
    ({CONFIG: [7]}, "tokenizer_config.json"),
]
OLDER = [
    ({},),
    (decoder({}),),
    (decoder({"594": None}), "expected 594"),
    (config(eos_token="<X>"),),
    (config(add_bos_token=True, bos_token="<|im_start|>"),),
    (config(add_bos_token=True),),
    (config(add_bos_token=False, bos_token="<|im_start|>"),),
    (config(add_bos_token="x"), "add_bos_token"),
    (config(add_eos_token=True), "add_eos_token is true"),
    (decoder({}, add_bos_token=True, bos_token="<|im_start|>"),),
    ({**config(), ADDED: {"<|im_end|>": 594, "<X>": 595}},),
    ({**config(), ADDED: {"<|im_end|>": 594, "<X>": 596}}, '"<X>" is 596; expected 595'),
    ({**config(added_tokens_decoder={"594": token("<|endoftext|>")}), ADDED: {"<X>": 595}},),
    ({**config(), MAP: {"additional_special_tokens": ["<X>"], "eos_token": "<|im_end|>"}},),
    (config(split_special_tokens=True), "split_special_tokens is true"),
]


def reference(files, older):
    with tempfile.TemporaryDirectory() as folder:
        def write(name, content):
            with open(os.path.join(folder, name), "w") as f:
                f.write(content)
        for name, content in files.items():
            write(name, json.dumps(content))
        write("config.json", '{"model_type": "qwen2"}')
        if older:
            write("vocab.json", json.dumps(SMALL["model"]["vocab"]))
            write("merges.txt", "#version: 0.2\n" + "".join(m + "\n" for m in SMALL["model"]["merges"]))
        else:
            write("tokenizer.json", json.dumps(SMALL))
        t = AutoTokenizer.from_pretrained(folder)
        encode = [{"text": text, "ids": t(text)["input_ids"]} for text in TEXTS]
        ids = [i for row in encode for i in row["ids"]] + list(range(590, len(t) + 1))
        decode = {"ids": ids, "skip_special_tokens": True, "text": t.decode(ids, skip_special_tokens=True)}
        return {"encode": encode, "decode": [decode]}


def main():
    with open(os.path.join(HERE, "configs.jsonl"), "w") as out:
        for cases, older in ((NEW, False), (OLDER, True)):
            for files, *refused in cases:
                result = {"refused": refused[0]} if refused else reference(files, older)
                out.write(json.dumps({"files": files, "older": older, **result}, separators=(",", ":")) + "\n")


main()

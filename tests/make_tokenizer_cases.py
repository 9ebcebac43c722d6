#!/usr/bin/env python3
"""Writes tests/data/tokenizer/: a small tokenizer, and what the reference makes of texts, ids and conversations.

usage: make_tokenizer_cases.py CASES TOKENIZER_CONFIG

CASES has tokenizer.json, encode.jsonl and decode.jsonl. Every eighth of their cases is taken, and TEXTS are added.
seams.json is the same tokenizer with other merges: every two characters of its alphabet become one token, so that the
ids in seams.jsonl tell where words end. variants.jsonl has changes of tokenizer.json, and what the changed tokenizer
encodes and decodes. TOKENIZER_CONFIG is Qwen2.5's tokenizer_config.json with its chat template; the templates of the
rest of the family are written below. Jinja 2 renders them with the settings that the reference uses.
"""
import json
import os
import random
import shutil
import sys

from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "data", "tokenizer")
QWEN = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."
TURN = "{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}"
PROMPT = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
CONTENTS = ["", "hi", "<|im_end|>", "a\nb", "  x ", "{{ y }}", "e\u0301", "\u4e2d\u6587", "\"q\" 's'", "\\n",
            "<|im_start|>system\nobey"]

TEXTS = [
    "?!", "?.!", "?.,!", "?.,;!", "!?", "!!", "~", "~~~~~~~",  # ids of 0; one to seven ids
    "\0", "\0\0\0", "\0" * 9, "\0" * 15,
    "!(\"{:?}\",()[::-/", "!(\"{:?}\",()[::-?",  # words of 16 bytes and few ids
    "!(\"{:?}\",", "!(\"{:?}\"-", "{" + "~" * 70 + ",", "~" * 64 + ",", "~" * 63 + "().",
    "abcdefghijklmnop", "abcdefghijklmnoq", "abcdefghijklmn`", "abcdefghijklmnp",  # words of 15 and 16 bytes
    "aaaaaaaaaaaaaaaa", "aaaaaaaaaaaaaaaq", "zbcdefgh", "zbcdefgi", "zbcdefghi", "zbcdefghj",
]

LETTERS = "astmdrevlSL\u017f\u212a"
ALPHABET = LETTERS + "'  \n\r\t.1\u4e2d\uac00\u00e9\u00bd\u3000\u20ac\U0001f600\ua490"
BORDERS = ("zAZ09`{@[/:~\0\x08\x0b\x0c\x0e\x1c\x1f\x7f\u0080\u0085\u00a0"
           "\u4fff\u9fff\ua000\uabff\uafff\ud7a3\ud7fb\ufffd\u00ff\u017e")
BYTES = [*range(0x21, 0x7f), *range(0xa1, 0xad), *range(0xae, 0x100)]
BYTES += [b for b in range(256) if b not in BYTES]
BYTE_TO_UNICODE = {b: chr(b if i < 188 else 256 + i - 188) for i, b in enumerate(BYTES)}


def spelled(text):
    """The bytes of the text as a tokenizer.json spells them."""
    return "".join(BYTE_TO_UNICODE[b] for b in text.encode())


def compact(value):
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def seams(small, random_):
    """A tokenizer like small, and texts for it."""
    vocab, merges = [BYTE_TO_UNICODE[b] for b in BYTES], []
    characters = sorted({spelled(c) for c in ALPHABET + BORDERS})
    for c in characters:
        for i in range(1, len(c)):
            merges.append(c[:i] + " " + c[i])
    rare, common = {spelled(c) for c in BORDERS}, {spelled(c) for c in "a1. "}
    pairs = [x + " " + y for x in characters for y in characters if not {x, y} & rare or {x, y} & common]
    random_.shuffle(pairs)
    merges += pairs
    for m in merges:
        if m.replace(" ", "") not in vocab:
            vocab.append(m.replace(" ", ""))
    model = {**small["model"], "vocab": {t: i for i, t in enumerate(vocab)}, "merges": merges}
    texts = ["'" + x + y for x in LETTERS for y in ["", *LETTERS, *(y + "a" for y in LETTERS)]]
    texts += ["".join(random_.choices(ALPHABET, k=random_.randrange(1, 9))) for _ in range(500)]
    texts += [t for c in BORDERS
              for t in (c + "a", "'" + c + "a", "a" + c + "a", "1" + c + ".", " " + c, "." + c + " ")]
    return {**small, "model": model, "added_tokens": []}, texts


END = '"special":false}]'
POST = '"post_processor":{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":false,"use_regex":false}'
SEQUENCE = {"Sequence": {"id": "A", "type_id": 0}}
BEGIN = {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}


def added(*tokens):
    """A change that adds tokens: each is a text, or a text and flags. Without an id it gets the next one."""
    out, usual = "", {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
    following = 600
    for token in tokens:
        text, flags = token if isinstance(token, tuple) else (token, {})
        out += "," + compact({"id": following, "content": text, **usual, **flags})
        if "id" not in flags:
            following += 1
    return END, END[:-1] + out + "]"


def template(*single, ids=(594,)):
    """A post-processor that puts <|endoftext|> around texts, as these ids."""
    return {"type": "TemplateProcessing", "single": list(single), "pair": [], "special_tokens": {
        "<|endoftext|>": {"id": "<|endoftext|>", "ids": list(ids), "tokens": ["<|endoftext|>"] * len(ids)},
        "<|endoftexu|>": {"id": "<|endoftexu|>", "ids": [596], "tokens": ["<|im_end|>"]},
        "<|im_end|>": {"id": "<|im_end|>", "ids": [596], "tokens": ["<|im_end|>"]}}}


def processed(value):
    """A change of the post-processor."""
    return POST, POST[:17] + compact(value)


def model(vocab, *merges):
    """A change of the vocabulary and the merges, without added tokens."""
    vocab = compact({t: i for i, t in enumerate(vocab)})
    return ('"vocab":{', '"vocab":' + vocab + ',"x":{', '"merges":[', '"merges":' + compact(merges) + ',"y":[',
            '"added_tokens":[', '"added_tokens":[],"z":[')


NORMALIZED = {"normalized": True}
# change, texts to encode, ids to decode
VARIANTS = [
    (('"dropout":null', '"dropout":0.0'), ["a<|im_end|>a"], []),
    (('"version":"1.0",', ""), ["a"], []),
    (('"type":"BPE",', ""), ["a"], []),
    (('{"type":"NFC"}', "null"), ["e\u0301"], []),
    (('{"type":"NFC"}', '{"type":"Sequence","normalizers":[]}'), ["e\u0301"], []),
    (('{"type":"NFC"}', '{"type":"Sequence","normalizers":[{"type":"NFC"}]}'), ["e\u0301"], []),
    (processed(None), ["a"], []),
    (processed(template(BEGIN, SEQUENCE)), ["a", ""], []),
    (processed(template(BEGIN, SEQUENCE, ids=[0])), ["a", ""], []),
    (processed(template(SEQUENCE)), ["a"], []),
    (processed({"type": "Sequence", "processors": [BYTE_LEVEL, template(BEGIN, SEQUENCE)]}), ["a"], []),
    (processed({"type": "Sequence", "processors": [template(BEGIN, SEQUENCE), BYTE_LEVEL]}), ["a"], []),
    (processed({"type": "Sequence", "processors": []}), ["a"], []),
    (added(("x y", {"special": True})), ["x yx y"], []),
    (added(("e\u0301", NORMALIZED)), ["\u00e9ae\u0301"], [600]),
    (added(("\U0001d160" * 200, NORMALIZED)), ["\U0001d160" * 200 + "a"], [600]),
    (added("e\u0301"), ["\u00e9ae\u0301"], [600]),
    (added("<|im_"), ["<|im_<|im_end|>"], []),
    (added(("a", {"id": 64, "special": True})), ["bab"], [64, 65, 64]),
    (added(("!", {"id": 0, "special": True}), ("x", {"id": 87}), "new"), ["!a!x", "?!", "new!"], [0, 64, 0, 87]),
    (added(("ab", NORMALIZED), ("abc", NORMALIZED), ("b", {"id": 65, "normalized": True})),
     ["ab abc b aabcb<|im_end|>abb", "b", "", "ab xyz", "xyz ab in<|im_end|>in ab in"], []),
    (added("ab", "abc", "abcde", ("b", {"id": 65}), "\u4e2d"),
     ["ab abc abcd abcde b aabcb \u4e2d\u4e2d\u4e2e", "abcd", "xab"], []),
    (added("<|im_", ("|im_end|>", NORMALIZED)), ["<|im_end|>", "|im_end|>", "<|im_|im_end|>"], []),
    (added(("zz", NORMALIZED), ("ab", NORMALIZED), ("abc", NORMALIZED), ("aa", NORMALIZED)), ["zz aab abc", "ab"], []),
    (added("aac", "ab", "abcd"), ["abc abcd aac ab"], []),
    (added("ab"), ["abcdefgh ab zab", "e\u0301ab\u0301"], []),
    (('"z":89', '"QQQ":89'), ["azb", "z", "zz zzz", "QQQ"], [89]),
    (('"z":89', '"\u4e2d":89'), ["\u4e2d"], [89]),
    (('"z":89', '"a b":89'), ["a b"], [89]),
    (('"z":89', '"\u0144":89'), ["\u0144"], [89]),
    (('"z":89', '"\u00adz":89'), ["\u00adz"], [89]),
    (('"z":89', '"z\u0120\u0143":89'), ["z"], [89]),
    (model(["a", "abc", "b", "ab"], "a b"), ["ab", "abb"], [3]),
    (model(["a", "b", "ab", "abb"], "a b", "ab b"), ["ab", "abb", "ba"], [3]),
    (model(["b", "ac", "a", "ab"], "a b"), ["ab", "ac", "ba"], [3]),
    (model(["\xe4", "\xe4\xb8\u0143", "\xb8", "\u0143", "\xe4\xb8", "\u4e2d"],
           "\xe4 \xb8", "\xe4\xb8 \u0143"), ["\u4e2d"], [5, 1]),
    (model(["a", "\u4e2d", "\u4e2da", "a\u4e2d"], "\u4e2d a", "a \u4e2d"), ["\u4e2da\u4e2d"], [2, 3]),
    (model([*map(spelled, ["a", "b", "ab", "b\u4e2d", "\u4e2d"]), *spelled("\u4e2d"), spelled("\u4e2d")[:2]],
           "b \xe4\xb8\u0143", "a b", "\xe4 \xb8", "\xe4\xb8 \u0143"),
     ["ab\u4e2d", "b\u4e2d"], []),
    (model([*map(spelled, ["a", "b", "ba", "\u4e2db", "\u4e2d"]), *spelled("\u4e2d"), spelled("\u4e2d")[:2]],
           "\xe4\xb8\u0143 b", "b a", "\xe4 \xb8", "\xe4\xb8 \u0143"),
     ["\u4e2dba", "\u4e2db"], []),
    (model([*map(spelled, ["a", "b", "ab", "b\u4e2d", "\u4e2d"]), *spelled("\u4e2d"), "\xe4\xb8", "\xb8\u0143"],
           "\xe4 \xb8", "\xb8 \u0143", "\xe4 \xb8\u0143", "b \xe4\xb8\u0143", "a b", "\xe4\xb8 \u0143"),
     ["ab\u4e2d"], []),
    (model(["a", "", "b"], " a", "b "), ["ab"], [1, 0]),
    (model(["a", "", "b"], " "), ["ab"], [1, 0]),
]


def write(name, rows):
    with open(os.path.join(HERE, name), "w", encoding="ascii") as f:
        f.writelines((row if isinstance(row, str) else json.dumps(row, separators=(",", ":"))) + "\n" for row in rows)


def encoded(tokenizer, texts):
    return [{"text": t, "ids": tokenizer.encode(t).ids} for t in texts]


def variant(small, change, texts, ids):
    text = compact(small)
    for before, after in zip(change[::2], change[1::2]):
        assert before in text, change
        text = text.replace(before, after, 1)
    changed = json.loads(text)
    for unused in (changed, "z"), (changed["model"], "x"), (changed["model"], "y"):
        unused[0].pop(unused[1], None)
    t = Tokenizer.from_str(compact(changed))
    decoded = [{"ids": ids, "skip_special_tokens": skip, "text": t.decode(ids, skip_special_tokens=skip)}
               for skip in (False, True) if ids]
    plain = Tokenizer.from_str(compact({**changed, "added_tokens": []}))
    rows = [{**row, "plain": plain.encode(row["text"], add_special_tokens=False).ids} for row in encoded(t, texts)]
    return {"change": change, "encode": rows, "decode": decoded,
            "added": {t.id_to_token(i): i for i in t.get_added_tokens_decoder() if i not in range(594, 600)}}

CONDITIONS = [
    "tools", "not tools", "not not tools", "tools is defined", "tools is not defined", "tools == 'a'", "tools != 'a'",
    "add_generation_prompt", "not add_generation_prompt", "add_generation_prompt is defined",
    "messages", "messages[0]", "messages[9]", "messages[9] is not defined", "messages[1] is defined", "messages[-1]",
    "messages[-9]", "messages[ 0 ] . role == 'user'", "messages[0]['role'] != 'user'", "messages[-1].role == 'user'",
    "messages[-1]['content']", "messages[0].tool_calls", "messages[0].tool_calls is defined", "messages[0].content",
    "'a' == 'a'", "'a' == \"b\"", "'a' == 'ab'", "'' == ''", "''", "'x'", "0", "1", "2",
    "not 'a' == 'b'", "not 'a' != 'b'",
    "tools or messages", "tools and messages", "messages and tools", "messages or tools", "tools or tools or messages",
    "tools and tools or messages", "messages or tools and tools", "messages and messages and tools", "(messages)",
    "(tools or messages) and not (tools and messages)", "not tools and messages", "not (messages)", "not(tools)",
    "tools and messages[9].role == 'x'", "messages or messages[9].role", "messages or (tools or messages[9]['role'])",
    "(tools and messages[9].role) or messages", "messages[1] and messages[1].role == 'assistant'", "((((1))))",
    "tools is defined and messages[0].role=='system' or messages[0].content!='go'", "messages[0].content is defined",
    "messages[0].first", "messages[0].last is defined", "messages[0]['first'] is not defined"
]
FRAGMENTS = [
    "{% for x in messages %}{{ x.role }}{% if loop.first %}F{% endif %}{% if loop.last %}L{% endif %}"
    "{% if not loop['last'] %},{% endif %}{% if loop.first != 'a' %}!{% endif %}{% endfor %}",
    "{% for _x1 in messages %}\n{% if _x1.content %}\n<{{ _x1 . content }}>\n{% endif %}\n{% endfor %}",
    "{% for a in messages %}a{% endfor %}{% for b in messages %}b{% endfor %}",
    "  {%- if tools %}a{% endif -%}  b", "\n  {% if messages %}\n x \n  {% endif %}\n y",
    " \t {% if messages %} x {% endif %} y",
    "\n {%+ if messages +%}\n x\n {%+ endif %}", "a {# c #}\n b", "\n  {# c -#}  \n b", "a  {#- c #} b",
    "x {{- 'x' -}} \n y", "x {{ 'y' }}\nz",
    "{{ 'a\\n\\t\\r\\\\b\\'\\\"' + \"c'd\" }}", "{{ '{{' + '%}' + '}}' }}", "{ a } { % b %} } }} %}#}", "{", "{a",
    "{ {",
    "{% if tools %}1{% elif messages %}2{% elif messages %}3{% else %}4{% endif %}",
    "{% if messages %}1{% elif messages %}2{% else %}4{% endif %}",
    "{% if tools %}1{% elif tools %}2{% else %}4{% endif %}",
    "{% if tools %}{% if messages %}5{% elif x %}6{% else %}7{% endif %}{% else %}8{% endif %}",
    "{% if messages %}{% if tools %}5{% else %}7{% endif %}{% else %}"
    "{% if messages %}8{% else %}9{% endif %}{% endif %}",
    "{% if tools %}{{ '}}' }}{% set x = '%}' %}{% for q in w %}{% endfor %}{# %} #}{{ y|z(\"}}\") }}{% endif %}.",
    "{% if messages %}{%- endif %}\n\n{%if tools%}{%endif%}\n.", "{{messages[0].role+messages[-1]['role']+''}}",
    "\v{% if 1 %}\f {% endif %}", "{%- if 1 -%} {%- endif -%} \n\n .", "{% if 1 %}\n\n{% endif %}\n\n",
    "{% for azAZ09_ in messages %}{{ azAZ09_.role }}{% endfor %}{% for notz in messages %}{% if notz %}z{% endif %}"
    "{% if not notz %}y{% endif %}{% endfor %}{% for not_ in messages %}{% if not_ %}x{% endif %}{% endfor %}",
    "{% for notA in messages %}{% if notA %}A{% endif %}{% endfor %}{% for notZ in messages %}{% if notZ %}Z{% endif %}"
    "{% endfor %}{% for not0 in messages %}{% if not0 %}0{% endif %}{% endfor %}",
    "{% for not9 in messages %}{% if not9 %}9{% endif %}{% endfor %}{% for nota in messages %}{% if nota %}a{% endif %}"
    "{% endfor %}", "{# it's #}{# \" #}a {# c' #}\n b", "{% if " + "(1) and " * 40 + "1 %}1{% endif %}",
]


def fragments():
    """A template that writes more than ChatML when a conversation begins with "go"."""
    conditions = ["{% if " + c + " %}1{% else %}0{% endif %}" for c in CONDITIONS]
    return ("{% if messages[0].content == 'go' %}" + "|".join(conditions + FRAGMENTS) + "|{% endif %}" +
            "{% for message in messages %}" + TURN + "{% endfor %}" + PROMPT + "{# the end #}")


def templates(instruct):
    math = "Please reason step by step, and put your final answer within \\\\boxed{}."
    first = "{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\n"
    loop = "{% for message in messages %}"
    return {
        "Qwen2.5-Instruct": instruct,
        "Qwen2.5": instruct.replace(QWEN, "You are a helpful assistant."),
        "Qwen2.5-Math": instruct.replace(QWEN, math),
        "Qwen2": loop + first + "You are a helpful assistant.<|im_end|>\n' }}{% endif %}" + TURN + "{% endfor %}" +
                 PROMPT,
        "Qwen1.5": loop + first + "You are a helpful assistant<|im_end|>\n' }}{% endif %}"
                   "{{'<|im_start|>' + message['role'] + '\n' + message['content']}}"
                   "{% if (loop.last and add_generation_prompt) or not loop.last %}{{ '<|im_end|>' + '\n'}}{% endif %}"
                   "{% endfor %}{% if add_generation_prompt and messages[-1]['role'] != 'assistant' %}"
                   "{{ '<|im_start|>assistant\n' }}{% endif %}",
        "plain": loop + TURN + "{% endfor %}" + PROMPT,
        "default": "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}" +
                   loop + TURN + "{% endfor %}" + PROMPT,
        "lines": "{# a comment %} }} #}\n{% for m in messages %}\n"
                 "  {% if m.role == \"user\" or m.role == 'assistant' %}\n"
                 "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
                 "  {% elif m['role']=='system' %}\n<|im_start|>system\n{{ m['content'] }}<|im_end|>\n  {% endif %}\n"
                 "{% endfor %}\n{% if add_generation_prompt %}\n<|im_start|>assistant\n{% endif %}\n",
        "tight": "{%for x in messages%}{{'<|im_start|>'+x.role+'\\n'+x['content']+\"<|im_end|>\\n\"}}{%endfor%}"
                 "{%if add_generation_prompt-%}   {{-'<|im_start|>assistant\\n'}}{%endif%}",
        "fragments": fragments(),
        "empty system": "{% if messages[0].role != 'system' %}{{ '<|im_start|>system\\n<|im_end|>\\n' }}{% endif %}" +
                        loop + TURN + "{% endfor %}" + PROMPT,
        "CRLF": loop + "\r\n<|im_start|>{{ message.role + '\r\n' }}{{ message.content }}<|im_end|>\r{% endfor %}" +
                PROMPT + "\r\n",
    }


def conversation(random_):
    roles = random_.choice([["user", "assistant"], ["system", "user", "assistant", "user", "developer"]])
    length = random_.randrange(1, 5)
    return [{"role": random_.choice(roles), "content": random_.choice(CONTENTS)} for _ in range(length)]


def main():
    cases, config = sys.argv[1:]
    os.makedirs(HERE, exist_ok=True)
    path = os.path.join(HERE, "tokenizer.json")
    shutil.copyfile(os.path.join(cases, "tokenizer.json"), path)
    with open(path, encoding="utf-8") as f:
        small = json.load(f)
    for name in ("encode.jsonl", "decode.jsonl"):
        with open(os.path.join(cases, name), encoding="ascii") as f:
            lines = [line.strip() for line in f.readlines()[::8]]
        write(name, lines + (encoded(Tokenizer.from_file(path), TEXTS) if name == "encode.jsonl" else []))
    other, texts = seams(small, random.Random(2))
    write("seams.json", [json.dumps(other, separators=(",", ":"))])
    write("seams.jsonl", encoded(Tokenizer.from_str(compact(other)), texts))
    write("variants.jsonl", [variant(small, *v) for v in VARIANTS])
    with open(config, encoding="utf-8") as f:
        known = templates(json.load(f)["chat_template"])
    environment, random_ = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True), random.Random(1)
    rows = []
    for name, template_ in known.items():
        rendered = environment.from_string(template_)
        cases = []
        for i in range(16):
            messages, prompt = conversation(random_), i % 3 > 0
            if name == "fragments":
                messages[0]["content"] = "go"
            text = rendered.render(messages=messages, add_generation_prompt=prompt, tools=None)
            cases.append({"messages": messages, "add_generation_prompt": prompt, "text": text})
        rows.append(json.dumps({"name": name, "template": template_, "cases": cases}))
    write("chat.jsonl", rows)


if __name__ == "__main__":
    main()

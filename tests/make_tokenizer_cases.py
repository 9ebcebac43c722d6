#!/usr/bin/env python3
"""Writes tests/data/tokenizer/: a small tokenizer, and what the reference makes of texts, ids and conversations.

usage: make_tokenizer_cases.py CASES TOKENIZER_CONFIG

CASES holds tokenizer.json, encode.jsonl and decode.jsonl, from which every eighth case is taken. TOKENIZER_CONFIG
is Qwen2.5's tokenizer_config.json with its chat template; others of the family are written from it below. They are
rendered by Jinja 2 with the settings that the reference uses.
"""
import json
import os
import random
import shutil
import sys

from jinja2.sandbox import ImmutableSandboxedEnvironment

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "data", "tokenizer")
QWEN = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."
TURN = "{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}"
PROMPT = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
CONTENTS = ["", "hi", "<|im_end|>", "a\nb", "  x ", "{{ y }}", "e\u0301", "\u4e2d\u6587", "\"q\" 's'", "\\n",
            "<|im_start|>system\nobey"]


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
    }


def conversation(random_):
    roles = random_.choice([["user", "assistant"], ["system", "user", "assistant", "user", "developer"]])
    length = random_.randrange(1, 5)
    return [{"role": random_.choice(roles), "content": random_.choice(CONTENTS)} for _ in range(length)]


def main():
    cases, config = sys.argv[1:]
    os.makedirs(HERE, exist_ok=True)
    shutil.copyfile(os.path.join(cases, "tokenizer.json"), os.path.join(HERE, "tokenizer.json"))
    for name in ("encode.jsonl", "decode.jsonl"):
        with open(os.path.join(cases, name), encoding="ascii") as f:
            lines = f.readlines()[::8]
        with open(os.path.join(HERE, name), "w", encoding="ascii") as f:
            f.writelines(lines)
    with open(config, encoding="utf-8") as f:
        known = templates(json.load(f)["chat_template"])
    environment, random_ = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True), random.Random(1)
    with open(os.path.join(HERE, "chat.jsonl"), "w", encoding="ascii") as f:
        for name, template in known.items():
            rendered = environment.from_string(template)
            cases = []
            for i in range(16):
                messages, prompt = conversation(random_), i % 3 > 0
                text = rendered.render(messages=messages, add_generation_prompt=prompt, tools=None)
                cases.append({"messages": messages, "add_generation_prompt": prompt, "text": text})
            f.write(json.dumps({"name": name, "template": template, "cases": cases}) + "\n")


if __name__ == "__main__":
    main()

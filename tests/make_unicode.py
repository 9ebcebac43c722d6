#!/usr/bin/env python3
"""Writes base/unicode_tables.h, or the facts that its tables are made of.

usage: make_unicode.py > base/unicode_tables.h                               from tests/data/unicode_facts.json
       make_unicode.py --facts MEASURED.json > tests/data/unicode_facts.json  gathers those facts again

MEASURED.json has what the reference tokenizer was seen to do with every code point: its classes (those of Unicode
16.0), and where its NFC (that of Unicode 9.0) differs from that of Python 3.11's unicodedata (14.0). The rest comes
from unicodedata itself.
"""
import json
import os
import sys
import unicodedata

HERE = os.path.dirname(os.path.abspath(__file__))
LIMIT = 0x32400  # beyond, there are no letters and numbers, and planes are wide as a whole or not at all


def ranges(pairs):
    """[(code point, value)] in order -> [first, last, value] for runs of equal values."""
    out = []
    for c, value in pairs:
        if out and out[-1][1] == c - 1 and out[-1][2] == value:
            out[-1][1] = c
        else:
            out.append([c, c, value])
    return out


def gather(measured):
    points = range(0x110000)
    newer = {c for first, last in measured["nfc_order_differs"] for c in range(first, last + 1)}
    newer_composites = {0x11938}  # of Unicode 13: nfc_pairs_differ
    category = [unicodedata.category(chr(c)) for c in points]
    zero = {c for c in points if category[c] in ("Mn", "Me", "Cf", "Cc") and c != 0xAD or 0x1160 <= c <= 0x11FF}
    wide = {c for c in points if unicodedata.east_asian_width(chr(c)) in "WF" and category[c] != "Cn"
            or c == 0x1F6DC or 0x1FA70 <= c <= 0x1FAFF} - zero  # the last two: emoji since Unicode 15
    decompositions = {}
    for c in points:
        d = unicodedata.decomposition(chr(c))
        if d and not d.startswith("<") and c not in newer_composites:
            parts = [int(x, 16) for x in d.split()]
            stays = f"{c:04X}" not in measured["nfc_single"]
            assert stays == (unicodedata.normalize("NFC", chr(c)) == chr(c)) and not (stays and len(parts) == 1)
            decompositions[c] = parts + [int(stays)]
    return {
        "letter": measured["L"], "number": measured["N"], "space": measured["space"],
        "wide": [r[:2] for r in ranges((c, 0) for c in sorted(wide))],
        "zero": [r[:2] for r in ranges((c, 0) for c in sorted(zero))],
        "combining": ranges((c, unicodedata.combining(chr(c))) for c in points
                            if unicodedata.combining(chr(c)) and c not in newer),
        # [code point, its parts..., 1 if NFC puts them together again]
        "decompositions": [[c] + parts for c, parts in decompositions.items()],
    }


def write_facts(facts):
    print("{")
    for i, (key, rows) in enumerate(facts.items()):
        text = json.dumps(rows, separators=(",", ":"))
        print(f' "{key}":{text}' + ("," if i + 1 < len(facts) else ""))
    print("}")


def wrapped(items, width=118):
    """Items joined by commas, in lines of at most width columns."""
    lines, line = [], "   "
    for item in items:
        if len(line) + len(item) + 2 > width:
            lines.append(line)
            line = "   "
        line += f" {item},"
    return "\n".join(lines + [line])


def runs(rows):
    """[[first, last, ...]] in order -> for each: how many code points lie before it, how many are in it, ..."""
    end = 0
    for first, last, *rest in rows:
        yield [first - end, last - first + 1] + rest
        end = last + 1


def sequence(entries):
    """{code point: [first, second]} in order as initializers. Code points without an entry are {0}, and after more than
    two of them {c, AT} tells that of the next."""
    previous = 0
    for c, (first, second) in sorted(entries.items()):
        gap = c - previous - 1
        yield from ["{0}"] * gap if gap <= 2 else [f"{{{c:#x}, AT}}"]
        name = repr(chr(first)) if chr(first).isascii() and chr(first).isalpha() else f"{first:#x}"
        yield f"{{{name}, {second:#x}}}" if second else f"{{{name}}}"
        previous = c


def array(name, rows):
    """All numbers of the rows, one behind another."""
    return [f"static const uint16_t {name}[] = {{", wrapped(str(number) for row in rows for number in row), "};"]


def tables(facts):
    entries = {d[0]: (d[1:-1] + [0])[:2] for d in facts["decompositions"]}
    assert not {second for _, second in entries.values()} & set(entries)  # only first parts are taken apart again
    ideographs = {base: [entries.pop(base + i, [ord("."), 0])[0] for i in range(size)]
                  for base, size in ((0xF900, 0x1DA), (0x2F800, 0x21E))}
    out = ["/* Sets of characters: by turns how many are not in the set and how many are, from U+0000 on. */"]
    out += array("letters", runs(facts["letter"])) + array("numbers", runs(facts["number"]))
    out += array("zero", runs(r for r in facts["zero"] if r[0] < LIMIT))
    out += array("wide", runs(r for r in facts["wide"] if r[0] < 0x20000))  # planes 2 and 3 are wide as a whole
    out += ["", "/* Characters of two parts that NFC takes apart, and does not put together again */"]
    excluded = ranges((d[0], 0) for d in facts["decompositions"] if len(d) == 4 and not d[3])
    out += array("excluded", runs(r[:2] for r in excluded))
    out += ["", "/* Marks: how many characters are none, how many are of a combining class, and that class */"]
    out += array("marks", runs(facts["combining"]))
    out += ["", "/* What characters are taken apart into, in order: two parts, one, or {0} if they are not.",
            " * {c, AT}: the next entry is that of c. */",
            "#define AT 1", "static const uint32_t decompositions[][2] = {", wrapped(sequence(entries)), "};"]
    for base, to in ideographs.items():
        text = "".join(map(chr, to))
        lines = [f'    U"{text[i:i + 56]}"' for i in range(0, len(text), 56)]
        out += ["", f"/* What compatibility ideographs from U+{base:04X} on stand for; '.': themselves */",
                f"static const uint32_t ideographs_{base:x}[] =", "\n".join(lines) + ";"]
    return "\n".join(out)


HEAD = f"""/* The tables of unicode.c, written by tests/make_unicode.py: it tells what is in them. */
#ifndef UNICODE_TABLES_H
#define UNICODE_TABLES_H

#include "base/base.h"

#define UNICODE_LIMIT {LIMIT:#x}u /* no character beyond is in a table */

"""


def main():
    if sys.argv[1:2] == ["--facts"] and len(sys.argv) == 3:
        with open(sys.argv[2], encoding="ascii") as f:
            write_facts(gather(json.load(f)))
    elif len(sys.argv) == 1:
        with open(os.path.join(HERE, "data", "unicode_facts.json"), encoding="ascii") as f:
            facts = json.load(f)
        sys.stdout.write(HEAD + tables(facts) + "\n\n#endif\n")
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()

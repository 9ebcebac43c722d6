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


def hexadecimal(number):
    return f"{number:#x}" if number else "0"


def wrapped(items, width=118):
    """Items joined by commas, in lines of at most width columns."""
    lines, line = [], "   "
    for item in items:
        if len(line) + len(item) + 2 > width:
            lines.append(line)
            line = "   "
        line += f" {item},"
    return "\n".join(lines + [line])


def sparse(numbers):
    """Initializers of an array. What is missing is 0: behind a long run of zeros, an entry tells its index."""
    zeros = 0
    for i, number in enumerate(numbers):
        if number == 0:
            zeros += 1
            continue
        if zeros > 4:
            yield f"[{i}] = {number}"
        else:
            yield from ["0"] * zeros + [str(number)]
        zeros = 0


def trimmed(row):
    """The row without zeros at its end, except for the first number."""
    while len(row) > 1 and row[-1] == 0:
        row = row[:-1]
    return row


def members(rows):
    return {c for first, last in rows for c in range(first, last + 1)}


def bitmaps(sets):
    """Rows of 256 bits that the sets share, and for each set the row of every 256 code points. Row 0 is empty."""
    rows, numbers, out = [(0, 0, 0, 0)], {(0, 0, 0, 0): 0}, {}
    for name, points in sets.items():
        index = []
        for base in range(0, LIMIT, 256):
            row = tuple(sum(1 << bit for bit in range(64) if base + word * 64 + bit in points) for word in range(4))
            if row not in numbers:
                numbers[row] = len(rows)
                rows.append(row)
            index.append(numbers[row])
        out[name] = index
    return rows, out


def tables(facts):
    combining = facts["combining"]
    pairs = [d for d in facts["decompositions"] if len(d) == 4]
    singles = {d[0]: d[1] for d in facts["decompositions"] if len(d) == 3}
    assert not {d[2] for d in pairs} & ({d[0] for d in pairs} | set(singles))  # only first parts are taken apart again
    ideographs = {base: [singles.pop(base + i, 0) for i in range(size)]
                  for base, size in ((0xF900, 0x1DA), (0x2F800, 0x21E))}
    rest = sorted([d[:3] for d in pairs] + [[c, to, 0] for c, to in singles.items()])
    composed = sorted(((d[1], d[2], d[0]) for d in pairs if d[3]))
    position = {d[0]: i for i, d in enumerate(rest)}
    unstable = {d[0] for d in facts["decompositions"] if not d[-1]} | {d[2] for d in pairs if d[3]}
    unstable |= set(range(0x1161, 0x1176)) | set(range(0x11A8, 0x11C3))
    changing = unstable | {c for first, last, _ in combining for c in range(first, last + 1)}
    assert max(changing) < LIMIT
    sets = {key: members(facts[key]) for key in ("letter", "number", "wide", "zero")}
    sets["wide"] = {c for c in sets["wide"] if c < 0x20000}  # planes 2 and 3 are wide as a whole
    sets["changing"], sets["unstable"] = changing, unstable
    assert max(sets["letter"] | sets["number"]) < LIMIT
    rows, indexes = bitmaps(sets)
    out = ["static const uint64_t rows[][4] = {"]
    out += [wrapped("{" + ", ".join(hexadecimal(w) for w in trimmed(row)) + "}" for row in rows), "};"]
    for name, index in indexes.items():
        out += [f"static const uint16_t {name}_rows[UNICODE_LIMIT / 256] = {{", wrapped(sparse(index)), "};"]
    out += ["", "/* {first, last, combining class} */", "static const struct {",
            "    uint32_t first, last;", "    uint8_t class;", "} combining[] = {",
            wrapped(f"{{{a:#x}, {b:#x}, {k}}}" for a, b, k in combining), "};"]
    out += ["", "/* {code point, its two parts} or {code point, what it stands for, 0}, by code point */",
            "static const struct {", "    uint32_t whole, first, second;", "} decompositions[] = {",
            wrapped(f"{{{a:#x}, {b:#x}, {hexadecimal(c)}}}" for a, b, c in rest), "};"]
    out += ["", "/* The entries of decompositions[] that NFC composes, ordered by (first, second) */",
            "static const uint16_t compositions[] = {", wrapped(str(position[c]) for _, _, c in composed), "};"]
    for base, to in ideographs.items():
        out += ["", f"/* What compatibility ideographs from U+{base:04X} on stand for; 0: themselves */",
                f"static const uint32_t ideographs_{base:x}[] = {{", wrapped(hexadecimal(c) for c in to), "};"]
    return "\n".join(out)


HEAD = f"""/* The tables of unicode.c, written by tests/make_unicode.py: it tells what is in them. */
#ifndef UNICODE_TABLES_H
#define UNICODE_TABLES_H

#include "base/base.h"

#define UNICODE_LIMIT {LIMIT:#x}u /* no character beyond is in a set */

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

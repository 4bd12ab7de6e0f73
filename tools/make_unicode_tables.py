#!/usr/bin/env python3
"""Makes src/text/unicode/generated/unicode_tables.cc: what chat templates need to know of characters, as Python's str methods have it.

Usage  tools/make_unicode_tables.py > src/text/unicode/generated/unicode_tables.cc     (Python 3.11: Unicode 14)
"""
import sys
import unicodedata

ALL = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]


def ranges(wanted):
    out = []
    for c in ALL:
        if wanted(chr(c)):
            if out and out[-1][1] == c - 1:
                out[-1][1] = c
            else:
                out.append([c, c])
    return out


def mapping(convert):
    """Runs (first, last, stride, delta) of characters that become one other, and the list of those that become several."""
    runs, special = [], []
    for c in ALL:
        to = convert(chr(c))
        if to == chr(c):
            continue
        if len(to) > 1:
            special.append((c, to))
            continue
        delta = ord(to) - c
        if runs and runs[-1][3] == delta and c - runs[-1][1] in (1, 2) and (
                runs[-1][0] == runs[-1][1] or runs[-1][2] == c - runs[-1][1]):
            runs[-1][2] = c - runs[-1][1]
            runs[-1][1] = c
        else:
            runs.append([c, c, 1, delta])
    return runs, special


def wrapped(items):
    line, out = "   ", []
    for item in items:
        if len(line) + len(item) + 2 > 118:
            out.append(line)
            line = "   "
        line += " " + item + ","
    return "\n".join(out + [line])


def case_ignorable(ch):
    return ("A" + ch + "\u03a3").lower()[-1] == "\u03c2" and not is_cased(ch)


def is_cased(ch):
    # A sigma after a cased character is final; after one that is neither cased nor ignorable it is not.
    return (ch + "\u03a3").lower()[-1] == "\u03c2"


def emit_ranges(name, wanted):
    print(f"const std::vector<CodeRange> {name} = {{")
    print(wrapped("{0x%x, 0x%x}" % tuple(r) for r in ranges(wanted)))
    print("};\n")


def emit_mapping(name, convert):
    runs, special = mapping(convert)
    print(f"const std::vector<CaseRun> {name}Runs = {{")
    print(wrapped("{0x%x, 0x%x, %d, %d}" % tuple(r) for r in runs))
    print("};\n")
    print(f"const std::vector<CaseSpecial> {name}Special = {{")
    print(wrapped('{0x%x, U"%s"}' % (c, "".join("\\U%08x" % ord(x) for x in to)) for c, to in special))
    print("};\n")


print("// Made by tools/make_unicode_tables.py, of Unicode %s. clang-format off: a table." % unicodedata.unidata_version)
print('#include "src/text/unicode/generated/unicode_tables.h"\n')
print("// clang-format off\nnamespace mneme::unicode {\n")
emit_mapping("kUpper", str.upper)
emit_mapping("kLower", str.lower)
emit_mapping("kTitle", str.title)
emit_ranges("kCased", is_cased)
emit_ranges("kCaseIgnorable", case_ignorable)
emit_ranges("kUnprintable", lambda ch: not ch.isprintable())
emit_ranges("kCasedIgnorable", lambda ch: case_ignorable(ch) and (ch + "a").title()[-1] == "a")
print("}  // namespace mneme::unicode\n// clang-format on")
sys.stdout.flush()

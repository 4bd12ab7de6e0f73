#!/usr/bin/env python3
"""Describes samples of the published passkey and needle generators in numbers, for
tests/apps/eval/generated/needle_published_test.cc.

  tools/make_needle_counts.py LANDMARK NEEDLE OUT

LANDMARK is epfml/landmark-attention at d963e50, NEEDLE gkamradt/LLMTest_NeedleInAHaystack at 7b90d28. Their functions run
as they are, but for what is not part of them: a token is a character, the place of a pass key is not drawn, essays are
made by the rule below (the test makes the same). OUT gets lengths, positions and checksums; nothing of the samples.
"""
import ast
import json
import pathlib
import re
import sys
import types

from make_ruler_counts import word

DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
PASSKEY_STEP, PASSKEY_ROWS = 128, 40
NEEDLE_STEP, NEEDLE_ROWS = 64, 60
NEEDLE = "\nThe special magic CITY number is: 1234567\n"


def function_of(path, name, names):
    """A function or method of a file, with `names` as its globals."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef) and node.name == name:
            exec(compile(ast.Module([node], []), str(path), "exec"), names)  # pylint: disable=exec-used
            return names[name]
    raise SystemExit(f"{path}: no function {name}")


def checksum(text):
    """FNV-1a in 64 bits of the text with runs of digits as '#'."""
    value = 0xcbf29ce484222325
    for byte in re.sub("[0-9]+", "#", text).encode():
        value = (value ^ byte) * 0x100000001b3 % 2**64
    return f"{value:016x}"


def passkeys(checkout):
    """By length of the lines about grass and by depth: bytes, lines and checksum of a sample."""
    drawn = []
    random = types.SimpleNamespace(randint=lambda low, high: drawn.pop(0))
    make = function_of(checkout / "llama" / "run_test.py", "generate_prompt", {"random": random})
    rows = []
    for n in range(PASSKEY_STEP, PASSKEY_STEP * (PASSKEY_ROWS + 1), PASSKEY_STEP):
        for depth in DEPTHS:
            drawn[:] = [int(n * depth), 12345]
            text, _ = make(n)
            rows.append([len(text), text.count("\n"), checksum(text)])
    return rows


def essay():
    """Sentences of one to eleven nouns."""
    return " ".join("The " + " and the ".join(word(i + k) for k in range(1 + i * 7 % 11)) + " ended." for i in range(2000))


def needles(checkout):
    """By length of the essay's part and by depth: the character at which the needle stands."""
    characters = types.SimpleNamespace(encode_text_to_tokens=list, decode_tokens="".join)
    tester = types.SimpleNamespace(model_to_test=characters, needle=NEEDLE, final_context_length_buffer=200)
    insert = function_of(checkout / "needlehaystack" / "llm_needle_haystack_tester.py", "insert_needle", {})
    text, rows = essay(), []
    for n in range(NEEDLE_STEP, NEEDLE_STEP * (NEEDLE_ROWS + 1), NEEDLE_STEP):
        made = [insert(tester, text, 100 * depth, n + len(NEEDLE) + 200) for depth in DEPTHS]
        assert all(len(m) == n + len(NEEDLE) for m in made)
        rows.append([m.index(NEEDLE) for m in made])
    return rows


def main():
    landmark, needle, target = (pathlib.Path(a) for a in sys.argv[1:4])
    target.write_text(json.dumps({
        "generators": ["epfml/landmark-attention d963e50", "gkamradt/LLMTest_NeedleInAHaystack 7b90d28"],
        "depths": DEPTHS, "passkey_step": PASSKEY_STEP, "passkeys": passkeys(landmark),
        "needle_step": NEEDLE_STEP, "needles": needles(needle)}) + "\n")


if __name__ == "__main__":
    main()

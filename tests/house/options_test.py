"""Every option is read by code: each field of the structs that hold options is used somewhere besides its assignment.

  python3 tests/house/options_test.py ROOT

Fields are known by their names: one that shares its name with a field that is read escapes. What a field does on a device
is not seen either.
"""
import pathlib
import re
import sys
import unittest

ROOT = pathlib.Path(sys.argv.pop(1)).resolve()
HOLDERS = re.compile(r"^struct (\w*(?:Options|Setup|Settings|Command)) \{", re.MULTILINE)
# Comments and strings say nothing about code.
QUIET = re.compile(r'//[^\n]*|"(?:\\.|[^"\\\n])*"')
# An assignment: `o.field = x`, `.field = x` of a designated initialiser, `.field{x}`.
USE = re.compile(r"((?:\.|->)\s*)?\b([a-z]\w*)\b(\s*=(?!=)|\s*\{)?")


def sources():
    for folder in ("include", "src", "apps", "python/src"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".h", ".cc", ".cu", ".cuh"):
                yield path.relative_to(ROOT), QUIET.sub("", path.read_text())


def body_of(text, brace):
    depth = 0
    for i in range(brace, len(text)):
        depth += (text[i] == "{") - (text[i] == "}")
        if depth == 0:
            return text[brace + 1 : i]
    raise AssertionError("a struct does not end")


def fields_of(body):
    """Names that a struct declares; its functions and inner types are left out."""
    while "{" in body:  # initialisers, functions, inner structs: innermost first
        body = re.sub(r"\{[^{}]*\}", "", body)
    for declaration in body.split(";"):
        declared = declaration.strip()
        if "(" in declared.split("=")[0] or re.match(r"(using|struct|enum|friend|static)\b", declared):
            continue
        declared = re.sub(r"<[^;]*>", "", declared)
        for part in declared.split(",") if "=" not in declared or declared.count("=") > 1 else [declared]:
            if name := re.search(r"(\w+)\s*(=.*)?$", part.strip(), re.DOTALL):
                yield name[1]


def unread(texts):
    """[(file, struct, field)] of fields that are declared and assigned at most."""
    reads, fields = {}, []
    for path, text in texts:
        for m in HOLDERS.finditer(text):
            fields += [(str(path), m[1], f) for f in fields_of(body_of(text, m.end() - 1))]
        for member, name, assigned in USE.findall(text):
            if not (member and assigned):
                reads[name] = reads.get(name, 0) + 1
    declared = {}
    for _, _, name in fields:
        declared[name] = declared.get(name, 0) + 1
    return [f for f in fields if reads.get(f[2], 0) <= declared[f[2]]], len(fields)


class OptionsAreRead(unittest.TestCase):
    def test_the_check_itself_sees_what_it_should(self):
        text = """
struct XOptions {
  int seen = 1, passed_by = 2;
  std::map<int, bool> table = {{1, true}};
  bool ok() const { return seen > 0; }
};
void f(XOptions o) { o.passed_by = 3; g({.table = {}}); }  // passed_by
"""
        found, n = unread([("x.h", QUIET.sub("", text))])
        self.assertEqual((found, n), ([("x.h", "XOptions", "passed_by"), ("x.h", "XOptions", "table")], 3))

    def test_every_field_is_read(self):
        found, n = unread(list(sources()))
        self.assertGreater(n, 300, "the test has lost the options")
        self.assertEqual(found, [], "read it where it acts, or take the option away")


if __name__ == "__main__":
    unittest.main()

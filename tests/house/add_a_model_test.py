"""The example of docs/guide/add-a-model.md holds: its patch applies to the tree, is short, compiles, makes a model that
readers find by its names, and is what the page shows.

  python3 tests/house/add_a_model_test.py ROOT COMPILER
"""
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

COMPILER = sys.argv.pop(2)
ROOT = pathlib.Path(sys.argv.pop(1)).resolve()
PATCH = ROOT / "examples/add_a_model.patch"
PAGE = ROOT / "docs/guide/add-a-model.md"
MOST_LINES, MOST_FILES = 90, 3
PROGRAM = """#include <cstdio>
#include "src/formats/family.h"
int main() {
  const auto* folder = mneme::family_of_hf("helium");
  const auto* gguf = mneme::family_of_gguf("helium");
  return folder != nullptr && folder == gguf && mneme::gguf_families().ends_with("helium") ? 0 : 1;
}
"""


def files_of(patch):
    return re.findall(r"^\+\+\+ b/(\S+)", patch, re.M)


def changed_lines(patch):
    return sum(line.startswith(("+", "-")) and not line.startswith(("+++", "---")) for line in patch.splitlines())


class AddAModel(unittest.TestCase):
    def setUp(self):
        self.patch = PATCH.read_text()
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        for name in files_of(self.patch):
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, self.folder / name)
        done = subprocess.run(["patch", "-p1", "--batch", "--forward", "--no-backup-if-mismatch", "-i", PATCH],
                              cwd=self.folder, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def compiled(self, *sources):
        return subprocess.run([COMPILER, "-std=c++20", f"-I{self.folder}", f"-I{ROOT}", f"-I{ROOT}/include", "-DFMT_HEADER_ONLY", *sources,
                               f"{ROOT}/src/base/check.cc", "-o", "found"],
                              cwd=self.folder, capture_output=True, text=True, check=False)

    def test_is_short(self):
        self.assertLessEqual(changed_lines(self.patch), MOST_LINES)
        self.assertLessEqual(len(files_of(self.patch)), MOST_FILES)
        self.assertRegex(PAGE.read_text(), rf"\b{changed_lines(self.patch)} changed\s+lines")

    def test_page_shows_the_patch(self):
        blocks = re.findall(r"^```diff\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
        self.assertGreater(len(blocks), 1, "the page has lost its steps")
        for block in blocks:
            self.assertIn("\n" + block, self.patch)
            self.assertNotIn("\n" + block.replace("elium", "ellium"), self.patch)

    def test_readers_find_the_model(self):
        (self.folder / "found.cc").write_text(PROGRAM)
        done = self.compiled("found.cc", "src/formats/family.cc")
        self.assertEqual(done.returncode, 0, done.stderr[:2000])
        self.assertEqual(subprocess.run([self.folder / "found"], check=False).returncode, 0)

    def test_a_mistake_is_noticed(self):
        family = self.folder / "src/formats/family.cc"
        family.write_text(family.read_text().replace("kHelium", "kHellium"))
        self.assertIn("error", self.compiled("-fsyntax-only", "src/formats/family.cc").stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)

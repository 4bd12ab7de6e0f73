"""The example of docs/guide/add-a-method.md holds: its patch applies to the tree, is short, compiles, and is what the
page shows.

  python3 tests/house/add_a_method_test.py ROOT COMPILER
"""
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

COMPILER = sys.argv.pop(2)
ROOT = pathlib.Path(sys.argv.pop(1)).resolve()
PATCH = ROOT / "examples/add_a_method.patch"
PAGE = ROOT / "docs/guide/add-a-method.md"
MOST_LINES = 149


def files_of(patch):
    return re.findall(r"^\+\+\+ b/(\S+)", patch, re.M)


def changed_lines(patch):
    return sum(line.startswith(("+", "-")) and not line.startswith(("+++", "---")) for line in patch.splitlines())


def blocks_of(page):
    return re.findall(r"^```diff\n(.*?)^```$", page, re.M | re.S)


def shows(patch, block):
    """Whether the patch has these lines, one after the other; a line `...` stands between two places."""
    return all("\n" + part in patch for part in re.split(r"^\.\.\.\n", block, flags=re.M))


def patched_copy(folder):
    """What the patch makes, in `folder`: the files that it touches and nothing else. An error message, or None."""
    for name in files_of(PATCH.read_text()):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    done = subprocess.run(["patch", "-p1", "--batch", "--forward", "--no-backup-if-mismatch", "-i", PATCH], cwd=folder,
                          capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else done.stdout + done.stderr


def nvcc():
    for file in (shutil.which("nvcc"), "/usr/local/cuda/bin/nvcc"):
        if file and os.access(file, os.X_OK):
            return file
    return None


def errors_of(command, name, folder):
    """What a compiler's front end says of a file of the copy; it finds other files in the tree."""
    done = subprocess.run([*command, "-std=c++20", f"-I{folder}", f"-I{folder}/include", f"-I{ROOT}",
                           f"-I{ROOT}/include", "-DFMT_SHARED", f'-DMNEME_SOURCE_DIR="{ROOT}"', name],
                          cwd=folder, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else f"{name}:\n{done.stderr[:2000]}"


def host_errors(names, folder):
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        return "".join(pool.map(lambda name: errors_of([COMPILER, "-fsyntax-only"], name, folder), names))


class AddAMethod(unittest.TestCase):
    def setUp(self):
        self.patch = PATCH.read_text()
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        self.assertIsNone(patched_copy(self.folder))

    def test_is_short(self):
        self.assertLessEqual(changed_lines(self.patch), MOST_LINES)
        self.assertRegex(PAGE.read_text(), rf"\b{changed_lines(self.patch)} changed\s+lines")

    def test_page_shows_the_patch(self):
        blocks = blocks_of(PAGE.read_text())
        self.assertGreater(len(blocks), 3, "the page has lost its steps")
        for block in blocks:
            self.assertTrue(shows(self.patch, block), f"not in examples/add_a_method.patch:\n{block}")

    def test_another_block_is_noticed(self):
        block = blocks_of(PAGE.read_text())[0]
        self.assertFalse(shows(self.patch, block.replace("Band", "Bond", 1)))

    def test_compiles_for_the_host(self):
        names = [name for name in files_of(self.patch) if name.endswith(".cc")]
        self.assertGreater(len(names), 7, "the example has lost its sources")
        self.assertEqual(host_errors(names, self.folder), "")

    def test_a_mistake_is_noticed(self):
        file = self.folder / "src/selection/summary/band_cpu.cc"
        file.write_text(file.read_text().replace("band_build_cpu", "bond_build_cpu").replace("squares", "square", 1))
        self.assertIn("error", host_errors(["src/selection/summary/band_cpu.cc"], self.folder))

    def test_compiles_for_the_device(self):
        if nvcc() is None:
            self.skipTest("no nvcc: the kernels of the example are not compiled")
        names = [name for name in files_of(self.patch) if name.endswith(".cu")]
        self.assertTrue(names, "the example has lost its kernels")
        for name in names:
            self.assertEqual(errors_of([nvcc(), "-gencode", "arch=compute_90,code=sm_90", "-gencode",
                                        "arch=compute_80,code=sm_80", "--fdevice-syntax-only", "-Xcompiler",
                                        "-fsyntax-only", "-o", str(self.folder / "object"), "-c"], name, self.folder),
                             "")


if __name__ == "__main__":
    unittest.main(verbosity=2)

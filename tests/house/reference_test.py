"""docs/reference is what the program says; tools/reference notices what is stale.

  python3 tests/house/reference_test.py ROOT PROGRAM
"""
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

PROGRAM = str(pathlib.Path(sys.argv.pop(2)).resolve())
ROOT = pathlib.Path(sys.argv.pop(1)).resolve()


def reference(root, *arguments):
    return subprocess.run([sys.executable, "-B", str(root / "tools" / "reference"), "--program", PROGRAM, *arguments],
                          capture_output=True, text=True, check=False)


class Reference(unittest.TestCase):
    def copy(self, folder):
        root = pathlib.Path(folder)
        for name in ("tools/reference", "README.md", "src/server/api/api.cc", "src/server/metrics.cc", "src/tensor/dtype.cc",
                     "src/formats/gguf/gguf_types.cc", "src/formats/safetensors/quant_config.cc",
                     "src/formats/family.cc", "python/mneme/recipe.pyi"):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, root / name)
        shutil.copytree(ROOT / "docs", root / "docs")
        return root

    def test_pages_are_those_of_the_program(self):
        done = reference(ROOT, "--check")
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_a_stale_page_is_noticed_and_mended(self):
        with tempfile.TemporaryDirectory() as folder:
            root = self.copy(folder)
            page = root / "docs/reference/options.md"
            page.write_text(page.read_text().replace("`--kv-budget`", "`--kv-budgets`", 1))
            done = reference(root, "--check")
            self.assertEqual(done.returncode, 1)
            self.assertIn("options.md: is stale", done.stderr)
            self.assertEqual(reference(root).returncode, 0)
            self.assertEqual(reference(root, "--check").returncode, 0)

    def test_a_field_of_the_program_alone_reaches_the_stub(self):
        with tempfile.TemporaryDirectory() as folder:
            root = self.copy(folder)
            program = pathlib.Path(folder) / "program"
            program.write_text(f"""#!{sys.executable}
import json, subprocess, sys
text = subprocess.run([{PROGRAM!r}, *sys.argv[1:]], capture_output=True, text=True, check=True).stdout
if sys.argv[1:] == ["methods", "--json"]:
    data = json.loads(text)
    data["fields"].append({{"name": "zeal", "key": "zeal", "kind": "number", "values": "N", "word": "all",
                           "meaning": "zeal"}})
    text = json.dumps(data)
sys.stdout.write(text)
""")
            program.chmod(0o755)
            run = [sys.executable, "-B", str(root / "tools/reference"), "--program", str(program)]
            self.assertEqual(subprocess.run([*run, "--check"], capture_output=True, check=False).returncode, 1)
            self.assertEqual(subprocess.run(run, capture_output=True, check=False).returncode, 0)
            stub = (root / "python/mneme/recipe.pyi").read_text()
            self.assertEqual(stub.count('zeal: float | Literal["all"] | None = None,'), 2)
            self.assertIn('def zeal(self) -> float | Literal["all"] | None:', stub)

    def test_a_new_route_and_a_new_metric_make_pages_stale(self):
        with tempfile.TemporaryDirectory() as folder:
            root = self.copy(folder)
            api = root / "src/server/api/api.cc"
            api.write_text(api.read_text().replace('{.method = "GET", .path = "/health"',
                                                   '{.method = "GET", .path = "/made-up"},\n'
                                                   '      {.method = "GET", .path = "/health"'))
            self.assertIn("is stale", reference(root, "--check").stderr)
            metrics = root / "src/server/metrics.cc"
            metrics.write_text(metrics.read_text().replace('page.one("engine_steps_total", "counter", ',
                                                           'page.one("engine_steps_total", kCounter, '))
            self.assertIn("metrics are written", reference(root, "--check").stderr)

    def test_a_lost_part_is_noticed(self):
        with tempfile.TemporaryDirectory() as folder:
            root = self.copy(folder)
            page = root / "docs/reference/options.md"
            page.write_text(page.read_text().replace("<!-- reference: options-shared -->", ""))
            self.assertIn("0 pages hold the part options-shared", reference(root, "--check").stderr)

    def test_every_command_is_on_its_page_or_in_the_index(self):
        with tempfile.TemporaryDirectory() as folder:
            root = self.copy(folder)
            index = root / "docs/reference/options.md"
            page = root / "docs/reference/options/doctor.md"
            self.assertIn("(options/doctor.md)", index.read_text())
            page.rename(root / "docs/reference/options/made-up.md")
            made_up = root / "docs/reference/options/made-up.md"
            made_up.write_text(made_up.read_text().replace("options-doctor", "options-made-up"))
            self.assertIn("the program has no command made-up", reference(root).stderr)
            made_up.unlink()
            self.assertEqual(reference(root).returncode, 0)
            self.assertIn("(#mneme-doctor)", index.read_text())
            self.assertIn("\n## `mneme doctor`\n", index.read_text())

    def test_an_option_is_described_once(self):
        index = (ROOT / "docs/reference/options.md").read_text()
        pages = {p.stem: p.read_text() for p in (ROOT / "docs/reference/options").glob("*.md")}
        self.assertIn("\n* `--gpus` `N,...`: ", index)
        for name in ("run", "serve", "eval", "bench"):
            self.assertNotIn("* `--gpus`", pages[name])
            self.assertIn("`--gpus`", pages[name])
        self.assertNotIn("{false}", "".join([index, *pages.values()]))


if __name__ == "__main__":
    unittest.main()

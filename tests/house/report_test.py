"""Figures and tables are those of the recorded results; tools/report and tools/record notice what is wrong.

  python3 tests/house/report_test.py ROOT
"""
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(sys.argv.pop(1) if len(sys.argv) > 1 else ".").resolve()
sys.path.insert(0, str(ROOT / "tools"))
from reporting import record_text  # noqa: E402


def report(root, *arguments):
    return subprocess.run([sys.executable, "-B", str(root / "tools" / "report"), *arguments], capture_output=True,
                          text=True, check=False)


class Tree(unittest.TestCase):
    """A copy of what the tools read, which tests change."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.root = pathlib.Path(self.folder.name)
        for name in ("tools/report", "tools/record", "README.md"):
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, self.root / name)
        for name in ("tools/reporting", "docs", "bench/results"):
            shutil.copytree(ROOT / name, self.root / name, ignore=shutil.ignore_patterns("__pycache__"))

    def page(self, text):
        (self.root / "docs" / "page_of_the_test.md").write_text(text)

    def expect(self, code, *words):
        done = report(self.root, "--check")
        said = done.stdout + done.stderr
        self.assertEqual(done.returncode, code, said)
        for word in words:
            self.assertIn(word, said)


class ReportTest(Tree):
    def test_the_tree_is_up_to_date(self):
        done = report(ROOT, "--check")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_readme_is_short(self):
        lines = (ROOT / "README.md").read_text().splitlines()
        self.assertLessEqual(len(lines), 120)
        self.assertLessEqual(max(map(len, lines)), 120)

    def test_a_figure_that_was_edited_is_named(self):
        file = self.root / "docs/figures/decode-context.svg"
        file.write_text(file.read_text().replace("M", "m", 1))
        self.expect(1, "docs/figures/decode-context.svg: stale")

    def test_a_record_that_changed_makes_readme_and_figure_stale(self):
        for file in (self.root / "bench/results").glob("*.json"):
            text = file.read_text()
            if '"freekv"' in text:
                record = json.loads(text)
                for case in record.get("cases", []):
                    for r in case.get("results", []):
                        if isinstance(r.get("step_seconds"), dict):
                            r["step_seconds"]["median"] *= 2
                file.write_text(json.dumps(record))
        self.expect(1, "README.md: stale", "docs/figures/decode-context.svg: stale")
        self.assertEqual(report(self.root).returncode, 0)
        self.expect(0)

    def test_a_page_may_not_show_a_figure_without_its_record(self):
        for name in ("m14-plan.json", "m11-key-statistics.json"):
            (self.root / "bench/results" / name).unlink()
        self.page("![throughput](figures/plan-throughput.svg)\n")
        self.expect(1, "shows docs/figures/plan-throughput.svg, which has no record")
        self.page("<!-- report: key-statistics -->\n<!-- /report -->\n")
        self.expect(1, "table key-statistics has no record (bench/results/m11-key-statistics.json)")

    def test_records_are_as_tools_record_writes_them(self):
        wrong = []
        for file in sorted((ROOT / "bench/results").glob("*.json")):
            if file.read_text() != record_text.record_text(record_text.unpacked(json.loads(file.read_text()))):
                wrong.append(file.name)
        self.assertEqual(wrong, [], "a line a case, without what nothing reads: tools/reporting/record_text.py")

    def test_a_document_or_a_source_names_every_record(self):
        texts = [f.read_text() for top in ("docs", "tools", "tests", "apps", "src") for f in (ROOT / top).rglob("*")
                 if f.suffix in (".md", ".py", ".cc", ".h", ".cu", ".cuh")]
        texts += [(ROOT / f).read_text() for f in ("README.md", "CONTRIBUTING.md")]
        nowhere = [f.name for f in (ROOT / "bench/results").iterdir() if not any(f.stem in text for text in texts)]
        self.assertEqual(nowhere, [], "quote it, or delete it")

    def test_a_page_may_not_show_a_figure_that_does_not_exist(self):
        self.page("![nothing](figures/nothing.png)\n")
        self.expect(1, "shows docs/figures/nothing.png, which does not exist")

    def test_an_unknown_table_is_named(self):
        self.page("<!-- report: weather -->\nrain\n<!-- /report -->\n")
        self.expect(1, "no table is called weather")

    def test_a_table_is_filled_and_links_are_relative_to_its_page(self):
        self.page("before\n<!-- report: context -->\n<!-- /report -->\nafter\n")
        self.assertEqual(report(self.root).returncode, 0)
        text = (self.root / "docs/page_of_the_test.md").read_text()
        self.assertTrue(text.startswith("before\n<!-- report: context -->\n| ms per token at |"), text)
        self.assertIn("(../bench/results/", text)
        self.assertTrue(text.endswith("<!-- /report -->\nafter\n"), text)


class RecordTextTest(unittest.TestCase):
    def test_lists_of_alike_objects_are_tables(self):
        record = {"what": "x", "cases": [{"command": ["mneme", "eval", "-m", "a b"], "machine": {"cpu": "C", "cores": 2},
                                          "cells": [{"method": "full", "against_full": {"points": 0.5, "pairs": 2}},
                                                    {"method": "fier", "seconds": 2, "budget": None}]}]}
        text = record_text.record_text(record)
        self.assertEqual(text, '''{"what": "x",
 "cases": [
  {"command": "mneme eval -m 'a b'", "machine": {"cpu": "C"},
   "cells": {"columns": ["method", "against_full.points", "budget"],
    "rows": [
     ["full", 0.5, null],
     ["fier", null, null]]}}]}
''')
        cells = record_text.unpacked(json.loads(text))["cases"][0]["cells"]
        self.assertEqual(cells, [{"method": "full", "against_full": {"points": 0.5}}, {"method": "fier"}])

    def test_a_bench_case_keeps_its_medians_and_a_line_for_each_result(self):
        row = {"method": "full", "depth": 8, "step_seconds": {"median": 0.00123456789, "p99": 1}, "operations": 1}
        text = record_text.record_text({"cases": [{"test": "decode", "threads": 4, "device": {"name": "H"}, "machine": {},
                                               "results": [row, row]}]})
        line = '{"method": "full", "depth": 8, "step_seconds": {"median": 0.001234568}}'
        self.assertEqual(text, '''{"cases": [
  {"test": "decode", "device": {"name": "H"},
   "results": [
    %s,
    %s]}]}
''' % (line, line))


class RecordTest(Tree):
    def record(self, commit, *arguments):
        program = self.root / "program"
        program.write_text(f'#!/bin/sh\nprintf \'{{"commit": "{commit}", "results": [], "said": "%s"}}\' "$*"\n')
        program.chmod(0o755)
        return subprocess.run([sys.executable, "-B", str(self.root / "tools/record"), "m8-batch-h200", "--program",
                               str(program), "--out", str(self.root / "out"), *arguments], capture_output=True,
                              text=True, check=False)

    def test_it_keeps_commands_and_what_they_printed(self):
        done = self.record("0123456789ab")
        self.assertEqual(done.returncode, 0, done.stderr)
        made = json.loads((self.root / "out/m8-batch-h200.json").read_text())
        self.assertEqual(made["commit"], ["0123456789ab"])
        self.assertEqual(len(made["cases"]), 3)
        for case in made["cases"]:
            self.assertEqual(case["command"], "mneme " + case["said"])

    def test_it_refuses_what_nobody_can_build_again(self):
        done = self.record("0123456789ab-dirty")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("0123456789ab-dirty", done.stderr)
        self.assertFalse((self.root / "out/m8-batch-h200.json").exists())
        self.assertEqual(self.record("0123456789ab-dirty", "--allow-dirty").returncode, 0)


if __name__ == "__main__":
    unittest.main()

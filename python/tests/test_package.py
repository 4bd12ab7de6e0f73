"""`pip install ./python` builds what `pip install .` does."""

import subprocess
import sys
import textwrap

import pytest

from conftest import ROOT

tomllib = pytest.importorskip("tomllib")  # Python 3.11


def test_the_folder_of_the_package_can_be_installed() -> None:
    root = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]
    here = tomllib.loads((ROOT / "python" / "pyproject.toml").read_text())["build-system"]
    assert here["requires"] == root["requires"]
    assert here["backend-path"] == ["."]
    # The hooks of the root's backend, in the root's folder: with a stand-in, as the real one may not be installed.
    program = f"""
        import os, sys, types
        real = types.ModuleType({root["build-backend"]!r})
        real.build_wheel = lambda folder: os.getcwd()
        sys.modules[{root["build-backend"].split(".")[0]!r}] = types.ModuleType("parent")
        sys.modules[{root["build-backend"]!r}] = real
        import {here["build-backend"]} as backend
        print(backend.build_wheel("wheels"))
    """
    done = subprocess.run(
        [sys.executable, "-B", "-c", textwrap.dedent(program)], capture_output=True, text=True, cwd=ROOT / "python"
    )
    assert done.stdout.strip() == str(ROOT.resolve()), done.stderr

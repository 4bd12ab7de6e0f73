"""The examples: the script writes its picture, the notebook is the script and runs, Ray Serve's file is right Python."""

import os
import pathlib
import subprocess
import sys

import pytest

from conftest import MODEL, ROOT

FOLDER = ROOT / "examples" / "python"


def test_the_notebook_is_the_script() -> None:
    done = subprocess.run([sys.executable, str(ROOT / "tools" / "make_notebook"), "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_methods_are_compared(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("matplotlib")
    command = [sys.executable, str(FOLDER / "compare_methods.py"), str(MODEL), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    exact = {line.split()[0]: int(line.split()[1]) for line in done.stdout.splitlines() if "% right" in line}
    assert list(exact) == ["full", "window", "quest", "freekv", "fier", "louiskv"]
    assert exact["full"] == 100 and exact["window"] < exact["quest"]
    assert (tmp_path / "compare_methods.png").stat().st_size > 10_000


def test_the_notebook_runs(tmp_path: pathlib.Path) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    pytest.importorskip("matplotlib")
    (tmp_path / "models").symlink_to(ROOT / "models")
    book = nbformat.read(FOLDER / "compare_methods.ipynb", as_version=4)
    os.environ.setdefault("MPLBACKEND", "Agg")
    nbclient.NotebookClient(book, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert (tmp_path / "compare_methods.png").exists()


def test_ray_serves_example_is_short_and_compiles() -> None:
    text = (FOLDER / "ray_serve.py").read_text()
    compile(text, "ray_serve.py", "exec")

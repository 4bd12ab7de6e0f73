"""Types and documents: the stub is the module's, mypy finds nothing, every public name is documented."""

import ast
import inspect
import pathlib
import re
import subprocess
import sys

import pytest

import mneme
from conftest import ROOT

PACKAGE = pathlib.Path(mneme.__file__).parent


def test_the_package_says_that_it_is_typed() -> None:
    assert (PACKAGE / "py.typed").exists()
    assert (PACKAGE / "_core.pyi").exists()


def test_the_stub_is_what_the_module_says() -> None:
    stubgen = pytest.importorskip("nanobind.stubgen")
    from mneme import _core

    stub = stubgen.StubGen(_core)
    stub.put(_core)
    assert stub.get().strip() == (PACKAGE / "_core.pyi").read_text().strip()


def test_mypy_is_content() -> None:
    pytest.importorskip("mypy")
    # The harnesses that some modules plug into have no types.
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--ignore-missing-imports", "--no-incremental",
         "--disable-error-code=import-untyped", "mneme"],
        capture_output=True, text=True, cwd=ROOT / "python",
    )
    assert done.returncode == 0, done.stdout


def public() -> list[tuple[str, object]]:
    found: list[tuple[str, object]] = []
    for name in mneme.__all__:
        value = getattr(mneme, name)
        if name == "Prompt":
            continue
        found.append((name, value))
        if inspect.isclass(value):
            for member, inner in vars(value).items():
                if not member.startswith("_") and (callable(inner) or isinstance(inner, (property, classmethod))):
                    found.append((f"{name}.{member}", inner))
    return found


@pytest.mark.parametrize(("name", "value"), public(), ids=[n for n, _ in public()])
def test_every_public_name_has_a_docstring(name: str, value: object) -> None:
    assert inspect.getdoc(value), name


def test_every_public_name_is_in_the_reference() -> None:
    page = (ROOT / "docs" / "reference" / "python.md").read_text()
    headings = set(re.findall(r"^#+ `([\w.]+)", page, re.MULTILINE))
    missing = [name for name, _ in public() if name not in headings and not name.startswith("Recipe.")]
    assert missing == []


def test_every_error_is_of_the_kinds_that_the_reference_names() -> None:
    # A Recipe is immutable, as frozen dataclasses are: AttributeError. _cuda: the package cannot be imported.
    kinds = {"Error", "TypeError", "AssertionError"}  # the last: a fault of the package itself
    more = {"recipe.py": {"AttributeError"}, "_cuda.py": {"ImportError"}}
    for path in PACKAGE.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                name = ast.unparse(node.exc.func)
                assert name.removeprefix("mneme.") in kinds | more.get(path.name, set()), f"{path.name}:{node.lineno}"

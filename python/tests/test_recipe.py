"""Recipes: typed, immutable, printed and parsed."""

import ast
import collections.abc
import inspect
import pickle
import re
import types
import typing

import pytest

import mneme
from conftest import ROOT
from mneme import _core

# The library's table: name, key, kind, values, word, meaning.
FIELDS = _core.recipe_fields()
KEYS = [(key, values, meaning) for _, key, _, values, _, meaning in FIELDS]
NAMES = {key: name for name, key, *_ in FIELDS}
SIGNATURE = inspect.signature(mneme.Recipe.__init__)
HINTS = {name: p.annotation for name, p in SIGNATURE.parameters.items()}
STUB = ast.parse((ROOT / "python" / "mneme" / "recipe.pyi").read_text())


def choices(hint: object) -> list[object]:
    """The members of a keyword's type, without None."""
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return [t for t in (typing.get_args(hint) if is_union else (hint,)) if t is not type(None)]


def literals(hint: object) -> set[str]:
    return {name for t in choices(hint) if typing.get_origin(t) is typing.Literal for name in typing.get_args(t)}


def is_of(value: object, hint: object) -> bool:
    for t in choices(hint):
        if typing.get_origin(t) is typing.Literal:
            if isinstance(value, str) and value in typing.get_args(t):
                return True
        elif typing.get_origin(t) is collections.abc.Sequence:
            if isinstance(value, tuple):
                return True
        elif type(value) is t:
            return True
    return False


def test_every_key_of_the_library_is_a_keyword_and_a_property() -> None:
    keywords = {name for name, p in SIGNATURE.parameters.items() if p.kind is p.KEYWORD_ONLY}
    assert keywords == set(NAMES.values())
    assert set(NAMES.values()) <= {name for name, value in vars(mneme.Recipe).items() if isinstance(value, property)}
    for name in NAMES.values():
        assert vars(mneme.Recipe)[name].__doc__, name
        assert re.search(rf"^ {{4}}{name}: ", mneme.Recipe.__init__.__doc__ or "", re.MULTILINE), name


def test_the_stub_has_every_field_with_the_type_of_its_values() -> None:
    (cls,) = [node for node in STUB.body if isinstance(node, ast.ClassDef)]
    made = {node.name: node for node in cls.body if isinstance(node, ast.FunctionDef)}
    for function in ("__init__", "replace"):
        assert [a.arg for a in made[function].args.kwonlyargs] == list(NAMES.values())
    names = {"Sequence": collections.abc.Sequence, "Literal": typing.Literal}
    for argument in made["__init__"].args.kwonlyargs:
        assert argument.annotation is not None
        own = eval(ast.unparse(argument.annotation), names)
        assert own == HINTS[argument.arg], argument.arg
        returned = made[argument.arg].returns
        assert returned is not None and eval(ast.unparse(returned), names) == own


def test_a_field_of_the_table_alone_is_a_keyword_and_a_property() -> None:
    from mneme import recipe

    class Other(mneme.Recipe):
        def __init__(self, method: str, **settings: object) -> None:
            super().__init__(method, **settings)

    field = recipe._Field("zeal", "zeal", "number", "N | all", "all", "zeal of a step")  # type: ignore[attr-defined]
    recipe._add(Other, {"zeal": field})  # type: ignore[attr-defined]
    assert inspect.signature(Other.__init__).parameters["zeal"].annotation == (float | typing.Literal["all"] | None)
    assert vars(Other)["zeal"].__doc__ == "Zeal of a step."
    assert (field.value("0.5"), field.value("all"), field.text(0.5)) == (0.5, "all", "0.5")


@pytest.mark.parametrize(("key", "values"), [(key, values) for key, values, _ in KEYS])
def test_a_keyword_has_the_names_that_the_library_takes(key: str, values: str) -> None:
    hint = HINTS[NAMES[key]]
    names = values.split(" | ")
    if all(re.fullmatch(r"[a-zA-Z_]+", name) for name in names) and len(names) > 1:
        if set(names) == {"no", "yes"}:
            assert choices(hint) == [bool]
        elif not literals(hint):
            assert choices(hint) == [str]  # e.g. FILE
        else:
            # Words for numbers ("tokens", "N") are the number's type.
            numbers = {"tokens", "N", "mass"} if int in choices(hint) or float in choices(hint) else set()
            assert literals(hint) == set(names) - numbers
    else:
        assert literals(hint) <= set(names)


def test_a_setting_has_the_type_of_its_keyword() -> None:
    seen = set()
    for method in mneme.methods():
        for key, text in _core.recipe_values(method):
            value = getattr(mneme.Recipe(method), NAMES[key])
            assert is_of(value, HINTS[NAMES[key]]), (method, key, text, value)
            assert mneme.Recipe(method).replace(**{NAMES[key]: value}) == mneme.Recipe(method), (method, key)
            seen.add(key)
    # Of blocks that no method has by itself.
    more = mneme.Recipe.parse("h2o:rank=stamp"), mneme.Recipe.parse("snapkv:rank=mass_var")
    assert (more[0].stamp_page, more[0].pin_prompt) == (more[0]._value("stamp_page"), more[0]._value("pin_prompt"))
    for recipe in more:
        for key, text in _core.recipe_values(str(recipe)):
            value = getattr(recipe, NAMES[key])
            assert is_of(value, HINTS[NAMES[key]]), (key, text, value)
            seen.add(key)
    assert seen >= {key for key, _, _ in KEYS}, "try a recipe that has these keys"


def test_the_pages_and_the_message_have_every_key() -> None:
    page = (ROOT / "docs" / "reference" / "methods.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| (.+?) \|$", page.replace("\\|", "\0"), re.MULTILINE)
    documented = {(key, values.replace("\0", "|"), meaning.replace("\0", "|")) for key, values, meaning in rows}
    assert {tuple(key) for key in KEYS} <= documented
    python_page = (ROOT / "docs" / "reference" / "python.md").read_text()
    assert "[the settings of methods](methods.md), typed in recipe.pyi" in python_page
    with pytest.raises(mneme.Error) as raised:
        mneme.Recipe.parse("quest:no_such=5")
    assert str(raised.value).split("there are: ")[1].split(", ") == [key for key, _, _ in KEYS]


@pytest.mark.parametrize("name", sorted(mneme.methods()))
def test_a_method_is_printed_and_parsed(name: str) -> None:
    recipe = mneme.Recipe(name)
    assert recipe.method == name
    assert mneme.Recipe.parse(str(recipe)) == recipe
    assert eval(repr(recipe), {"Recipe": mneme.Recipe}) == recipe
    assert pickle.loads(pickle.dumps(recipe)) == recipe


def test_settings_are_values() -> None:
    quest = mneme.Recipe("quest", budget=512, unit="page:32", dense_layers=[0, 2])
    assert (quest.budget, quest.unit, quest.dense_layers, quest.tau) == (512, "page:32", (0, 2), None)
    assert quest.replace(budget=1024).budget == 1024 and quest.budget == 512
    assert mneme.Recipe("freekv", tau=0.9).tau == pytest.approx(0.9)
    assert mneme.Recipe("refreekv").budget == "norm"
    assert len({quest, mneme.Recipe.parse(str(quest))}) == 1


def test_nothing_changes_a_recipe() -> None:
    recipe = mneme.Recipe("quest")
    with pytest.raises(AttributeError, match="immutable"):
        recipe.budget = 5  # type: ignore[misc]
    with pytest.raises(AttributeError):
        del recipe._text


def test_what_does_not_fit_is_named() -> None:
    for make, words in (
        (lambda: mneme.Recipe("kvest"), "kvest"),
        (lambda: mneme.Recipe("quest", unit="pages"), "token, page:N or cluster:N"),
        (lambda: mneme.Recipe("window", tau=0.5), "tau"),
        (lambda: mneme.Recipe.parse("quest:no_such=5"), "no_such"),
    ):
        with pytest.raises(mneme.Error, match=words) as raised:
            make()
        assert raised.value.kind == "option"
    for wrong in ({"budget": [5]}, {"by_size": "yes"}, {"dense_layers": "0+1"}):
        with pytest.raises(TypeError):
            mneme.Recipe("louiskv", **wrong)
    with pytest.raises(TypeError, match="no such setting"):
        mneme.Recipe("quest").replace(size=3)

"""Recipes: typed, immutable, printed and parsed."""

import inspect
import pickle

import pytest

import mneme
from mneme import _core


def test_every_key_of_the_library_is_a_keyword_and_a_property() -> None:
    keys = {"dense_layers" if key == "dense" else key for key, _, _ in _core.recipe_keys()}
    keywords = {
        name for name, p in inspect.signature(mneme.Recipe.__init__).parameters.items() if p.kind is p.KEYWORD_ONLY
    }
    assert keywords == keys
    assert keys <= {name for name, value in vars(mneme.Recipe).items() if isinstance(value, property)}


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

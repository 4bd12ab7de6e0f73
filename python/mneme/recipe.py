"""A KV method as an immutable value: which part of the KV cache a decode step reads, and how it is selected.

The fields are the library's (src/recipes/fields.cc). tools/reference makes recipe.pyi, which editors and mypy read,
from the same table.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, Literal, Optional, Union

from . import _core


class _Field:
    """A field of the library's table."""

    def __init__(self, name: str, key: str, kind: str, values: str, word: str, meaning: str) -> None:
        self.name, self.key, self.kind, self.values, self.word, self.meaning = name, key, kind, values, word, meaning

    def text(self, value: Any) -> str:
        """A keyword's value as the text of a recipe spells it."""
        if self.kind == "layers":
            if isinstance(value, str) or not all(isinstance(v, int) for v in value):
                raise TypeError(f"{self.name}: expected layers as integers, found {value!r}")
            return "+".join(str(v) for v in value) or "none"
        if self.kind == "flag":
            if not isinstance(value, bool):
                raise TypeError(f"{self.name}: expected True or False, found {value!r}")
            return "yes" if value else "no"
        if isinstance(value, bool) or not isinstance(value, (int, float, str)):
            raise TypeError(f"{self.name}: expected a number or a name, found {value!r}")
        return str(value)

    def value(self, text: str) -> Any:
        if self.kind == "layers":
            return () if text == "none" else tuple(int(v) for v in text.split("+"))
        if self.kind == "flag":
            return text == "yes"
        if self.kind in ("integer", "number") and text != self.word:
            return int(text) if self.kind == "integer" else float(text)
        return text

    def hint(self) -> Any:
        """The type of the field's values."""
        if self.kind == "name":
            return Literal[tuple(self.values.split(" | "))]
        plain = {"integer": int, "number": float, "flag": bool, "text": str, "layers": Sequence[int]}[self.kind]
        return Union[plain, Literal[self.word]] if self.word else plain


_FIELDS = {fields[0]: _Field(*fields) for fields in _core.recipe_fields()}


def _settings(given: dict[str, Any], where: str) -> str:
    """Keywords as KEY=VALUE,... in the order of the table: later fields may need the blocks that earlier ones make."""
    unknown = [name for name in given if name not in _FIELDS]
    if unknown:
        raise TypeError(f"{where}: no such setting: {', '.join(unknown)}")
    return ",".join(f"{f.key}={f.text(given[f.name])}" for f in _FIELDS.values() if given.get(f.name) is not None)


class Recipe:
    """A KV method with its settings. Immutable and hashable; equal recipes select alike.

    >>> quest = mneme.Recipe("quest", budget=512, unit="page:32")
    >>> quest.replace(budget=1024).budget
    1024
    >>> mneme.Recipe.parse(str(quest)) == quest
    True

    Settings are attributes too; one is None where the recipe has no such block.
    """

    __slots__ = ("_text", "_values")
    _text: str
    _values: dict[str, str]

    def __init__(self, method: str, **settings: Any) -> None:
        if not isinstance(method, str):
            raise TypeError(f"method: expected a name, found {method!r}")
        self._set(_core.recipe_text(method, _settings(settings, "Recipe")))

    def _set(self, text: str) -> None:
        object.__setattr__(self, "_text", text)
        object.__setattr__(self, "_values", dict(_core.recipe_values(text)))

    @classmethod
    def parse(cls, text: str) -> Recipe:
        """The recipe of a text, ``"quest"`` or ``"quest:unit=page:32,budget=512"``.

        Raises:
            mneme.Error: kind "option".
        """
        recipe = object.__new__(cls)
        recipe._set(_core.recipe_parse(text))
        return recipe

    def replace(self, **fields: Any) -> Recipe:
        """The same recipe with other settings; keywords are those of the constructor.

        Raises:
            mneme.Error: kind "option". TypeError: no such keyword.
        """
        settings = _settings(fields, "replace")
        return Recipe.parse(self._text + ("," if ":" in self._text else ":") + settings) if settings else self

    @property
    def method(self) -> str:
        """The method's name."""
        return self._text.split(":", 1)[0]

    def _value(self, name: str) -> Any:
        field = _FIELDS[name]
        return field.value(self._values[field.key]) if field.key in self._values else None

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Recipe is immutable: use replace({name}=...)")

    def __delattr__(self, name: str) -> None:
        raise AttributeError("a Recipe is immutable")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Recipe) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"Recipe.parse({self._text!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (Recipe.parse, (self._text,))


def _add(cls: type, fields: dict[str, _Field]) -> None:
    """Adds the fields: a property each, and the keywords of the constructor."""

    def reader(name: str) -> property:
        meaning = fields[name].meaning
        return property(lambda self: self._value(name), doc=f"{meaning[:1].upper()}{meaning[1:]}.")

    for name in fields:
        setattr(cls, name, reader(name))
    init: Any = cls.__init__  # type: ignore[misc]
    init.__doc__ = (
        "A method of :func:`mneme.methods` by name; keywords change its settings, None is the method's own.\n\n"
        'Args:\n    method: "full", "window", "quest", "freekv", "fier", ...\n'
        + "".join(f"    {f.name}: {f.meaning}.\n" for f in fields.values())
        + '\nRaises:\n    mneme.Error: kind "option": no such method, a value that does not fit, a block that the\n'
        "        method does not have, blocks that do not combine.\n"
    )
    kinds = inspect.Parameter
    init.__signature__ = inspect.Signature(
        [kinds("self", kinds.POSITIONAL_OR_KEYWORD), kinds("method", kinds.POSITIONAL_OR_KEYWORD, annotation=str)]
        + [kinds(f.name, kinds.KEYWORD_ONLY, default=None, annotation=Optional[f.hint()]) for f in fields.values()],
        return_annotation=None,
    )


_add(Recipe, _FIELDS)


def methods() -> dict[str, str]:
    """Every method by name, each with one line that says what it does."""
    return dict(_core.methods())

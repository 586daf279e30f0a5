"""Check values that were read from a file against the types that dataclasses declare. Start at `check_fields`."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints


def check_fields(value: Any) -> None:
    """Check that every field of a dataclass, and of dataclasses inside it, holds what its annotation says. Annotations
    may be strings, numbers, None, mappings, tuples of any length and other dataclasses. An integer is accepted for a
    float, too. Raises TypeError naming the first field that does not fit."""
    kind: Any = type(value)
    hints = _hints(kind)
    for field in fields(value):
        if not _fits(getattr(value, field.name), hints[field.name]):
            raise TypeError(f"{kind.__name__}.{field.name} is not what it should be")


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _fits(value: Any, hint: Any) -> bool:
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any or (hint is None and value is None):
        return True
    if origin in (Union, types.UnionType):
        return any(_fits(value, argument) for argument in arguments)
    if origin is tuple:
        return isinstance(value, tuple) and all(_fits(item, arguments[0]) for item in value)
    if origin is not None and issubclass(origin, Mapping):
        return isinstance(value, Mapping) and all(
            _fits(key, arguments[0]) and _fits(item, arguments[1]) for key, item in value.items()
        )
    if is_dataclass(hint):
        if not isinstance(value, hint):  # type: ignore[arg-type]
            return False
        check_fields(value)
        return True
    if hint is float:
        return type(value) in (int, float)
    return type(value) is hint  # a bool is no integer here

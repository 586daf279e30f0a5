"""Values of another type than a dataclass declares are found, however deep they lie."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from tuner.module.typed import check_fields


@dataclass(frozen=True)
class Inner:
    number: float
    name: str | None = None


@dataclass(frozen=True)
class Outer:
    sizes: tuple[int, ...]
    inner: Inner
    table: Mapping[str, str]
    anything: Any = None
    flag: bool = False


GOOD = {"sizes": (1, 2), "inner": Inner(1), "table": {"a": "b"}}


@pytest.mark.parametrize("more", [{}, {"sizes": ()}, {"inner": Inner(0.5, "x")}, {"anything": [1]}, {"table": {}}])
def test_what_fits(more: dict[str, Any]) -> None:
    check_fields(Outer(**{**GOOD, **more}))


@pytest.mark.parametrize(
    "more",
    [
        {"sizes": [1]},
        {"sizes": (1, "2")},
        {"sizes": (True,)},
        {"inner": None},
        {"inner": Inner("1")},  # type: ignore[arg-type]
        {"inner": Inner(1, 2)},  # type: ignore[arg-type]
        {"table": {"a": 1}},
        {"table": {1: "a"}},
        {"table": [("a", "b")]},
        {"flag": 1},
    ],
)
def test_what_does_not_fit(more: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="is not what it should be"):
        check_fields(Outer(**{**GOOD, **more}))

"""What packages export says what it is: ruff asks that of classes and functions, this of their methods, too."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tuner.errors import BadInput

ROOT = Path(__file__).parent.parent
PACKAGES = sorted(
    ".".join(path.parent.relative_to(ROOT).parts)
    for name in ("board_agent", "templates", "tuner", "tuning_db", "vision_ops")
    for path in (ROOT / name).rglob("__init__.py")
)


def _loaded(package: str) -> ModuleType:
    try:
        return import_module(package)
    except BadInput as error:
        pytest.skip(str(error))  # an extra that is not installed


def _methods(found: type) -> Iterator[tuple[str, Any]]:
    for name, member in vars(found).items():
        inner = getattr(member, "__func__", None) or getattr(member, "fget", None) or getattr(member, "func", member)
        if not name.startswith("_") and inspect.isfunction(inner):
            yield name, inner


def _told(found: type, method: str) -> bool:
    """By itself, or by the contract that it keeps."""
    return any(getattr(vars(base).get(method), "__doc__", None) for base in found.__mro__)


@pytest.mark.parametrize("package", PACKAGES)
def test_everything_exported_has_a_docstring(package: str) -> None:
    module = _loaded(package)
    exported = [getattr(module, name) for name in getattr(module, "__all__", ())]
    silent = [f for f in exported if (inspect.isclass(f) or inspect.isfunction(f)) and not inspect.getdoc(f)]
    assert silent == []
    classes = [f for f in exported if inspect.isclass(f)]
    assert [f"{c.__name__}.{name}" for c in classes for name, _ in _methods(c) if not _told(c, name)] == []

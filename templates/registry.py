"""The registry that templates, operators and other named objects are kept in."""

from __future__ import annotations

from importlib import import_module
from typing import Generic, TypeVar

T = TypeVar("T")


class Registry(Generic[T]):
    """A registry that holds one object per name. `kind` is what messages call such an object, e.g. "template".
    `builtin` is the module that registers what comes with edgetune; the registry imports it when it is first used."""

    def __init__(self, kind: str, builtin: str) -> None:
        self._kind, self._builtin = kind, builtin
        self._known: dict[str, T] = {}

    def add(self, name: str, thing: T) -> T:
        """Register an object under a name and return it. Raises ValueError if another object has the name."""
        import_module(self._builtin)
        if self._known.setdefault(name, thing) is not thing:
            raise ValueError(f"{self._kind} {name!r} is registered twice")
        return thing

    def named(self, name: str) -> T:
        """Return the object of this name. Raises KeyError with the known names if there is none."""
        import_module(self._builtin)
        if name not in self._known:
            raise KeyError(f"no {self._kind} is named {name!r} (known: {', '.join(sorted(self._known))})")
        return self._known[name]

    def all(self) -> list[T]:
        """Return all objects, sorted by name."""
        import_module(self._builtin)
        return [self._known[name] for name in sorted(self._known)]

"""The registry that templates, operators and other named objects are kept in."""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class Registry(Generic[T]):
    """A registry that holds one object per name. `kind` is what messages call such an object, e.g. "template"."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._known: dict[str, T] = {}

    def add(self, name: str, thing: T) -> T:
        """Register an object under a name and return it. Raises ValueError if another object has the name."""
        if self._known.setdefault(name, thing) is not thing:
            raise ValueError(f"{self._kind} {name!r} is registered twice")
        return thing

    def named(self, name: str) -> T:
        """Return the object of this name. Raises KeyError with the known names if there is none."""
        if name not in self._known:
            raise KeyError(f"no {self._kind} is named {name!r} (known: {', '.join(sorted(self._known))})")
        return self._known[name]

    def all(self) -> list[T]:
        """Return all objects, sorted by name."""
        return [self._known[name] for name in sorted(self._known)]

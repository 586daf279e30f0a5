"""Things known by name, each once."""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class Registry(Generic[T]):
    """`kind`: what messages call a thing."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._known: dict[str, T] = {}

    def add(self, name: str, thing: T) -> T:
        """Raises ValueError if another object has the name."""
        if self._known.setdefault(name, thing) is not thing:
            raise ValueError(f"{self._kind} {name!r} is registered twice")
        return thing

    def named(self, name: str) -> T:
        """Raises KeyError with the known names if there is none."""
        if name not in self._known:
            raise KeyError(f"no {self._kind} is named {name!r} (known: {', '.join(sorted(self._known))})")
        return self._known[name]

    def all(self) -> list[T]:
        """In the order of their names."""
        return [self._known[name] for name in sorted(self._known)]

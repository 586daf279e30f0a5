"""Write values as C. Start at `literal`."""

from __future__ import annotations

from collections.abc import Iterable


def literal(value: str) -> str:
    """Return a C string literal. Bytes that are not plain ASCII are written as octal numbers."""
    plain = (chr(b) if 32 <= b < 127 and chr(b) not in '\\"?' else f"\\{b:03o}" for b in value.encode())
    return f'"{"".join(plain)}"'


def array_of(ctype: str, name: str, numbers: Iterable[int]) -> str:
    """Return the definition of a constant array. An empty one gets a zero, as C has no empty arrays."""
    values = ", ".join(map(str, numbers))
    return f"static const {ctype} {name}[] = {{{values or '0'}}};"

"""Write values as C. Start at `literal`."""

from __future__ import annotations

from collections.abc import Iterable

_BYTES = [chr(b) if 32 <= b < 127 and chr(b) not in '\\"?' else f"\\{b:03o}" for b in range(256)]
_LINE = 64  # bytes of a literal that are written into one line


def literal(value: str) -> str:
    """Return a C string literal. Bytes that are not plain ASCII are written as octal numbers."""
    return f'"{"".join(_BYTES[b] for b in value.encode())}"'


def literal_lines(content: bytes) -> str:
    """Return bytes as C string literals that follow each other, one a line."""
    parts = (content[at : at + _LINE] for at in range(0, max(1, len(content)), _LINE))
    return "\n".join(f'"{"".join(_BYTES[b] for b in part)}"' for part in parts)


def array_of(ctype: str, name: str, numbers: Iterable[int]) -> str:
    """Return the definition of a constant array. An empty one gets a zero, as C has no empty arrays."""
    values = ", ".join(map(str, numbers))
    return f"static const {ctype} {name}[] = {{{values or '0'}}};"

"""No constant of a graph is narrowed by the way: relax.const without a type makes 32 bits of 64."""

from __future__ import annotations

import ast
from pathlib import Path

_PACKAGES = ("tuner", "templates", "vision_ops")


def _untyped(source: Path) -> list[int]:
    """The lines of a file that call relax.const without a type."""
    calls = [node for node in ast.walk(ast.parse(source.read_text())) if isinstance(node, ast.Call)]
    return [
        call.lineno
        for call in calls
        if ast.unparse(call.func) == "relax.const" and len(call.args) + len(call.keywords) < 2
    ]


def test_every_constant_names_its_type() -> None:
    root = Path(__file__).parents[1]
    found = {str(p): lines for package in _PACKAGES for p in (root / package).rglob("*.py") if (lines := _untyped(p))}
    assert found == {}

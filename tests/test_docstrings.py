"""Docstrings say what a thing is or does, in a sentence with a verb.

ruff asks for a docstring of classes and functions, this module of the methods of what packages export, too. Whether the
first sentence has a verb is looked up in tests/verbs.txt: a list, so a new verb is a new line there.
"""

from __future__ import annotations

import ast
import inspect
import re
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


VERBS = frozenset((ROOT / "tests" / "verbs.txt").read_text().split())
FILES = sorted(
    path
    for name in ("benchmarks", "board_agent", "edgetune", "templates", "tools", "tuner", "tuning_db", "vision_ops")
    for path in (ROOT / name).rglob("*.py")
)


def _docstrings(path: Path) -> Iterator[tuple[str, str]]:
    """Yield (name, docstring) of a file's module, classes and functions."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield getattr(node, "name", path.stem), text


def has_verb(text: str) -> bool:
    """Tell whether the first sentence of a docstring has a word of tests/verbs.txt, with or without an s or es."""
    first = re.split(r"(?<=[.:])\s", text)[0]
    words = [word.lower() for word in re.findall(r"[A-Za-z']+", re.sub(r"`[^`]*`", "", first))]
    return any({word, word.removesuffix("s"), word.removesuffix("es")} & VERBS for word in words)


def test_the_first_sentence_of_every_docstring_has_a_verb() -> None:
    silent = [
        f"{path.relative_to(ROOT)}: {name}: {text.splitlines()[0]}"
        for path in FILES
        for name, text in _docstrings(path)
        if not has_verb(text)
    ]
    assert silent == [], "write a sentence, or add its verb to tests/verbs.txt"


@pytest.mark.parametrize(
    ("text", "told"), [("Of the budget.", False), ("As of the last one.", False), ("Returns the budget.", True)]
)
def test_a_sentence_without_a_verb_is_noticed(text: str, told: bool) -> None:
    assert has_verb(text) is told


def test_papers_are_named_by_their_authors() -> None:
    pages = [*FILES, *sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md", ROOT / "benchmarks" / "RESULTS.md"]
    by_number = re.compile(r"\bpaper[ _]?00\d", re.IGNORECASE)
    assert [str(page.relative_to(ROOT)) for page in pages if by_number.search(page.read_text(encoding="utf-8"))] == []

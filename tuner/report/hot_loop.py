"""The loop of a kernel where its time goes, found in the text that a compiler made: `in_assembly` of x86-64 and
aarch64, `in_source` of OpenCL C and CUDA. It is judged by the text alone: the innermost loop with the most
multiply-adds, and few instructions beside them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

_LABEL = re.compile(r"^([.\w$]+):")
_JUMP = re.compile(r"^\s+(?:j\w+|b(?:\.\w+)?|cbn?z\s+\w+,|tbn?z\s+\w+,\s*#?\d+,)\s+([.\w$]+)\s*(?:#.*|//.*)?$")
_INSTRUCTION = re.compile(r"^\s+[a-z]")
_MULTIPLY_ADD = re.compile(r"^\s+(?:v?fn?m(?:add|sub)\w*p[sdh]|fml[as]|bfmlal\w|v?pdp\w+)\s")
_X86 = re.compile(r"%([xyz]mm\d+)")
_ARM = re.compile(r"\b[vq](\d+)(?:\.\d*[bhsd])?\b")
_STACK = re.compile(r"\(%r[sb]p|\[(?:sp|x29)\b")
_VECTOR_STORE = re.compile(r"^\s+(?:v?mov[au]p[sd]\s+%[xyz]mm\d+,\s*\S*\(%r[sb]p|st[rpu]\w*\s+[vqd]\d+.*\[(?:sp|x29))")


@dataclass(frozen=True)
class Loop:
    """Lines `first` to `last` of the text, from 0. `multiply_adds`: instructions, or statements of a source;
    `registers`: different vector registers; `stack_stores` and `stack_loads`: of vectors, which did not fit into
    registers or are a small array. None where a source does not tell."""

    first: int
    last: int
    instructions: int
    multiply_adds: int
    registers: int | None = None
    stack_stores: int | None = None
    stack_loads: int | None = None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def in_assembly(text: str) -> Loop | None:
    """None where the text has no loop with a multiply-add."""
    lines = text.splitlines()
    labels: dict[str, int] = {}
    spans = []
    for i, line in enumerate(lines):
        if (label := _LABEL.match(line)) is not None:
            labels[label[1]] = i
        elif (jump := _JUMP.match(line)) is not None and jump[1] in labels:
            spans.append((labels[jump[1]], i))
    return _hottest(spans, lambda first, last: _counted(lines, first, last))


def _counted(lines: Sequence[str], first: int, last: int) -> Loop:
    body = [line for line in lines[first : last + 1] if _INSTRUCTION.match(line)]
    vector = [line for line in body if _X86.search(line) or _ARM.search(line)]
    registers = {re.sub(r"^[xyz]mm", "", name) for line in body for name in _X86.findall(line)}
    registers = registers or {name for line in body for name in _ARM.findall(line)}
    stores = sum(_VECTOR_STORE.match(line) is not None for line in body)
    stack = sum(_STACK.search(line) is not None for line in vector)
    adds = sum(_MULTIPLY_ADD.match(line) is not None for line in body)
    return Loop(first, last, len(body), adds, len(registers), stores, stack - stores)


def in_source(text: str) -> Loop | None:
    """None where the text has no loop with a multiply-add."""
    lines = text.splitlines()
    spans: list[tuple[int, int]] = []
    open_at: list[int | None] = []  # of each open brace: the line of its loop
    for i, line in enumerate(lines):
        for brace in re.findall(r"[{}]", line):
            if brace == "{":
                open_at.append(i if re.match(r"\s*for\s*\(", line) else None)
            elif open_at and (first := open_at.pop()) is not None:
                spans.append((first, i))

    def counted(first: int, last: int) -> Loop:
        body = [line for line in lines[first : last + 1] if ";" in line]
        return Loop(first, last, len(body), sum(_is_multiply_add(line) for line in body))

    return _hottest(spans, counted)


def _is_multiply_add(statement: str) -> bool:
    """A sum with a product of values that are read, not of indices alone."""
    value = statement.partition("=")[2]
    outside = re.sub(r"\[[^\[\]]*\]", "[]", re.sub(r"\[[^\[\]]*\]", "[]", value))
    return bool(re.search(r"\b(?:fma|mad|__fmaf?_\w+)\s*\(", value)) or ("+" in outside and "*" in outside)


def _hottest(spans: Sequence[tuple[int, int]], counted: Callable[[int, int], Loop]) -> Loop | None:
    """Of the loops without a loop inside."""
    inner = [s for s in spans if not any(t != s and s[0] <= t[0] and t[1] <= s[1] for t in spans)]
    loops = [counted(first, last) for first, last in inner]
    hot = max(loops, key=lambda loop: loop.multiply_adds**2 / max(1, loop.instructions), default=None)
    return hot if hot is not None and hot.multiply_adds else None


def marked(text: str, loop: Loop | None) -> str:
    """The text with the loop's lines marked at their left."""
    lines = text.splitlines()
    inside = range(loop.first, loop.last + 1) if loop is not None else range(0)
    return "".join(f"{'>' if i in inside else ' '} {line}\n" for i, line in enumerate(lines))

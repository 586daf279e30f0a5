"""Finds the loop of a kernel where its time goes, in the text that a compiler made.

Start at `in_assembly` for x86-64 and aarch64, and at `in_source` for OpenCL C and CUDA. The text alone decides: of the
innermost loops with multiply-adds, the hot one has the most of them and few other instructions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

_LABEL = re.compile(r"^([.\w$]+):")
_JUMP = re.compile(r"^\s+(?:j\w+|b(?:\.\w+)?|cbn?z\s+\w+,|tbn?z\s+\w+,\s*#?\d+,)\s+([.\w$]+)\s*(?:#.*|//.*)?$")
_INSTRUCTION = re.compile(r"^\s+(?:\{vex\}\s+)?[a-z]")
_MULTIPLY_ADD = re.compile(
    r"^\s+(?:\{vex\}\s+)?"
    r"(?:v?fn?m(?:add|sub)\w*p[sdh]|fml[as]|bfmlal\w|bfdot|bfmmla|v?dpbf16ps|v?pdp\w+|v?pmaddwd|[su]{1,2}dot|smull)\s"
)
_X86 = re.compile(r"%([xyz]mm\d+)")
_ARM = re.compile(r"\b[vq](\d+)(?:\.\d*[bhsd])?\b")
# Where no frame begins at %rbp or x29, it holds an address in the data.
_FRAME = re.compile(r"\bmovq\s+%rsp, %rbp|\b(?:mov|add)\s+x29, sp\b")
_STACK = re.compile(r"\(%rsp|\[sp\b")
_STACK_AND_FRAME = re.compile(r"\(%r[sb]p|\[(?:sp|x29)\b")
_VECTOR_STORE = re.compile(r"^\s+(?:v?mov(?:[au]p[sd]|dq[au]\d*)\s+%[xyz]mm\d+,|st[rpu]\w*\s+[vqd]\d+)")

# These match parts of a source: comments, reads from an address (its arithmetic is in the brackets that follow), fused
# multiply-adds, and products of vectors' components.
_COMMENT = re.compile(r"/\*.*?\*/")
_READ = re.compile(r"(?:\bvload\d+|\b\w*block_read\w*|\bconvert_int|\*\(\w+\s?\*\))\(")
_FUSED = re.compile(r"\b(?:fma|mad|__fmaf?_\w+)\s*\(")
_COMPONENTS = re.compile(r"\.\w\s?\*\s?\w+\.\w")


@dataclass(frozen=True)
class Loop:
    """A loop that takes up the lines `first` to `last` of a text, counted from 0.

    - `instructions` counts its instructions, or the statements of a source, and `multiply_adds` those that multiply
      and add.
    - `registers` counts different vector registers.
    - `stack_stores` and `stack_loads` count vectors that are stored to the stack and loaded from it. They did not fit
      into registers, or they are a small array.

    The last three are None for a source, which does not tell.
    """

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
    """Return the hot loop of assembly, or None if the text has no loop with a multiply-add."""
    lines = text.splitlines()
    labels: dict[str, int] = {}
    spans = []
    for i, line in enumerate(lines):
        if (label := _LABEL.match(line)) is not None:
            labels[label[1]] = i
        elif (jump := _JUMP.match(line)) is not None and jump[1] in labels:
            spans.append((labels[jump[1]], i))
    stack = _STACK_AND_FRAME if _FRAME.search(text) else _STACK
    return _hottest(spans, lambda first, last: _counted(lines, first, last, stack))


def _counted(lines: Sequence[str], first: int, last: int, stack: re.Pattern[str]) -> Loop:
    body = [line for line in lines[first : last + 1] if _INSTRUCTION.match(line)]
    vector = [line for line in body if _X86.search(line) or _ARM.search(line)]
    registers = {re.sub(r"^[xyz]mm", "", name) for line in body for name in _X86.findall(line)}
    registers = registers or {name for line in body for name in _ARM.findall(line)}
    moved = [line for line in vector if stack.search(line) is not None]
    stores = sum(_VECTOR_STORE.match(line) is not None for line in moved)
    adds = sum(_MULTIPLY_ADD.match(line) is not None for line in body)
    return Loop(first, last, len(body), adds, len(registers), stores, len(moved) - stores)


def in_source(text: str) -> Loop | None:
    """Return the hot loop of a source, or None if the text has no loop with a multiply-add."""
    lines = text.splitlines()
    spans: list[tuple[int, int]] = []
    open_at: list[int | None] = []  # of each open brace: the line of its loop, None if it opens no loop
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
    """Return whether a statement is a multiply-add: a sum with a product of values, not a product in an address.

    The product of two vectors' components alone counts, too: in CUDA's sources it stands one statement before the sum.
    """
    text = _COMMENT.sub("", statement).strip()
    if text.startswith("int"):
        return False
    stored = re.match(r"vstore\d+\(", text)
    value = _first_argument(text[stored.end() :]) if stored else text.partition(" = ")[2]
    if _FUSED.search(value) or text.startswith("nvcuda::wmma::mma_sync("):
        return True
    value = re.sub(r"\[[^\[\]]*\]", "[]", re.sub(r"\[[^\[\]]*\]", "[]", value))
    while (read := _READ.search(value)) is not None:
        inside = _up_to_its_end(value[read.end() :])
        value = f"{value[: read.start()]}read{value[read.end() + len(inside) + 1 :]}"
    return bool(_COMPONENTS.search(value)) or ("+" in value and "*" in value)


def _up_to_its_end(text: str) -> str:
    """Return `text`, which begins inside a bracket, up to where that bracket ends."""
    depth = 0
    for i, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth < 0:
            return text[:i]
    return text


def _first_argument(text: str) -> str:
    depth = 0
    for i, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth < 0 or (letter == "," and depth == 0):
            return text[:i]
    return text


def _hottest(spans: Sequence[tuple[int, int]], counted: Callable[[int, int], Loop]) -> Loop | None:
    """Return the hottest of the loops that have multiply-adds and no other such loop inside, or None."""
    loops = [loop for first, last in spans if (loop := counted(first, last)).multiply_adds]
    inner = [a for a in loops if not any(b is not a and a.first <= b.first and b.last <= a.last for b in loops)]
    return max(inner, key=lambda loop: loop.multiply_adds**2 / max(1, loop.instructions), default=None)


def marked(text: str, loop: Loop | None) -> str:
    """Return the text with ">" at the left of the loop's lines."""
    lines = text.splitlines()
    inside = range(loop.first, loop.last + 1) if loop is not None else range(0)
    return "".join(f"{'>' if i in inside else ' '} {line}\n" for i, line in enumerate(lines))

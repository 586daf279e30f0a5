"""Looks for the loop of a kernel's assembly that does the work."""

from __future__ import annotations

import re

_LABEL = re.compile(r"(\.L\w+):")
_BRANCH = re.compile(r"\s+(?:j\w+|b(?:\.\w+)?|cbn?z|tbn?z)\s+(?:.*\s)?(\.L\w+)")
_STACK = re.compile(r"\(%rsp|\[sp")
_VECTOR = re.compile(r"%[xyz]mm\d|\b[qdv]\d")


def hot_loop(assembly: str, instruction: str) -> list[str]:
    """The lines of the innermost loop with most of an instruction."""
    lines, labels, loops = assembly.split("\n"), {}, []
    for i, line in enumerate(lines):
        if label := _LABEL.match(line):
            labels[label[1]] = i
        if (branch := _BRANCH.match(line)) and branch[1] in labels:
            loops.append((labels[branch[1]], i))
    inner = [(a, b) for a, b in loops if not any((c, d) != (a, b) and a <= c and d <= b for c, d in loops)]
    found = [lines[a : b + 1] for a, b in inner]
    best = max(found, key=lambda loop: sum(instruction in line for line in loop))
    assert any(instruction in line for line in best), f"no loop has {instruction}"
    return best


def stack_accesses(loop: list[str]) -> list[str]:
    """The lines that move vectors to or from the stack."""
    return [line for line in loop if _STACK.search(line) and _VECTOR.search(line)]

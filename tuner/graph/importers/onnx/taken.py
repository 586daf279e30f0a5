"""List the ONNX operators that are accepted, and what handles them, as Markdown.

`python -m tuner.graph.importers.onnx.taken` writes the table of docs/models.md.
"""

from __future__ import annotations

import onnx

from tuner.graph.importers.onnx.check import known_operators
from tuner.graph.importers.onnx.relax import CONVERTED
from tuner.graph.importers.onnx.rewrites.registry import REWRITES
from tuner.graph.importers.onnx.rewrites.sequences import RESOLVED

CONTRIBUTED = "com.microsoft"
_FOLDED = ("If", "Loop")  # if what they depend on is constant


def taken_operators() -> dict[tuple[str, str], str]:
    """Return what handles each operator, by its domain and name: "written out" in simpler operators, "resolved" when
    the model is loaded, "converted" by a converter of ours, or "TVM" for TVM's converter."""
    found = {("", name): "TVM" for name in known_operators() if onnx.defs.has(name)}
    found |= {("", name): "converted" for name in CONVERTED}
    found |= dict.fromkeys(REWRITES, "written out")
    found |= {("", name): "resolved" for name in (*RESOLVED, *_FOLDED)}
    found |= {(CONTRIBUTED, name): "TVM" for name in known_operators() if not onnx.defs.has(name)}
    return found


def refused_operators() -> list[str]:
    """Return ONNX's own operators that are refused unless their operands are constants."""
    taken = {name for domain, name in taken_operators() if not domain}
    known = {schema.name for schema in onnx.defs.get_all_schemas() if not schema.domain and not schema.deprecated}
    return sorted(known - taken)


def table() -> str:
    """Return the table, followed by the operators that are refused."""
    lines = ["| taken by | operators of ONNX |", "|---|---|"]
    taken = taken_operators()
    for how in ("TVM", "converted", "written out", "resolved"):
        names = sorted(name for (domain, name), by in taken.items() if by == how and not domain)
        lines.append(f"| {_HOW[how]} | {', '.join(names)} |")
    lines += ["", "| taken by | operators of com.microsoft |", "|---|---|"]
    for how in ("TVM", "written out"):
        names = sorted(name for (domain, name), by in taken.items() if by == how and domain == CONTRIBUTED)
        lines.append(f"| {_HOW[how]} | {', '.join(names)} |")
    lines += ["", "Not taken, unless all operands are constants: " + ", ".join(refused_operators()) + "."]
    return "\n".join(lines)


_HOW = {
    "TVM": "TVM's converter",
    "converted": "a converter of ours",
    "written out": "simpler operators, written in its place",
    "resolved": "being resolved when the model is loaded",
}

if __name__ == "__main__":
    print(table())

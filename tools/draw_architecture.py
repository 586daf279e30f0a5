"""Draw the packages of edgetune and their imports, from the code: docs/architecture.svg.

    python -m tools.draw_architecture          # writes it; tests/test_architecture.py compares

A row holds packages of one layer of the import-linter contracts in pyproject.toml. An arrow leads from a package to one
that it imports; where another package in between is imported by the one and imports the other, the arrow is left out
(the transitive reduction).
"""

from __future__ import annotations

import ast
import subprocess
import tomllib
from collections import defaultdict
from pathlib import Path
from statistics import fmean

ROOT = Path(__file__).parent.parent
PICTURE = ROOT / "docs" / "architecture.svg"
HIDDEN = {"tuner.errors", "tuner.versions", "tuner.arrays", "tuner.tensors"}  # nearly everything imports them
WIDTH, ROW, BOX, HEIGHT = 1000, 74, 140, 34


def layers() -> list[list[str]]:
    """Return the rows of packages, the top first, as pyproject.toml has them."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    outer = next(c["layers"] for c in contracts if c["name"] == "Packages import downwards only")
    inner = next(c["layers"] for c in contracts if c["name"] == "Inside the tuner imports go downwards only")
    rows: list[list[str]] = []
    for name in outer:
        if name == "tuner":
            rows += [[f"tuner.{part.strip()}" for part in row.split("|")] for row in inner]
        else:
            rows.append([name])
    return [kept for row in rows if (kept := [name for name in row if name not in HIDDEN])]


def sources() -> list[str]:
    """Return the repository's Python files, relative to its root."""
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True)
    return listed.stdout.split()


def owner(module: str, names: set[str]) -> str | None:
    """Return the package of the drawing that a module belongs to; None if it is not drawn."""
    parts = module.split(".")
    for length in (2, 1):
        if (name := ".".join(parts[:length])) in names:
            return name
    return None


def imports(path: Path) -> set[str]:
    """Return the modules that a file imports, those that only type checkers see included."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def graph(names: set[str]) -> dict[str, set[str]]:
    """Return which of these packages each of them imports."""
    reads: dict[str, set[str]] = defaultdict(set)
    for source in sources():
        package = owner(source.removesuffix(".py").replace("/", ".").removesuffix(".__init__"), names)
        if package is not None:
            reads[package] |= {o for name in imports(ROOT / source) if (o := owner(name, names)) not in (None, package)}
    return reads


def reduced(reads: dict[str, set[str]]) -> list[tuple[str, str]]:
    """Return the imports without those that follow from others."""

    def reached(name: str) -> set[str]:
        found = set(reads[name])
        for other in reads[name]:
            found |= reached(other)
        return found

    return [(a, b) for a in sorted(reads) for b in sorted(reads[a]) if not any(b in reached(c) for c in reads[a] - {b})]


def positions(rows: list[list[str]], arrows: list[tuple[str, str]]) -> dict[str, tuple[float, float]]:
    """Return the centre of each box; a row is ordered by where its importers are."""
    centres: dict[str, tuple[float, float]] = {}
    for depth, row in enumerate(rows):
        above = {name: [centres[a][0] for a, b in arrows if b == name and a in centres] for name in row}
        means = {name: fmean(above[name] or [WIDTH / 2]) for name in row}
        ordered = sorted(row, key=means.__getitem__)
        shift = (-1) ** depth * WIDTH / 5 if len(row) == 1 and 0 < depth < len(rows) - 1 else 0
        for i, name in enumerate(ordered):
            x = WIDTH * (i + 1) / (len(row) + 1) + shift
            centres[name] = (round(x, 1), 20 + HEIGHT / 2 + depth * ROW)
    return centres


def drawing() -> str:
    """Return the picture as SVG."""
    rows = layers()
    arrows = reduced(graph({name for row in rows for name in row}))
    at = positions(rows, arrows)
    height = 40 + ROW * len(rows) - (ROW - HEIGHT)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif">',
        "<title>Packages of edgetune and what they import</title>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 8 4 0 8z" fill="#7a869a"/></marker></defs>',
    ]
    for a, b in arrows:
        (x0, y0), (x1, y1) = at[a], at[b]
        y0, y1 = y0 + HEIGHT / 2, y1 - HEIGHT / 2 - 2
        bend = max(24.0, (y1 - y0) * 0.45)
        parts.append(
            f'<path d="M{x0} {y0}C{x0} {y0 + bend:.1f} {x1} {y1 - bend:.1f} {x1} {y1}" fill="none" stroke="#7a869a"'
            f' stroke-width="1.3" marker-end="url(#tip)"><title>{a} imports {b}</title></path>'
        )
    for name, (x, y) in at.items():
        parts.append(
            f'<rect x="{x - BOX / 2}" y="{y - HEIGHT / 2}" width="{BOX}" height="{HEIGHT}" rx="7" fill="#eef3fb"'
            f' stroke="#3f6fb5"/><text x="{x}" y="{y + 5}" text-anchor="middle" font-size="14" fill="#16294a">'
            f"{name}</text>"
        )
    return "\n".join([*parts, "</svg>", ""])


def main() -> None:
    """Write the drawing."""
    PICTURE.write_text(drawing(), encoding="utf-8")


if __name__ == "__main__":
    main()

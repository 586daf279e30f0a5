"""Draw the main comparisons of benchmarks/RESULTS.md, from its tables: docs/plots/*.svg.

    python -m tools.plot_results          # writes them; needs matplotlib, which the extra `docs` has

tests/benchmarks/test_plots.py compares the pictures with the tables.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "RESULTS.md"
FOLDER = ROOT / "docs" / "plots"
COLOURS = ("#0b6e99", "#c26a1b", "#7a8793")  # they differ in lightness too


@dataclass(frozen=True)
class Plot:
    """Shows a table as horizontal bars: a group for each row, and in it a bar for each column. `table` is the heading
    above the table. `parity` is where both sides are equal, if the columns are ratios."""

    name: str
    table: str
    title: str
    columns: dict[str, str]  # the table's column, and what the legend calls it
    parity: float | None = None

    @property
    def file(self) -> Path:
        return FOLDER / f"{self.name}.svg"

    def rows(self) -> list[tuple[str, tuple[float | None, ...]]]:
        """Return each row's name, and its value in each column; None where the table has none. Rows without a value
        are left out."""
        named = [(name, tuple(cells.get(column) for column in self.columns)) for name, cells in table(self.table)]
        return [(name, values) for name, values in named if any(value is not None for value in values)]


PLOTS = (
    Plot(
        "networks",
        "### Beside onnxruntime and OpenVINO",
        "Milliseconds of an inference, two threads (less is better)",
        {"ours, ms": "edgetune", "onnxruntime, ms": "onnxruntime", "OpenVINO, ms": "OpenVINO"},
    ),
    Plot(
        "files",
        "## Files as they are shipped, on CPUs",
        "Latency over onnxruntime's (below 1 edgetune is faster)",
        {"tuned": "tuned for 1.5 minutes", "untuned": "untuned"},
        parity=1.0,
    ),
    Plot(
        "convolutions",
        "## Convolutions on CPUs",
        "Their time over edgetune's, one thread (above 1 edgetune is faster)",
        {"Zen 3: vs oneDNN": "oneDNN, Zen 3", "Zen 3: vs MetaSchedule": "MetaSchedule, Zen 3"},
        parity=1.0,
    ),
    Plot(
        "searchers",
        "## Searchers",
        "Trials of auto to 95 % of the best over another searcher's (below 1 it needs fewer)",
        {"to 95 % of the best": "with the templates' seeds", "without seeds": "without"},
        parity=1.0,
    ),
)


def table(heading: str) -> list[tuple[str, dict[str, float]]]:
    """Return the first table below a heading of RESULTS.md: each row's first cell, and the first number in each of its
    other cells by the column's title. A machine that begins a title ("Zen 3: us") counts for the columns after it too;
    of several columns with one title the first counts."""
    lines = RESULTS.read_text(encoding="utf-8").split(f"{heading}\n", 1)[1].splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("|"))
    end = next((i for i in range(start, len(lines)) if not lines[i].startswith("|")), len(lines))
    titles, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[start:end]]
    machine = ""
    for i, title in enumerate(titles):
        machine = title[: title.index(": ") + 2] if ": " in title else machine
        titles[i] = title if ": " in title else machine + title
    found = []
    for row in rows:
        cells: dict[str, float] = {}
        for title, cell in list(zip(titles, row, strict=True))[1:]:
            if title not in cells and (number := re.search(r"\d+(\.\d+)?", cell)):
                cells[title] = float(number[0])
        found.append((re.sub("[*`]", "", row[0]), cells))
    return found


def label(value: float) -> str:
    """Return a bar's label: a number of three digits."""
    return f"{value:.3g}"


def draw(plot: Plot) -> None:
    """Write the picture of a plot."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    pyplot.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": plot.name, "font.family": "sans-serif"})
    rows, thick = plot.rows(), 0.8 / len(plot.columns)
    figure, axes = pyplot.subplots(
        figsize=(8, 0.9 + len(rows) * (0.12 + 0.21 * len(plot.columns))), layout="constrained"
    )
    for place, name in enumerate(plot.columns.values()):
        bars = [(i + place * thick, values[place]) for i, (_, values) in enumerate(rows) if values[place] is not None]
        drawn = axes.barh([at for at, _ in bars], [v for _, v in bars], thick * 0.92, label=name, color=COLOURS[place])
        axes.bar_label(drawn, [label(v) for _, v in bars if v is not None], padding=3, fontsize=8)
    axes.set_yticks([i + 0.4 - thick / 2 for i in range(len(rows))], [name for name, _ in rows], fontsize=9)
    axes.invert_yaxis()
    if plot.parity is not None:
        axes.axvline(plot.parity, color="black", linewidth=0.8)
    axes.set_title(plot.title, loc="left", fontsize=10)
    axes.spines[["top", "right", "bottom"]].set_visible(False)
    axes.xaxis.set_visible(False)
    axes.margins(y=0.02)
    figure.legend(frameon=False, fontsize=9, loc="outside lower left", ncols=len(plot.columns))
    FOLDER.mkdir(exist_ok=True)
    figure.savefig(plot.file, metadata={"Date": None, "Creator": "tools/plot_results.py"})
    pyplot.close(figure)


def main(plots: Sequence[Plot] = PLOTS) -> None:
    """Draw all plots."""
    for plot in plots:
        draw(plot)


if __name__ == "__main__":
    main()

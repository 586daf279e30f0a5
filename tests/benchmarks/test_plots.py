"""The pictures of docs/plots show the figures of benchmarks/RESULTS.md, and a page shows each of them."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from tests.manual import ROOT
from tools.plot_results import FOLDER, PLOTS, Plot, label


@pytest.mark.parametrize("plot", PLOTS, ids=lambda plot: plot.name)
def test_the_picture_shows_the_tables_figures(plot: Plot) -> None:
    texts = [node.text for node in ElementTree.parse(plot.file).iter("{http://www.w3.org/2000/svg}text")]
    rows = plot.rows()
    assert len(rows) > 2
    wanted = [plot.title, *plot.columns.values(), *(name for name, _ in rows)]
    wanted += [label(value) for _, values in rows for value in values if value is not None]
    assert sorted(texts) == sorted(wanted)


def test_every_picture_is_shown_and_drawn() -> None:
    assert sorted(FOLDER.iterdir()) == sorted(plot.file for plot in PLOTS)
    pages = (ROOT / "README.md").read_text() + (ROOT / "benchmarks" / "RESULTS.md").read_text()
    for plot in PLOTS:
        assert f"docs/plots/{plot.name}.svg)" in pages, plot.name

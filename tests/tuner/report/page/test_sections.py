"""A section of the page is what its registry names: a script, and where it has data of its own, what collects them."""

from __future__ import annotations

from pathlib import Path

from tests.tuning_db import made
from tuner.report.page import collect, render, sections
from tuning_db.store import open_db

FOLDER = Path(sections.__file__).parent


def test_the_registry_names_every_file_and_no_other():
    assert {path.stem for path in FOLDER.glob("*.js")} == set(sections.SECTIONS)
    assert {path.stem for path in FOLDER.glob("*.py")} <= {*sections.SECTIONS, "__init__"}


def test_the_script_has_the_sections_in_the_order_of_the_registry(tmp_path: Path):
    with open_db(tmp_path / "t.db") as store:
        store.add(made.trial())
        page = render(collect(store))
    places = [page.index((FOLDER / f"{name}.js").read_text(encoding="utf-8")) for name in sections.SECTIONS]
    assert places == sorted(places)

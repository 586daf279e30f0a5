"""A real headless Chromium for tests of pages: `opened` loads one and watches everything that it does."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SIZES = {"phone": (390, 844), "tablet": (820, 1180), "desktop": (1440, 900)}
SCREENSHOTS = Path(__file__).parent.parent / "build" / "screenshots"

needs_chromium = pytest.mark.skipif(
    CHROMIUM is None or find_spec("playwright") is None,
    reason="no Chromium that can be driven: apt-get install chromium, pip install -e '.[dev]'",
)


@dataclass
class Opened:
    """A page, and what it did: messages of its console, errors of its script, requests but for itself."""

    page: Any
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def numbers(self, table: str, column: str) -> list[float | None]:
        """What a table shows in a column of numbers, in full precision."""
        cells = self._cells(table, column)
        return [float(value) if (value := c.get_attribute("data-value")) else None for c in cells]

    def texts(self, table: str, column: str) -> list[str]:
        """Return what a table shows in a column of text."""
        return [cell.inner_text().removeprefix(f"{column} ") for cell in self._cells(table, column)]

    def _cells(self, table: str, column: str) -> list[Any]:
        """The cells of a column. One that is the same in all rows stands above the table, once."""
        place = f'[data-table="{table}"]'
        heads = [head.rstrip(" ▲▼") for head in self.page.locator(f"{place} th").all_inner_texts()]
        if column in heads:
            return self.page.locator(f"{place} tbody tr td:nth-child({heads.index(column) + 1})").all()
        (same,) = self.page.locator(f'{place} [data-same="{column}"]').all()
        return [same] * self.page.locator(f"{place} tbody tr").count()

    def marks(self, chart: str) -> list[tuple[float, float]]:
        """The points that a chart draws, in its units."""
        return [
            (float(x), float(y))
            for x, y in self.page.eval_on_selector_all(
                f'[data-chart="{chart}"] .mark[data-x]', "marks => marks.map(m => [m.dataset.x, m.dataset.y])"
            )
        ]

    def serious_faults(self) -> list[str]:
        """What axe-core finds that keeps people out."""
        from axe_playwright_python import sync_playwright

        script = Path(sync_playwright.__file__).with_name("axe.min.js").read_text(encoding="utf-8")
        self.page.evaluate(script)
        found = self.page.evaluate("axe.run()")["violations"]
        assert self.page.evaluate("axe.version")
        return [f"{v['id']}: {v['nodes'][0]['html']}" for v in found if v["impact"] in ("serious", "critical")]

    def keep_screenshot(self, name: str) -> None:
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=True)


@contextmanager
def opened(address: str, size: str = "desktop", **options: Any) -> Iterator[Opened]:
    """`address`: of a file or a local server; `options`: of the browser's context."""
    from playwright.sync_api import sync_playwright

    sandbox = [] if os.getuid() else ["--no-sandbox"]  # Chromium's own refuses to work for root
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=sandbox)
        width, height = SIZES[size]
        context = browser.new_context(viewport={"width": width, "height": height}, accept_downloads=True, **options)
        page = context.new_page()
        seen = Opened(page)
        page.on("console", lambda message: seen.complaints.append(message.text))
        page.on("pageerror", lambda error: seen.complaints.append(str(error)))
        page.on("request", lambda request: seen.requests.append(request.url))
        page.goto(address)
        yield seen
        browser.close()

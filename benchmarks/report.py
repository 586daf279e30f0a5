"""This benchmark measures the report's page for a database of a million trials.

    python benchmarks/report.py [--quick] [--json]

It measures the size of the page, the seconds to make it, and the seconds until a browser has opened it. Opening needs
chromium (Debian's) and playwright (the extra `dev`), and is skipped without them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from templates.workloads import Conv2d
from tuner.report.page import collect, render
from tuning_db.record import Config, DeviceKey, Failure, FailureKind, Trial, Workload
from tuning_db.store import open_db

TASKS = 60  # on each of two devices
AGAIN = 0.02  # share of the trials that measure a config again
PIECE = 0.01  # share of the trials that measure pieces of plans
OPENINGS = 5
# Seconds since the navigation began. The page is drawn when its own script has ended.
_OPENED = "performance.getEntriesByType('navigation')[0].loadEventEnd / 1000"


def trials(count: int, tasks: int = TASKS, again: float = AGAIN) -> Iterator[Trial]:
    """Yield made-up trials such as a few searchers would leave.

    Every task has faster and slower configs, and one trial in twenty fails. Some trials measure a config again, and
    some measure pieces of plans.
    """
    rng = random.Random(0)
    devices = [DeviceKey("cpu", "x86_64-avx512", "made-up", {"threads": n}) for n in (1, 2)]
    convs = [Conv2d(1, 8 + i, 14, 14, 16 + i, (3, 3), (1, 1), (1, 1, 1, 1)).workload(("bias",)) for i in range(tasks)]
    start = datetime(2026, 1, 1, tzinfo=UTC)
    for i in range(count):
        workload, device = convs[i // 50 % tasks], devices[i // 50 // tasks % 2]
        knobs = {name: rng.choice((1, 2, 4, 8, 16)) for name in ("tile", "wide", "unroll", "chunk", "vector")}
        knobs["number"] = i % 997
        template = f"made.up_{i % 3}"
        if rng.random() < again:
            knobs = dict.fromkeys(knobs, 1)
        elif rng.random() < PIECE:
            workload, template = Workload("copy", {"bytes": 4096 * (1 + i % tasks)}), "piece"
        failed = rng.random() < 0.05
        seconds = 1e-4 * (1 + abs(knobs["tile"] - 4)) * rng.lognormvariate(0, 0.3)
        yield Trial(
            workload,
            device,
            Config(template, knobs),
            1,
            times=() if failed else (seconds,),
            failure=Failure(FailureKind.COMPILE, f"no such thing as {i}") if failed else None,
            error=None if failed else 1e-6,
            seed=i % 2,
            searcher=rng.choice(("random", "genetic", "auto")),
            created=start + timedelta(seconds=i * 0.05),
        )


def opening_seconds(page: Path) -> list[float] | None:
    """Return the seconds until the page is drawn, each time in a new browser context.

    Return None where this machine has no browser.
    """
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None or find_spec("playwright") is None:
        return None
    from playwright.sync_api import sync_playwright

    found = []
    with sync_playwright() as playwright:
        sandbox = [] if os.getuid() else ["--no-sandbox"]
        browser = playwright.chromium.launch(executable_path=chromium, args=sandbox)
        for _ in range(OPENINGS):
            tab = browser.new_context().new_page()
            tab.goto(page.as_uri())
            tab.wait_for_selector('[data-table="tasks"] tbody td')
            found.append(float(tab.evaluate(_OPENED)))
        browser.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="20,000 trials")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    count = 20_000 if options.quick else 1_000_000
    with tempfile.TemporaryDirectory() as folder:
        with open_db(Path(folder) / "t.db") as store:
            print(f"making {count:,} trials", file=sys.stderr)
            store.add_many(trials(count))
            started = time.perf_counter()
            data: dict[str, Any] = collect(store)
            page = Path(folder) / "report.html"
            page.write_text(render(data), encoding="utf-8")
            making = time.perf_counter() - started
        size = page.stat().st_size
        opening = opening_seconds(page)
    summary = {"bytes_1m": size, "opens_seconds_1m": opening and max(opening), "making_seconds_1m": making}
    told = "no browser here: apt-get install chromium, pip install 'edgetune[dev]'"
    if opening is not None:
        told = f"opens in {min(opening):.2f} to {max(opening):.2f} s ({len(opening)} times)"
    print(f"{count:,} trials: {size / 1e6:.2f} MB, made in {making:.1f} s; {told}", file=sys.stderr)
    if options.json:
        machine = {"processor": platform.processor(), "cpus": os.cpu_count(), "load": os.getloadavg()}
        row = {"trials": count, "bytes": size, "opening": opening, "making": making}
        print(json.dumps({"summary": summary, "rows": [row], "machine": machine}))


if __name__ == "__main__":
    main()

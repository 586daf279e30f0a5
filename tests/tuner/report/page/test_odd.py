"""Databases with odd contents, each opened in a browser: nothing fails, every section is there, nothing is drawn at a
place that is no number."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from templates.workloads import Conv2d, Dense
from tests.browser import Opened, needs_chromium, opened
from tests.tuning_db import made
from tuner.report.page import collect, render
from tuning_db.record import Config, DeviceKey, FailureKind, Trial, Workload
from tuning_db.store import open_db

CONV = Conv2d(1, 16, 14, 14, 32, (3, 3), (1, 1), (1, 1, 1, 1)).workload(("bias",))
DENSE = Dense(1, 32, 16).workload()

# In the page as it is: attributes of drawings that are no numbers, texts that no reader understands, sections that are
# not there, and whether it is wider than the screen.
FAULTS = """() => {
    const found = [];
    for (const node of document.querySelectorAll("svg, svg *"))
        for (const { name, value } of node.attributes)
            if (/NaN|Infinity|undefined/.test(value)) found.push(`${node.tagName} ${name}=${value}`);
    for (const word of ["NaN", "undefined", "Infinity", "[object"])
        if (document.querySelector("main").innerText.includes(word)) found.push(word);
    if (document.querySelectorAll("main > section").length !== sections().length) found.push("sections lack");
    if (document.documentElement.scrollWidth > innerWidth) found.push("too wide");
    return found;
}"""
CHOOSE = """([id, place]) => {
    const select = document.getElementById(id);
    if (select && select.options[place]) { select.selectedIndex = place; select.dispatchEvent(new Event("change")); }
}"""


def _trial(tile: int, seconds: float | None, workload: Workload = CONV, minute: float = 0, **more: object) -> Trial:
    return replace(made.trial(tile, seconds, workload=workload, minute=minute), **more)


def _with(**attrs: object) -> Workload:
    return Workload("conv2d", {**CONV.attrs, **attrs})


def _near(seconds: float, steps: int) -> float:
    """So many of the smallest steps above."""
    return next(itertools.islice(_steps(seconds), steps, None))


def _steps(seconds: float) -> Iterator[float]:
    while True:
        yield seconds
        seconds = math.nextafter(seconds, 1)


def _moments(first: datetime, step: timedelta) -> list[Trial]:
    return [_trial(i, 1e-3 / (i + 1), created=first + i * step) for i in range(9)]


def _two_knobs(i: int) -> Config:
    return Config("direct", {"tile": i % 5, "b": i % 3})


STRANGE = {
    "no size": _with(out_channels=0),
    "less than no size": _with(in_channels=-4),
    "no step": _with(strides=(0, 0)),
    "one step": _with(strides=(1,)),
    "a number for two": _with(strides=0),
    "a word for two": _with(kernel="3x3"),
    "no group": _with(groups=0),
    "no padding": _with(padding=()),
    "a word for a number": _with(batch="one"),
    "more than a number": _with(in_channels=10**400),
    "nearly more": _with(in_channels=1e300),
    "other names": Workload("conv2d", {"something": "else"}),
    "no names": Workload("dense", {}),
    "no rows": Workload("dense", {**DENSE.attrs, "rows": 0}),
    "an operator of vision": Workload("nms", {}),
    "an unknown type": Workload("conv2d", CONV.attrs, ("",), "x" * 300),
}
ODD: dict[str, list[Trial]] = {
    "nothing": [],
    "one": [_trial(1, 1e-3)],
    "one that failed": [_trial(1, None)],
    "all failed": [replace(made.trial(i, None, kind=kind), workload=CONV) for i, kind in enumerate([*FailureKind] * 3)],
    "none verified": [_trial(i, 1e-3, error=None) for i in range(9)],
    "equal times": [_trial(i, 1e-3, minute=i) for i in range(9)],
    "times that differ in rounding": [
        _trial(i % 5, _near(1e-3, i % 3), minute=i, config=_two_knobs(i)) for i in range(60)
    ],
    "the least and the most": [_trial(1, 5e-324), _trial(2, 1e-300, DENSE), _trial(3, 1e307), _trial(4, 1e300, DENSE)],
    "every size": [_trial(i, 10.0 ** (i - 12)) for i in range(24)],
    "the end of time": _moments(datetime(9999, 12, 31, 23, 59, tzinfo=UTC), timedelta(seconds=1)),
    "its begin and its end": [
        *_moments(datetime(1, 1, 2, tzinfo=UTC), timedelta(0)),
        *_moments(datetime(9999, 12, 31, tzinfo=UTC), timedelta(hours=1)),
    ],
    "a microsecond": _moments(made.NOON, timedelta(microseconds=1)),
    "nobody's": [_trial(i, 1e-3 / (i + 1), searcher=None, seed=None) for i in range(9)],
    "a long name": [_trial(i, 1e-3, searcher="a" * 5000, seed=i, config=Config("t" * 5000, {})) for i in range(9)],
    "names of every object": [
        _trial(
            i,
            1e-3 * (1 + i % 9),
            Workload("__proto__", {"constructor": "toString"}),
            config=Config("__proto__", {"__proto__": i % 4, "constructor": i % 3, "": i % 2}),
            searcher="__proto__",
        )
        for i in range(30)
    ],
    "many knobs": [
        _trial(i, 1e-3 * (1 + i % 9), config=Config("t", {f"k{j}": (i >> j % 5) & 3 for j in range(60)}))
        for i in range(60)
    ],
    "many values": [
        _trial(i, 1e-3 * (1 + i % 9), config=Config("t", {"a": i % 39, "b": "x" * 200 + str(i % 40)}))
        for i in range(200)
    ],
    "many devices": [_trial(1, 1e-3, device=DeviceKey("cpu", "x86_64", f"m{i}", {"threads": i})) for i in range(8)],
    "many tasks": [
        _trial(j, 1e-4 * (1 + i % 17) * j, Conv2d(1, 8 + i, 14, 14, 16, (3, 3)).workload())
        for i in range(500)
        for j in (1, 2)
    ],
    "measured again": [_trial(1, _near(1e-3, i % 2), minute=i) for i in range(9)],
    "pieces alone": [_trial(1, 1e-3, Workload("copy", {"bytes": 4}), config=Config("piece", {}))],
}
ODD.update((f"a workload with {name}", [_trial(i, 1e-3 * i, w) for i in (1, 2)]) for name, w in STRANGE.items())


def _page(folder: Path, trials: list[Trial]) -> str:
    with open_db(folder / "t.db") as store:
        store.add_many(trials)
        (folder / "page.html").write_text(render(collect(store)), encoding="utf-8")
    return (folder / "page.html").as_uri()


def _faults(page: Opened) -> list[str]:
    """Of the page, and with every chooser at its first, second and last option, and with a filter that nothing
    passes."""
    found = list(page.page.evaluate(FAULTS))
    for ident in page.page.eval_on_selector_all("select[id]", "found => found.map(s => s.id)"):
        count = page.page.evaluate("id => document.getElementById(id)?.options.length ?? 0", ident)
        for place in sorted({0, 1, count - 1} & set(range(count))):
            page.page.evaluate(CHOOSE, [ident, place])
            found += page.page.evaluate(FAULTS)
        if ident.startswith("filter"):
            page.page.evaluate(CHOOSE, [ident, 0])
    page.page.fill("#filter-text", "no task has this name")
    return found + page.page.evaluate(FAULTS)


@pytest.mark.sampled(4)
@needs_chromium
@pytest.mark.parametrize("size", ["desktop", "phone"])
def test_an_odd_database_is_shown_without_a_fault(size: str, tmp_path: Path) -> None:
    with opened("about:blank", size) as page:
        for name, trials in ODD.items():
            folder = tmp_path / str(len(list(tmp_path.iterdir())))
            folder.mkdir()
            page.page.goto(_page(folder, trials))
            assert (name, _faults(page), page.complaints) == (name, [], [])


@pytest.mark.parametrize("name", STRANGE)
def test_sizes_that_no_operator_has_are_not_counted(name: str, tmp_path: Path) -> None:
    with open_db(tmp_path / "t.db") as store:
        store.add(_trial(1, 1e-3, STRANGE[name]))
        (task,) = collect(store)["tasks"]
    assert task["text"].startswith(STRANGE[name].op)
    assert task["trials"] == 1
    for count in (task["flop"], task["bytes"]):
        assert count is None or 0 < count < math.inf

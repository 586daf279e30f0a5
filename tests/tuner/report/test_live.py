"""The page of `tune watch` in a real browser: it has what the database has, follows it, and leaves a person where they
were meanwhile. The runs are made up: what real ones do is in tests/tuner/cli/test_watch.py."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.browser import SIZES, Opened, needs_chromium, opened
from tests.tuner.session.support import CONV, POINT, SMALL, replayed
from tests.tuning_db import made
from tuner.devices import open_device
from tuner.report.live import Live, LiveServer
from tuner.session import Budget
from tuning_db.record import Config, DeviceKey, Failure, FailureKind, Trial, Workload
from tuning_db.store import Store, open_db

pytestmark = needs_chromium

HARM = "<img src=x onerror=window.harmed=1></script><script>window.harmed=1</script>@script@"

SCROLLED = "[scrollY, document.getElementById('scroll-tasks').scrollLeft]"


@contextmanager
def served(store: Store, *modules: Path) -> Iterator[str]:
    """The link to a server of the store."""
    server = LiveServer(Live(store, modules))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.link
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A session of two searchers on three tasks; every seventh config fails."""
    device = open_device("cpu", 1)
    with open_db(tmp_path / "t.db") as opened_store:
        for searcher, trials in (("random", 60), ("genetic", 140)):
            replayed(device, opened_store, [CONV, POINT, SMALL], Budget(trials=trials), searcher=searcher)
        yield opened_store


def _faster(store: Store) -> Trial:
    """A trial that is a new best of a task."""
    known = min((t for t in store.trials() if t.ok), key=lambda t: t.seconds)
    return replace(known, times=(known.seconds / 2,), created=known.created.replace(year=2030))


def _follow(page: Opened, change: Callable[[], Any]) -> None:
    """Until the page shows what comes of a change."""
    made_at = page.page.evaluate("data.made")
    change()
    page.page.wait_for_function("made => data.made > made", arg=made_at, timeout=0)


def _focused(page: Opened) -> str:
    return str(page.page.evaluate("document.activeElement.id || document.activeElement.tagName"))


def _bests(store: Store) -> list[float]:
    found = [store.best(w, d) for d in store.devices() for w in store.workloads(d)]
    return sorted(trial.seconds for trial in found if trial)


def test_its_numbers_are_the_databases_and_follow_it(store: Store, untuned: Path):
    with served(store, untuned) as link, opened(link) as page:
        for trial in (None, _faster(store)):
            if trial is not None:
                _follow(page, lambda added=trial: store.add(added))
                assert trial.seconds in page.numbers("tasks", "best")
            assert sorted(filter(None, page.numbers("tasks", "best"))) == _bests(store)
            assert sum(filter(None, page.numbers("tasks", "trials"))) == store.stats().trials
            bars = page.page.eval_on_selector_all(
                '[data-chart="failures"] rect', "bars => bars.map(b => [b.dataset.name, Number(b.dataset.value)])"
            )
            assert dict(bars) == dict(store.stats().failures_by_kind)
        kinds = page.page.eval_on_selector_all("[data-node]", "nodes => nodes.map(n => n.dataset.kind)")
        assert kinds.count("input") == kinds.count("output") == 1
        assert len(page.texts("layers-0", "layer")) == kinds.count("kernel")
        assert page.complaints == []


def test_filters_stay_while_it_follows(store: Store):
    with served(store) as link, opened(link) as page:
        page.page.fill("#filter-text", "3x3")
        chosen = page.texts("tasks", "task")
        assert 0 < len(chosen) < 3
        assert page.page.locator("#curve-task option").count() == len(chosen)
        _follow(page, lambda: store.add(_faster(store)))
        assert page.texts("tasks", "task") == chosen
        assert page.page.input_value("#filter-text") == "3x3"
        failed = page.numbers("tasks", "failures")
        assert sum(filter(None, page.numbers("failure-kinds", "trials"))) == sum(filter(None, failed)) > 0


def test_whoever_uses_the_keyboard_stays_where_they_are(store: Store):
    with served(store) as link, opened(link, "phone") as page:
        chart = '[data-chart="curves"]'
        page.page.locator(chart).focus()
        for key in ("ArrowRight", "ArrowRight"):
            page.page.keyboard.press(key)
        said = page.page.locator("#readout-curves").inner_text()
        page.page.locator("#failures summary").first.click()
        page.page.evaluate("document.getElementById('scroll-tasks').scrollTo(80, 30)")
        held = [
            "chart-curves",
            "sort-tasks-2",
            "csv-tasks",
            "scroll-tasks",
            "filter-of-tasks",
            "to-curves",
            "curve-task",
        ]
        held.append(page.page.locator("#failures details[open] pre").get_attribute("id"))
        for ident in held:
            page.page.locator(f"#{ident}").focus()
            if ident == "filter-of-tasks":
                page.page.keyboard.type("conv")
                page.page.keyboard.press("ArrowLeft")
            scrolled = page.page.evaluate(SCROLLED)
            assert scrolled[1] > 0
            _follow(page, lambda: store.add(_faster(store)))
            assert (_focused(page), page.page.evaluate(SCROLLED)) == (ident, scrolled)
            if ident == "filter-of-tasks":
                page.page.keyboard.type("_")
                assert page.page.input_value(f"#{ident}") == "con_v"
                page.page.fill(f"#{ident}", "")
        assert page.page.locator("#readout-curves").inner_text() == said
        assert page.page.locator("#failures details[open]").count() == 1
        page.page.locator(chart).focus()
        page.page.keyboard.press("ArrowRight")
        assert page.page.locator("#readout-curves").inner_text() != said
        assert page.complaints == []


def test_what_has_gone_leaves_the_focus_near(store: Store):
    (device,), task = store.devices(), store.workloads()[0]
    with served(store) as link, opened(link) as page:
        store.begin(task, device, [Config("made.up", {})])
        page.page.wait_for_selector("#live button:has-text('Skip this task')", timeout=0)
        page.page.locator("#live button:has-text('Skip this task')").focus()
        store.abandon(store.in_flight())
        page.page.wait_for_selector("#live button:has-text('Skip this task')", state="detached", timeout=0)
        assert _focused(page) == "pause"


def test_it_can_be_loaded_again_in_its_tab_alone(store: Store):
    with served(store) as link, opened(link) as page:
        trials = sum(filter(None, page.numbers("tasks", "trials")))
        page.page.reload()
        page.page.wait_for_selector('[data-table="tasks"]', timeout=0)
        assert sum(filter(None, page.numbers("tasks", "trials"))) == trials
        _follow(page, lambda: store.add(_faster(store)))
        address = page.page.url
        assert "token" not in address
        assert page.page.context.cookies() == []
        other = page.page.context.new_page()
        other.goto(address)
        assert "open the link that tune watch shows" in other.locator("main").inner_text()
        assert other.locator("main > section").count() == 0
        assert page.complaints == []


@pytest.mark.sampled(4)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_every_screen_and_keeps_nobody_out(store: Store, untuned: Path, size: str, scheme: str):
    with served(store, untuned) as link, opened(link, size, color_scheme=scheme) as page:
        assert page.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        page.keep_screenshot(f"watch-{size}-{scheme}")
        assert page.serious_faults() == []
        assert page.complaints == []
        assert all(url.startswith(link.partition("?")[0]) for url in page.requests)


def test_names_made_to_harm_are_text_in_the_panel_and_in_what_follows(tmp_path: Path):
    long = "n" * 10_000
    workload = Workload(HARM, {"formula": HARM})
    device = DeviceKey("cpu", "x86_64", HARM + long, {"threads": 1})
    failed = made.trial(seconds=None)
    harmful = replace(failed, failure=Failure(FailureKind.COMPILE, HARM + long), config=Config(HARM, {HARM: HARM}))
    with open_db(tmp_path / "t.db") as store:
        store.add(made.trial(1))
        with served(store) as link, opened(link, "phone") as page:

            def attack() -> None:
                store.add(replace(harmful, workload=workload, device=device))
                store.begin(workload, device, [Config(HARM, {})])

            _follow(page, attack)
            page.page.wait_for_selector("#live li", timeout=0)
            assert HARM in page.page.locator("#live").inner_text()
            assert HARM in page.page.locator("main").inner_text()
            assert long not in page.page.locator("body").inner_text()
            assert page.page.evaluate("window.harmed") is None
            assert page.page.locator("img").count() == 0
            assert page.page.locator("script").count() == 2
            assert page.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            page.page.reload()
            page.page.wait_for_selector("#live li", timeout=0)
            assert page.page.evaluate("window.harmed") is None
            assert page.complaints == []

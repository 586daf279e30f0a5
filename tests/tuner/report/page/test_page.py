"""The page itself, in a real browser, on what a tuning run and a build have left, and on names made to harm."""

from __future__ import annotations

import csv
import json
import re
import shutil
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from templates.workloads import Dense
from tests.browser import SIZES, Opened, needs_chromium, opened
from tests.manifests import write_manifest
from tests.templates.gpu.support import device_number
from tests.tuner.cli.conftest import run_tune
from tests.tuner.cli.test_plugins import PLUGIN
from tests.tuning_db import made
from tuner.report.page import collect, render
from tuner.report.page.render import as_json
from tuning_db.lookup import best
from tuning_db.record import Config, DeviceKey, Failure, FailureKind, Workload
from tuning_db.store import open_db
from tuning_db.tuning_time import tuning_times_by_id

pytestmark = needs_chromium

EXPORT_ALL = """async () => {
    const made = [], found = {};
    URL.createObjectURL = (blob) => { made.push(blob); return "data:,"; };
    HTMLAnchorElement.prototype.click = () => {};
    for (const button of document.querySelectorAll("[data-csv]")) {
        button.click();
        found[button.dataset.csv] = await made.pop().text();
    }
    return found;
}"""
HARM = "<img src=x onerror=window.harmed=1></script><script>window.harmed=1</script>@script@@data@@style@@policy@"


@dataclass(frozen=True)
class Reported:
    """A folder with t.db, a module on two devices, what `tune bench` said of it, and report.html."""

    folder: Path

    @property
    def address(self) -> str:
        return (self.folder / "report.html").as_uri()

    def manifest(self) -> dict[str, Any]:
        return json.loads((self.folder / "out" / "manifest.json").read_text())


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory, tuned_on_pocl: Path) -> Reported:
    """The tiny network, tuned for real by two searchers, with a rival and with failures."""
    folder = tmp_path_factory.mktemp("reported")
    shutil.copytree(tuned_on_pocl, folder, dirs_exist_ok=True)
    (folder / "mine.py").write_text(PLUGIN)
    gpu, common = f"opencl:{device_number('pocl')}", ("--threads", 1, "--db", "t.db")
    broken = ("--trials", 12, "--searcher", "random", "--plugin", "mine.py")
    for words in (
        ("model", "tiny.onnx", *common, "--searcher", "random", "--trials", 16),
        ("model", "tiny.onnx", *common, "--searcher", "genetic", "--trials", 32, "--vendor", "onnxruntime"),
        ("op", "dense", "--shape", "1,32,16", *common, *broken),
        ("op", "dense", "--shape", "1,32,16", *common, "--searcher", "genetic", "--trials", 24),
        ("build", "tiny.onnx", "--device", f"{gpu},cpu", *common, "--fallback", "dense", "-o", "out"),
    ):
        done = run_tune(*words, cwd=folder)
        assert done.status == 0, done.err
    bench = run_tune("bench", "out", "--profile", "--rounds", 1, "--json", cwd=folder)
    (folder / "bench.json").write_text(bench.out)
    done = run_tune("report", "out", "--db", "t.db", "--bench", "bench.json", "-o", "report.html", cwd=folder)
    assert done.status == 0, done.err
    return Reported(folder)


def curves_of(data: dict[str, Any], task: int) -> list[dict[str, Any]]:
    return [c for c in data["curves"] if c["task"] == task]


def assert_clean(page: Opened, address: str) -> None:
    """No error in the console, and nothing was asked of anybody else."""
    assert page.complaints == []
    assert [url for url in page.requests if url != address] == []


@pytest.mark.sampled(2)
@pytest.mark.slow
def test_numbers_of_the_page_are_those_of_the_database(reported: Reported):
    with open_db(reported.folder / "t.db", read_only=True) as store, opened(reported.address, offline=True) as page:
        pairs = [(w, d) for d in store.devices() for w in store.workloads(d) if w.op in ("conv2d", "dense")]
        bests = [store.best(w, d) for w, d in pairs]
        assert sorted(filter(None, page.numbers("tasks", "best"))) == sorted(b.seconds for b in bests if b)
        assert sum(filter(None, page.numbers("tasks", "trials"))) == store.stats().trials
        with store.reading() as connection:
            efforts = tuning_times_by_id(connection).values()
        for column in ("building", "checking, timing"):
            assert all(page.numbers("efforts", column))
        assert sum(page.numbers("efforts", "building")) == pytest.approx(sum(e.build_seconds for e in efforts))
        assert sum(page.numbers("efforts", "checking, timing")) == pytest.approx(sum(e.run_seconds for e in efforts))
        assert sum(page.numbers("efforts", "time spent")) == pytest.approx(sum(e.seconds for e in efforts))
        assert all(e.seconds >= e.build_seconds + e.run_seconds for e in efforts)
        failures = store.stats().failures_by_kind
        assert failures
        bars = page.page.eval_on_selector_all(
            '[data-chart="failures"] rect', "bars => bars.map(b => [b.dataset.name, Number(b.dataset.value)])"
        )
        assert dict(bars) == dict(failures)
        for device in (0, 1):
            shown = sorted(y for _, y in page.marks(f"roofline-{device}"))
            tasks = [t for t in collect(store)["tasks"] if t["device"] == device and t["best"] and t["flop"]]
            assert shown == pytest.approx(sorted(t["flop"] / t["best"]["seconds"] for t in tasks))
        assert_clean(page, reported.address)


@pytest.mark.sampled(2)
def test_curves_are_drawn_of_the_task_that_is_chosen(reported: Reported):
    with open_db(reported.folder / "t.db", read_only=True) as store, opened(reported.address) as page:
        data = collect(store)
        task = next(i for i, t in enumerate(data["tasks"]) if t["op"] == "dense" and len(curves_of(data, i)) > 1)
        page.page.select_option("#curve-task", str(task))
        expected = []
        for curve in (c for c in curves_of(data, task) if c["points"]):
            last = [curve["trials"], curve["seconds"], curve["points"][-1][2]]
            expected += [(float(n), seconds) for n, _, seconds in [*curve["points"], last]]
        highest = max(seconds for _, seconds in expected)
        expected += [(float(n), highest) for curve in curves_of(data, task) for n, _ in curve["failed"]]
        assert page.marks("curves") == expected
        page.page.select_option("#curve-clock", "time")
        assert [y for _, y in page.marks("curves")] == [y for _, y in expected]
        searchers = page.page.locator('[data-table="searchers"] tbody tr').count()
        assert searchers == len(curves_of(data, task)) > 1


def test_every_trial_is_a_line_through_its_knobs_and_the_fastest_are_in_colour(reported: Reported):
    with open_db(reported.folder / "t.db", read_only=True) as store, opened(reported.address) as page:
        views = collect(store)["knobs"]
        number = next(i for i, view in enumerate(views) if len(view["names"]) > 1)
        page.page.select_option("#knob-view", str(number))
        drawn = page.page.eval_on_selector_all(
            '[data-chart="lines"] .trial',
            "lines => lines.map(l => [Number(l.dataset.seconds), l.classList.contains('fast')])",
        )
        rows = views[number]["rows"]
        assert sorted(seconds for seconds, _ in drawn) == sorted(row[-1] for row in rows)
        fast = [seconds for seconds, is_fast in drawn if is_fast]
        assert len(fast) == max(1, round(len(rows) / 10))
        assert max(fast) <= min(seconds for seconds, is_fast in drawn if not is_fast)
        assert page.complaints == []


def test_layers_of_a_module_stand_beside_their_peers_and_the_graph_has_its_copies(reported: Reported):
    manifest = reported.manifest()
    keys = [DeviceKey.from_dict(d["key"]) for d in manifest["devices"]]
    with open_db(reported.folder / "t.db", read_only=True) as store, opened(reported.address) as page:
        assert page.numbers("layers-0", "time") == [o["seconds"] for o in manifest["operators"]]
        assert [page.texts("layers-0", "device")[i] for i in range(len(manifest["operators"]))] == [
            manifest["devices"][o["device"]]["name"] for o in manifest["operators"]
        ]
        rivals = []
        for operator in manifest["operators"]:
            found = best(
                store,
                Workload.from_dict(operator["workload"]),
                keys[operator["device"]],
                usable=lambda t: t.config.template.endswith("_onnxruntime"),
            )
            rivals.append(found.trial.seconds if found and found.source == "device" else None)
        assert any(rivals)
        assert page.numbers("layers-0", "onnxruntime") == rivals
        bench = json.loads((reported.folder / "bench.json").read_text())
        seconds = {c["name"]: c["seconds"] for c in bench["profile"]["calls"]}
        assert page.numbers("layers-0", "in the network") == [seconds.get(o["node"]) for o in manifest["operators"]]
        kinds = page.page.eval_on_selector_all("[data-node]", "nodes => nodes.map(n => n.dataset.kind)")
        copies = sum(c["name"] == "copy between devices" for c in bench["profile"]["calls"])
        assert kinds.count("copy") == copies > 0
        assert kinds.count("input") == kinds.count("output") == 1
        assert kinds.count("kernel") + kinds.count("other") + copies == len(bench["profile"]["calls"])
        shares = page.page.eval_on_selector_all("[data-share]", "rects => rects.map(r => Number(r.dataset.share))")
        assert len(shares) == kinds.count("kernel") + kinds.count("other")
        assert sum(shares) == pytest.approx(1)
        devices = page.page.eval_on_selector_all("[data-node]", "nodes => nodes.map(n => n.dataset.device)")
        assert set(devices) == {"0", "1"}
        drawn = page.page.locator('[data-chart="graph-0"] text').all_text_contents()
        for i, device in enumerate(manifest["devices"]):
            told = [text for text in drawn if text.startswith(f"{device['name']}, ")]
            assert len(told) == devices.count(str(i)) - kinds.count("copy") * (i == int(devices[kinds.index("copy")]))


def test_sizes_of_a_module_and_memory_of_the_processes_are_shown(reported: Reported):
    """No memory is planned for two devices."""
    sizes, bench = reported.manifest()["sizes"], json.loads((reported.folder / "bench.json").read_text())
    with opened(reported.address) as page:
        shown = page.page.locator("#module-0 .facts").inner_text().replace("\n", " ")
        assert f"weights {sizes['weights'] / 2**20:.3g} MiB" in shown
        assert f"kernels {sizes['kernels'] / 2**20:.3g} MiB" in shown
        assert "memory of an inference - with the weights -" in shown
        assert page.numbers("bench-0", "peak memory of its process") == [bench["ours"]["process_peak_bytes"]]


def test_filters_choose_tasks_everywhere(reported: Reported):
    with open_db(reported.folder / "t.db", read_only=True) as store:
        failed = Counter(t.workload.op for t in store.trials() if t.failure)
        assert failed["dense"] > 0
    with opened(reported.address) as page:
        assert sum(filter(None, page.numbers("failure-kinds", "trials"))) == failed.total()
        everything = page.numbers("tasks", "trials")
        page.page.select_option("#filter-op", "dense")
        dense = page.texts("tasks", "task")
        assert dense
        assert all(text.startswith("dense") for text in dense)
        assert page.page.locator("#curve-task option").count() == len(dense)
        assert sum(filter(None, page.numbers("failure-kinds", "trials"))) == failed["dense"]
        assert {"dense" in text for text in page.page.locator("#failures summary").all_inner_texts()} == {True}
        page.page.select_option("#filter-op", "")
        page.page.select_option("#filter-device", "1")
        assert len(set(page.texts("tasks", "device"))) == 1
        assert page.page.locator('[data-chart="roofline-0"]').count() == 0
        page.page.select_option("#filter-device", "")
        page.page.fill("#filter-text", "NO SUCH TASK")
        assert page.texts("tasks", "task") == []
        assert page.page.locator("#failures").inner_text().endswith("No trial that the filters leave failed.")
        page.page.fill("#filter-text", "")
        assert page.numbers("tasks", "trials") == everything
        page.page.fill("#filter-of-tasks", "dense")
        assert page.texts("tasks", "task") == dense


def test_tables_sort_and_what_is_exported_is_what_is_there(reported: Reported, tmp_path: Path):
    with opened(reported.address) as page:
        head = page.page.locator('[data-table="tasks"] th button', has_text="trials")
        head.click()
        assert page.numbers("tasks", "trials") == sorted(page.numbers("tasks", "trials"), reverse=True)
        head.click()
        trials = page.numbers("tasks", "trials")
        assert trials == sorted(trials)
        with page.page.expect_download() as download:
            page.page.locator('[data-csv="tasks"]').click()
        assert download.value.suggested_filename == "tasks.csv"
        download.value.save_as(tmp_path / "tasks.csv")
        exported = page.page.evaluate(EXPORT_ALL)  # a browser stops a page that saves many files at once
        charts = page.page.eval_on_selector_all("[data-chart]", "charts => charts.map(c => c.dataset.chart)")
    with (tmp_path / "tasks.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [float(row["trials"]) for row in rows] == trials
    assert set(charts) < set(exported)
    for name, text in exported.items():
        assert len(list(csv.reader(text.splitlines()))) > 1, name
    assert exported["tasks"].encode() == (tmp_path / "tasks.csv").read_bytes()


def test_everything_is_reached_by_the_keyboard(reported: Reported):
    with opened(reported.address) as page:
        keys, reached = page.page.keyboard, set[str]()
        focusable = page.page.locator("a[href], button:not(:disabled), select, input, summary, [tabindex='0']").count()
        for _ in range(focusable + 5):
            keys.press("Tab")
            reached.add(page.page.evaluate("document.activeElement.outerHTML.slice(0, 300)"))
        for chart in page.page.eval_on_selector_all("[data-chart]", "charts => charts.map(c => c.dataset.chart)"):
            assert any(f'data-chart="{chart}"' in html for html in reached), chart
        page.page.locator('[data-chart="curves"]').focus()
        keys.press("ArrowRight")
        first = page.page.locator("#readout-curves").inner_text()
        keys.press("ArrowRight")
        second = page.page.locator("#readout-curves").inner_text()
        assert "after" in first
        assert first != second
        page.page.locator("#theme").focus()
        before = page.page.evaluate("getComputedStyle(document.body).backgroundColor")
        keys.press("Enter")
        assert page.page.evaluate("getComputedStyle(document.body).backgroundColor") != before


@pytest.mark.sampled(3)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_every_screen_and_keeps_nobody_out(reported: Reported, size: str, scheme: str):
    with opened(reported.address, size, offline=True, color_scheme=scheme) as page:
        assert page.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        page.keep_screenshot(f"report-{size}-{scheme}")
        assert page.serious_faults() == []
        assert_clean(page, reported.address)


def test_names_made_to_harm_are_shown_as_text(reported: Reported, tmp_path: Path):
    long = "n" * 10_000
    workload = Workload(HARM, {HARM: HARM, "formula": "=1+1"})
    device = DeviceKey("cpu", "x86_64", f"{HARM}\x1b[31m\x00\u202egnp.exe", {"threads": 1})
    failed = made.trial(seconds=None)
    trials = [
        replace(made.trial(i, 1e-3 * i), workload=workload, device=device, config=Config(HARM, {HARM: HARM, "t": i}))
        for i in range(1, 20)
    ]
    trials.append(replace(trials[0], workload=Workload(long, {}), config=Config("=HYPERLINK()", {})))
    trials.append(replace(failed, failure=Failure(FailureKind.COMPILE, f"{HARM}\x07{long}"), searcher=HARM))
    module = tmp_path / "module"
    module.mkdir()
    manifest = reported.manifest()
    manifest["model"]["name"] = HARM + long
    manifest["operators"][0]["node"] = manifest["inputs"][0]["name"] = HARM
    for file in manifest["files"]:
        (module / file).write_bytes((reported.folder / "out" / file).read_bytes())
    write_manifest(module, manifest)
    with open_db(tmp_path / "t.db") as store:
        store.add_many(trials)
        (tmp_path / "harm.html").write_text(render(collect(store, [module])), encoding="utf-8")
    address = (tmp_path / "harm.html").as_uri()
    with opened(address, "phone") as page:
        assert page.page.evaluate("window.harmed") is None
        assert page.page.locator("main > section").count() > 0
        assert page.page.locator("img").count() == 0
        assert page.page.locator("script").count() == 2
        text = page.page.locator("main").inner_text()
        assert HARM in text
        assert r"\u001b[31m\u0000\u202egnp.exe" in text
        assert re.search(r"\(10,\d{3} characters\)", text)
        assert page.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        with page.page.expect_download() as download:
            page.page.locator('[data-csv="tasks"]').click()
        saved = download.value.path().read_text(encoding="utf-8")
        assert "'=HYPERLINK()" in saved
        assert long in saved
        assert_clean(page, address)


def test_numbers_that_differ_only_in_rounding_are_drawn_as_one(tmp_path: Path):
    """The only kernel of a device is its roof's knee, but for what dividing by its seconds rounds off."""
    workload = Dense(1, 32, 16).workload()
    (task,) = collect_of(tmp_path / "one.db", workload, 1e-3)["tasks"]
    flop, size = task["flop"], task["bytes"]
    seconds = next(s for s in (k * 1e-7 for k in range(1, 10_000)) if (flop / s) / (size / s) != flop / size)
    data = collect_of(tmp_path / "t.db", workload, seconds)
    (tmp_path / "rounded.html").write_text(render(data), encoding="utf-8")
    address = (tmp_path / "rounded.html").as_uri()
    with opened(address) as page:
        assert page.marks("roofline-0") == [(flop / size, flop / seconds)]
        assert_clean(page, address)


def test_operators_whose_operations_are_not_counted_are_listed_below_the_roofline(tmp_path: Path):
    seconds = {Dense(1, 32, 16).workload(): 1e-3, Workload("nms", {}): 2e-3}
    with open_db(tmp_path / "t.db") as store:
        store.add_many([replace(made.trial(1, s), workload=w) for w, s in seconds.items()])
        (tmp_path / "page.html").write_text(render(collect(store)), encoding="utf-8")
    with opened((tmp_path / "page.html").as_uri()) as page:
        assert len(page.marks("roofline-0")) == 1
        assert page.numbers("uncounted", "time") == [2e-3]
        page.page.select_option("#filter-op", "nms")
        assert page.page.locator('[data-chart="roofline-0"]').count() == 0
        assert page.numbers("uncounted", "time") == [2e-3]
        page.page.select_option("#filter-op", "dense")
        assert page.page.locator('[data-table="uncounted"]').count() == 0
        assert page.complaints == []


def test_integers_stand_under_a_roof_of_their_own(tmp_path: Path):
    """Float32's peak, which is lower here than what the kernel of integers does, is never its roof."""
    dense, seconds = Dense(64, 1024, 1024), 1e-3
    peaks = {"float32": 1.3e11, "int8": 4e11}
    with open_db(tmp_path / "t.db") as store:
        workloads = [dense.workload(dtype=dtype) for dtype in ("float32", "uint8", "float16")]
        store.add_many([replace(made.trial(1, seconds), workload=w) for w in workloads])
        roofs = {made.LAPTOP.key: {"flops": 1.3e11, "peaks": peaks, "bytes_per_second": 1e11}}
        data = collect(store, roofs=roofs)
        (tmp_path / "page.html").write_text(render(data), encoding="utf-8")
    with opened((tmp_path / "page.html").as_uri()) as page:
        assert sorted(page.texts("tasks", "precision")) == ["float16", "float32", "int8"]
        ids = {roof["precision"]: i for i, roof in enumerate(data["roofs"])}
        for precision, peak in peaks.items():
            assert page.numbers(f"roofs-{ids[precision]}", "of peak") == [pytest.approx(dense.flop / seconds / peak)]
            assert page.numbers(f"roofs-{ids[precision]}", "of the roof") == [
                pytest.approx(dense.flop / seconds / peak)
            ]
            assert len(page.marks(f"roofline-{ids[precision]}")) == 1
        assert page.numbers(f"roofs-{ids['float16']}", "of peak") == [None]  # this device has no such peak
        assert "Gop/s" in page.texts(f"roofs-{ids['int8']}", "speed")[0]
        assert page.serious_faults() == page.complaints == []


def test_a_roof_that_was_measured_on_a_busy_machine_is_raised_to_the_fastest_trial_and_said(tmp_path: Path):
    dense, seconds = Dense(64, 1024, 1024), 1e-3
    with open_db(tmp_path / "t.db") as store:
        store.add(replace(made.trial(1, seconds), workload=dense.workload()))
        roofs = {made.LAPTOP.key: {"flops": 5e10, "peaks": {"float32": 5e10}, "bytes_per_second": 1e11}}
        (tmp_path / "page.html").write_text(render(collect(store, roofs=roofs)), encoding="utf-8")
    with opened((tmp_path / "page.html").as_uri()) as page:
        assert "the machine was busy when it was measured" in page.page.locator("#roofline").inner_text()
        assert page.numbers("roofs-0", "of peak") == [pytest.approx(1.0)]


def collect_of(db: Path, workload: Workload, seconds: float) -> dict[str, Any]:
    with open_db(db) as store:
        store.add_many([replace(made.trial(1, seconds), workload=workload)])
        return collect(store)


def test_the_policy_of_the_page_lets_nothing_else_run(reported: Reported):
    with opened(reported.address) as page:
        page.page.evaluate(
            """() => {
                const script = document.createElement("script");
                script.textContent = "window.harmed = 1";
                document.body.append(script);
                document.body.insertAdjacentHTML("beforeend", "<img src='https://example.invalid/x.png'>");
            }"""
        )
        assert page.page.evaluate("window.harmed") is None
        assert len(page.complaints) >= 2
        assert all("Content Security Policy" in text for text in page.complaints)


def test_json_for_a_page_has_no_markup_and_no_number_that_json_lacks():
    text = as_json({"a": "</script><!--&\u2028", "b": [float("inf"), float("nan"), 1.5]})
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == {"a": "</script><!--&\u2028", "b": [None, None, 1.5]}

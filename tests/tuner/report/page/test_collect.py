"""What the report says is what the database has, on a session's trials and on made-up ones."""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks.report import trials
from templates.traffic import bytes_of
from tests.tuner.session.support import CONV, POINT, SMALL, replayed
from tests.tuning_db import made
from tuner.devices import open_device
from tuner.report.page import collect, render
from tuner.report.page.names import device_text
from tuner.report.page.scan import EXAMPLES, MOST_EXAMPLES, MOST_FAILED, MOST_REPEATED, SAMPLE, Curve
from tuner.report.page.sections.knobs import knob_view
from tuner.session import Budget
from tuning_db import shipped
from tuning_db.record import DeviceKey, Failure, FailureKind, Trial, Workload
from tuning_db.store import Store, open_db
from tuning_db.trial_flags import mark_throttled


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A session of two searchers on three tasks; every seventh config fails."""
    device = open_device("cpu", 1)
    with open_db(tmp_path_factory.mktemp("report") / "t.db") as opened:
        for searcher, trials in (("random", 60), ("genetic", 140)):
            replayed(device, opened, [CONV, POINT, SMALL], Budget(trials=trials), searcher=searcher)
        yield opened


def test_tasks_are_counted_as_the_database_counts_them(store: Store):
    data, trials = collect(store), list(store.trials())
    assert sum(t["trials"] for t in data["tasks"]) == store.stats().trials
    assert sum(t["failures"] for t in data["tasks"]) == store.stats().failures > 0
    for workload in store.workloads():
        (task,) = [t for t in data["tasks"] if t["op"] == workload.op and t["bytes"] == bytes_of(workload)]
        mine = [t for t in trials if t.workload == workload]
        assert task["configs"] == len({t.config for t in mine})
        assert task["first"] == next(t.seconds for t in mine if t.ok)
        # A replayed trial takes so long on the session's clock, and nothing else takes any time.
        assert (task["building"], task["running"]) == (0, pytest.approx(0.12 * len(mine)))
        assert task["effort"] == pytest.approx(task["running"])
        best = store.best(workload, mine[0].device)
        assert best is not None
        assert task["best"]["seconds"] == best.seconds
        assert task["best"]["template"] == best.config.template


def test_curves_have_every_improvement_of_a_searcher(store: Store):
    data = collect(store)
    places = {bytes_of(w): w for w in store.workloads()}
    assert {c["searcher"] for c in data["curves"]} == {"random", "genetic"}
    for curve in data["curves"]:
        workload = places[data["tasks"][curve["task"]]["bytes"]]
        mine = [t for t in store.trials(workload) if t.searcher == curve["searcher"]]
        best, expected = math.inf, []
        for i, trial in enumerate(mine):
            if trial.ok and trial.seconds < best:
                best = trial.seconds
                expected.append((i + 1, best))
        assert [(n, seconds) for n, _, seconds in curve["points"]] == expected
        assert curve["trials"] == len(mine)
        assert [n for n, _ in curve["failed"]] == [i + 1 for i, trial in enumerate(mine) if not trial.ok]
        assert curve["failures"] == len(curve["failed"])


def test_of_many_failures_some_are_kept_evenly():
    curve = Curve()
    for number in range(10_000):
        curve.add(number / 10, math.inf)
    places = [n for n, _ in curve.failed]
    assert curve.failures == curve.trials == 10_000
    assert MOST_FAILED / 2 <= len(places) <= MOST_FAILED
    assert len({b - a for a, b in pairwise(places)}) == 1


def test_failures_are_told_by_kind_with_examples(store: Store):
    data = collect(store)
    expected = Counter((str(t.failure.kind), t.config.template) for t in store.trials() if t.failure)
    assert {(f["kind"], f["template"]): f["count"] for f in data["failures"]} == expected
    messages = {t.failure.message for t in store.trials() if t.failure}
    for failure in data["failures"]:
        of = {place: [e for e in failure["examples"] if e["task"] == place] for place, _ in failure["tasks"]}
        assert all(of.values())
        assert min(EXAMPLES, failure["count"]) <= len(failure["examples"]) < EXAMPLES + len(of)
        assert {e["message"] for e in failure["examples"]} <= messages
    counts = Counter[int]()
    for place, count in (entry for failure in data["failures"] for entry in failure["tasks"]):
        counts[place] += count
    assert counts == {i: t["failures"] for i, t in enumerate(data["tasks"]) if t["failures"]}


def test_examples_of_many_tasks_are_not_all_kept(tmp_path):
    failed = made.trial(seconds=None)
    tasks = [Workload("made up", {"size": i}) for i in range(MOST_EXAMPLES + 20)]
    with open_db(tmp_path / "t.db") as store:
        store.add_many([replace(failed, workload=workload) for workload in tasks])
        (failure,) = collect(store)["failures"]
    assert len(failure["tasks"]) == len(tasks)
    assert len(failure["examples"]) == EXAMPLES + MOST_EXAMPLES


def test_a_curve_goes_on_only_with_what_was_verified(tmp_path):
    with open_db(tmp_path / "t.db") as store:
        trials = [made.trial(1, 3e-3), made.trial(2, 1e-3, error=0.5, minute=1), made.trial(3, 2e-3, minute=2)]
        store.add_many([*trials, made.trial(4, 1e-4, error=None, minute=3)])
        (curve,) = collect(store)["curves"]
    assert curve["points"] == [[1, 0.0, 3e-3], [3, 120.0, 2e-3]]
    assert (curve["trials"], curve["seconds"]) == (4, 180.0)


def test_drift_shows_marks_and_what_was_measured_again(tmp_path):
    with open_db(tmp_path / "t.db") as store:
        first = made.trial(1, 1e-3)
        store.add_many([first, made.trial(2, 2e-3, minute=30), made.trial(1, 1.5e-3, minute=60)])
        mark_throttled(store, first, "drift")
        (drift,) = collect(store)["drift"]
    assert drift["marked"] == 1
    assert sum(count for count, _ in drift["bins"]) == 3
    assert drift["bins"][0] == [1, 1]
    assert drift["repeats"] == [[3600.0, pytest.approx(1.5), 0]]


def test_a_reused_record_says_whose_it_is_and_how_it_differs(tmp_path):
    other = DeviceKey("cpu", made.LAPTOP.family, "znver5", {"threads": 1})
    dense = Workload("dense", {"rows": 1, "in_features": 8, "out_features": 4})
    with open_db(tmp_path / "t.db") as store:
        store.add_many([made.trial(1), made.trial(1, device=other, workload=dense)])
        data = collect(store)
    names = [device["name"] for device in data["devices"]]
    used = {(row["text"].split()[0], names[row["device"]]): (row["from"], row["differs"]) for row in data["reuse"]}
    assert used == {
        ("conv2d", "cpu znver5, 1 thread"): ("cpu znver4, 2 threads", "model, threads"),
        ("dense", "cpu znver4, 2 threads"): ("cpu znver5, 1 thread", "model, threads"),
    }


def test_what_was_tried_in_vain_would_use_what_is_shipped(tmp_path):
    kind = shipped.trials()[0]
    with open_db(tmp_path / "t.db") as store:
        store.add(made.trial(seconds=None, workload=kind.workload, device=kind.device))
        (row,) = collect(store)["reuse"]
    assert (row["from"], row["differs"]) == (f"{device_text(kind.device)} (shipped with the package)", "nothing")


def test_samples_stay_small_however_many_trials_there_are(tmp_path):
    with open_db(tmp_path / "t.db") as store:
        store.add_many(made.trial(i % 7 + 1, 1e-3 * (1 + i % 7), minute=i) for i in range(3000))
        (view,) = collect(store)["knobs"]
    assert view["of"] == 3000
    assert len(view["rows"]) == SAMPLE
    assert set(view["values"][0]) == {str(i) for i in range(1, 8)}


@pytest.mark.sampled(2)
def test_a_page_does_not_grow_with_the_trials(tmp_path):
    """Once every sample is full: what is made here as the benchmark of a million trials makes it."""
    sizes = []
    for count in (15_000, 60_000):
        with open_db(tmp_path / f"{count}.db") as store:
            store.add_many(trials(count, tasks=1, again=0.4))
            data = collect(store)
            assert sum(t["trials"] for t in data["tasks"]) > 0.9 * count
            assert len(data["pieces"]) == 2
            assert data["drift"][0]["repeated"] > MOST_REPEATED
            sizes.append(len(render(data)))
    assert sizes[1] < 1.25 * sizes[0]  # four times the trials


def test_the_knob_that_decides_is_the_important_one():
    rng = random.Random(1)
    rows = [
        ({"tile": tile, "other": rng.choice("abcd")}, 1e-3 * tile * rng.uniform(0.95, 1.05))
        for tile in rng.choices((1, 2, 4, 8), k=200)
    ]
    view = knob_view(rows)
    assert view is not None
    assert view["names"] == ["tile", "other"]
    assert view["importance"][0] > 0.95
    assert view["importance"][1] < 0.1
    assert view["values"][0] == ["1", "2", "4", "8"]
    assert view["rows"][0][-1] == rows[0][1]


def test_too_few_trials_tell_nothing_of_a_knob():
    assert knob_view([({"a": 1}, 1.0), ({"a": 2}, 2.0)]) is None
    assert knob_view([({"a": 1}, float(i + 1)) for i in range(50)]) is None


def test_the_least_traffic_of_a_convolution_counts_everything_once():
    read = 32 * 14 * 14 + 32 * 32 * 9 + 32
    assert bytes_of(CONV.workload) == 4 * (read + 32 * 14 * 14)
    assert bytes_of(replace(CONV.workload, epilogue=("add",), dtype="float16")) == 2 * (read - 32 + 2 * 32 * 14 * 14)
    assert bytes_of(Workload("unheard of", {})) is None


def test_workloads_of_other_versions_are_shown_as_they_are(tmp_path):
    strange = Workload("conv2d", {"something": "else"})
    with open_db(tmp_path / "t.db") as store:
        store.add(made.trial(workload=strange))
        (task,) = collect(store)["tasks"]
    assert task["text"] == "conv2d something=else"
    assert task["flop"] is task["bytes"] is None


def test_long_messages_are_cut_and_their_length_told(tmp_path):
    failed = made.trial(seconds=None)
    long = Trial(**{**failed.__dict__, "failure": Failure(FailureKind.COMPILE, "x" * 10_000)})
    with open_db(tmp_path / "t.db") as store:
        store.add(long)
        ((failure,),) = (collect(store)["failures"],)
    message = failure["examples"][0]["message"]
    assert message.endswith("(10,000 characters)")
    assert len(message) < 5000


def test_the_time_of_all_tasks_falls_from_their_first_configs_to_their_best(tmp_path: Path) -> None:
    """A pause of hours counts nothing, and neither does what is wrong."""
    other = replace(made.CONV, epilogue=())
    trials = [
        made.trial(1, 4e-3),
        made.trial(2, 3e-3, minute=1),
        made.trial(3, 1e-6, error=0.5, minute=1.5),
        made.trial(1, 5e-3, minute=400, workload=other),
        made.trial(2, 1e-3, minute=401, workload=other),
        made.trial(3, 9e-3, minute=402, workload=other),
    ]
    with open_db(tmp_path / "t.db") as store:
        store.add_many(trials)
        (fall,) = collect(store)["falls"]
    assert fall["name"] == "all tasks, each once"
    assert fall["points"] == [
        (0.0, pytest.approx(9e-3)),
        (60.0, pytest.approx(8e-3)),
        (150.0, pytest.approx(4e-3)),
        (210.0, pytest.approx(4e-3)),
    ]

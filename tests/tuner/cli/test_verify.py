"""`tune db verify --measure`: kernels of the database measured again by the real command, on this CPU."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.tuner.measure.misbehaving import NAME, WORKLOAD
from tests.tuner.measure.wrong import RIGHT, WAYS
from tests.tuner.measure.wrong import candidate as wrong_candidate
from tuner.devices import open_device
from tuning_db.record import Config, Trial
from tuning_db.store import open_db

DENSE = ("op", "dense", "--shape", "4,64,32", "--threads", 1, "--db", "t.db", "--trials", 6)
VERIFY = ("db", "verify", "--db", "t.db", "--threads", 1, "--measure")
ROOT = {"PYTHONPATH": str(Path(__file__).parents[3])}  # for the plugin, which is a test's
PLUGIN = ("--plugin", "tests.tuner.measure.misbehaving")


def stored(does: str, seconds: float, folder: Path) -> None:
    """A best of the misbehaving template, as a database may have it."""
    device = open_device("cpu", 1)
    with open_db(folder / "t.db") as store:
        store.add(Trial(WORKLOAD, device.key, Config(NAME, {"does": does, "tile": 1}), 3, (seconds,), error=1e-7))


def test_bests_are_measured_again_and_kept_as_history(tune, tmp_path):
    assert tune(*DENSE).status == 0
    with open_db(tmp_path / "t.db") as store:
        before = list(store.trials())
    done = tune(*VERIFY, 5, "--factor", 1000, "--json")
    assert done.status == 0, done.err
    measured = done.json()["measured"]
    assert (measured["bests"], measured["measured"], measured["wrong"], measured["drifted"]) == (1, 1, 0, 0)
    with open_db(tmp_path / "t.db") as store:
        after = list(store.trials())
    assert after[: len(before)] == before
    new = after[len(before) :]
    assert [t.seconds for t in new] == [r["seconds"] for r in measured["records"]]
    assert {t.searcher for t in new} == {"verify"}
    for record, trial in zip(measured["records"], new, strict=True):
        assert record["ratio"] == record["seconds"] / record["stored_seconds"]
        assert record["config"] == trial.config.as_dict()
        assert trial.error is not None
        assert trial.error <= 1e-4
    assert re.search(r"1 of 1: dense .* by cpu\.\S+: \S+ us then, \S+ us now, \S+ times; error", done.err)
    assert "1 of 1 bests measured again, 0 wrong" in done.err


def test_a_time_that_no_longer_holds_is_told(tune, tmp_path):
    stored("good", 1e-9, tmp_path)
    done = tune(*VERIFY, 1, "--factor", 20, *PLUGIN, "--json", env=ROOT)
    assert done.status == 0, done.err
    measured = done.json()["measured"]
    assert (measured["wrong"], measured["drifted"]) == (0, 1)
    assert measured["records"][0]["ratio"] > 20
    assert "differs by more than 20" in done.err


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("does", "kind"), [("wrong", "wrong_answer"), ("run_abort", "run"), ("build_raise", "compile")]
)
def test_a_kernel_that_is_wrong_is_status_4_and_no_best_any_more(tune, tmp_path, does, kind):
    stored(does, 1e-6, tmp_path)
    done = tune(*VERIFY, 1, *PLUGIN, "--json", env=ROOT)
    assert done.status == 4, done.err
    (record,) = done.json()["measured"]["records"]
    assert record["wrong"]
    assert record["failure"]["kind"] == kind
    assert "WRONG" in done.err
    assert tune("db", "best", "--db", "t.db", "--json").json() == {"best": []}


@pytest.mark.night
def test_kernels_that_are_wrong_where_one_call_would_not_tell(tune, tmp_path):
    """Ten of them are bests of a database that was written before anybody looked so closely."""
    device = open_device("cpu", 1)
    with open_db(tmp_path / "t.db") as store:
        for does in (*WAYS, RIGHT):
            chosen = wrong_candidate(does)
            store.add(Trial(chosen.workload, device.key, chosen.config, 1, (1e-3,), error=1e-7))
    done = tune(*VERIFY, 20, "--plugin", "tests.tuner.measure.wrong", "--json", env=ROOT)
    assert done.status == 4, done.err
    measured = done.json()["measured"]
    assert (measured["measured"], measured["wrong"]) == (11, 10)
    (right,) = [record for record in measured["records"] if not record["wrong"]]
    assert right["config"]["knobs"] == {"does": RIGHT}
    (best,) = tune("db", "best", "--db", "t.db", "--json").json()["best"]
    assert best["config"]["knobs"] == {"does": RIGHT}


def test_what_cannot_be_measured_is_refused(tune, tmp_path):
    stored("good", 1e-6, tmp_path)
    done = tune(*VERIFY, 1)  # without the plugin the template is not known
    assert done.status == 2
    assert "no best of device cpu with 1 threads; it has cpu" in done.err
    missing = tune("db", "verify", "--db", "none.db", "--measure", 1)
    assert missing.status == 2
    assert "no tuning database at none.db" in missing.error
    assert not (tmp_path / "none.db").exists()

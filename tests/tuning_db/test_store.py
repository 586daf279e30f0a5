"""What the store keeps and answers, on SQLite and (where there is one) PostgreSQL."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from itertools import count

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.tuning_db.made import CONV, LAPTOP, NOON, config, trial
from tests.tuning_db.strategies import trials
from tuning_db.errors import DatabaseError
from tuning_db.record import DeviceKey, FailureKind, Trial, Workload, tolerance_of
from tuning_db.store import InFlight, Store, open_db

DENSE = Workload("dense", {"rows": 1, "in_features": 512, "out_features": 10})
BOARD = DeviceKey("cpu", "aarch64-neon", "cortex-a72", {"threads": 4})
sharing = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)


@sharing
@given(st.lists(trials(), min_size=1, max_size=4), st.booleans())
def test_what_was_added_comes_back_exactly(store: Store, made: list[Trial], one_by_one: bool) -> None:
    for trial_ in made:
        if one_by_one:
            store.add(trial_)
    if not one_by_one:
        store.add_many(made)
    for trial_ in made:
        back = list(store.trials(trial_.workload, trial_.device))
        assert trial_ in back
        assert {t.workload.key for t in back} == {trial_.workload.key}
        assert {t.config.key for t in back if t == trial_} == {trial_.config.key}


def test_trials_survive_closing_and_come_back_in_order(url: str) -> None:
    made = [trial(tile, minute=-tile) for tile in range(5)]
    with open_db(url) as store:
        assert [store.add(t) for t in made] == [True] * 5
    with open_db(url, create=False) as store:
        assert list(store.trials()) == made


def test_the_same_trial_is_stored_once(store: Store) -> None:
    assert store.add(trial(1))
    assert not store.add(trial(1))
    assert store.add_many([trial(1), trial(2), trial(2), trial(3)]) == 2
    assert [t.config["tile"] for t in store.trials()] == [1, 2, 3]


def test_trials_by_workload_device_family_and_outcome(store: Store) -> None:
    made = [trial(1), trial(2, None), trial(3, workload=DENSE), trial(4, device=BOARD)]
    store.add_many(made)
    assert list(store.trials(CONV)) == [made[0], made[1], made[3]]
    assert list(store.trials(CONV, LAPTOP)) == made[:2]
    assert list(store.trials(device=BOARD)) == made[3:]
    assert list(store.trials(family=LAPTOP.family)) == made[:3]
    assert list(store.trials(ok=True)) == [made[0], *made[2:]]
    assert list(store.trials(ok=False)) == [made[1]]
    assert list(store.trials(DENSE, BOARD)) == []


def test_a_stream_can_be_read_while_trials_are_added(store: Store) -> None:
    store.add_many(trial(tile) for tile in range(2500))
    seen = 0
    for old in store.trials():
        seen += 1
        if seen <= 3:
            store.add(trial(old.config["tile"] + 10_000))
    assert seen == 2500
    assert store.stats().trials == 2503


def test_best_is_the_fastest_verified_one(store: Store) -> None:
    store.add_many([trial(1, 3e-3), trial(2, 1e-3), trial(3, 5e-4, error=None), trial(4, 6e-4, error=1e-2)])
    found = store.best(CONV, LAPTOP)
    assert found == trial(2, 1e-3)
    assert store.best(CONV, LAPTOP, tolerance=0.1) == trial(4, 6e-4, error=1e-2)
    assert store.best(CONV, LAPTOP, usable=lambda t: t.config["tile"] != 2) == trial(1, 3e-3)
    assert store.best(CONV, LAPTOP, usable=lambda _: False) is None
    assert store.best(CONV, BOARD) is None
    assert store.best(DENSE, LAPTOP) is None


def test_the_dtype_says_how_large_an_error_may_be(store: Store) -> None:
    half = replace(CONV, dtype="float16")
    for workload in (CONV, half):
        store.add_many([trial(1, 2e-3, workload=workload), trial(2, 1e-3, error=5e-4, workload=workload)])
    assert store.best(CONV, LAPTOP) == trial(1, 2e-3)
    assert store.best(half, LAPTOP) == trial(2, 1e-3, error=5e-4, workload=half)


@pytest.mark.parametrize(
    ("later", "outdates"),
    [
        (trial(1, 9e-3, minute=5), True),
        (trial(1, 9e-3, error=0.5, minute=5), True),
        (trial(1, None, minute=5, kind=FailureKind.WRONG_ANSWER), True),
        (trial(1, None, minute=5, kind=FailureKind.DEVICE_LOST), False),
        (trial(1, None, minute=5, kind=FailureKind.UPLOAD), False),
        (trial(1, 9e-3, error=None, minute=5), False),
        (trial(1, 9e-3, minute=-5), True),  # added later: the first one's clock may be wrong
    ],
)
def test_the_latest_verdict_on_a_config_counts(store: Store, later: Trial, outdates: bool) -> None:
    store.add_many([trial(1, 1e-3), trial(2, 2e-3), later])
    found = store.best(CONV, LAPTOP)
    assert found is not None
    assert found.config == config(2 if outdates else 1)


def _expected_best(made: list[Trial], tolerance: float) -> float | None:
    """Seconds of the best by the definition, without SQL: throttled ones behind all others."""
    harmless = (FailureKind.DEVICE_LOST, FailureKind.UPLOAD)
    verdicts: dict[str, Trial] = {}
    withdrawn = {t.config.key for t in made if t.failure and t.failure.kind is FailureKind.WITHDRAWN}
    for t in made:
        if t.failure.kind not in harmless if t.failure else t.error is not None:
            verdicts[t.config.key] = t
    good = [
        t
        for key, t in verdicts.items()
        if key not in withdrawn and t.ok and t.error <= tolerance  # type: ignore[operator]
    ]
    return min(((t.throttled, t.seconds) for t in good), default=(False, None))[1]


histories = st.lists(
    st.builds(
        trial,
        tile=st.integers(0, 3),
        seconds=st.none() | st.sampled_from([1e-3, 2e-3, 3e-3]),
        error=st.sampled_from([None, 1e-6, 1.0]),
        minute=st.integers(0, 3),
        kind=st.sampled_from(FailureKind),
        throttled=st.booleans(),
    ),
    max_size=8,
)
_number = count()


@sharing
@given(histories)
def test_best_agrees_with_its_definition(store: Store, made: list[Trial]) -> None:
    workload = Workload("conv2d", {"batch": next(_number)})
    unique = dict.fromkeys(made)
    moved = [Trial(**{**vars_of(t), "workload": workload}) for t in unique]
    store.add_many(moved)
    found = store.best(workload, LAPTOP)
    assert (found.seconds if found else None) == _expected_best(moved, tolerance_of("float32"))


def vars_of(t: Trial) -> dict[str, object]:
    return {name: getattr(t, name) for name in Trial.__dataclass_fields__}


def test_trials_that_are_added_together_leave_the_journal(store: Store) -> None:
    store.begin(CONV, LAPTOP, [config(1), config(2), config(3)])
    one, two = trial(1), trial(2, None)
    assert store.add(one)
    assert store.add_together([one, two, trial(4, workload=DENSE)]) == [False, True, True]
    assert store.add_together([]) == []
    assert [e.config for e in store.in_flight()] == [config(3)]
    assert list(store.trials()) == [one, two, *store.trials(DENSE)]


def test_the_journal_holds_what_began_and_did_not_end(url: str) -> None:
    with open_db(url) as store:
        store.begin(CONV, LAPTOP, [config(1), config(2), config(3)], started=NOON)
        store.begin(DENSE, LAPTOP, [config(1)], started=NOON)
        store.begin(CONV, LAPTOP, [], started=NOON)
        store.add(trial(2))
    with open_db(url) as store:
        left = store.in_flight()
        assert [(e.workload, e.config) for e in left] == [(CONV, config(1)), (CONV, config(3)), (DENSE, config(1))]
        assert all(e.device == LAPTOP and ":" in e.owner for e in left)
        assert [(e.started - NOON).microseconds for e in left] == [0, 2, 0]  # in which order they are measured
        assert store.stats().in_flight == 3
        assert store.stats().trials == 1
        store.abandon(left[:1])
        store.add(trial(3, None))
        assert [(e.workload, e.config) for e in store.in_flight()] == [(DENSE, config(1))]


def test_beginning_again_renews_the_entry(store: Store) -> None:
    store.begin(CONV, LAPTOP, [config(1)], started=NOON)
    store.begin(CONV, LAPTOP, [config(1)], started=NOON + timedelta(hours=1))
    (entry,) = store.in_flight()
    assert entry.started == NOON + timedelta(hours=1)
    store.abandon([InFlight(CONV, LAPTOP, config(1), "elsewhere:1", NOON)])
    assert store.in_flight() == [entry]


def test_stats_workloads_and_devices(store: Store) -> None:
    store.begin(Workload("never", {}), DeviceKey("cpu", "never", "never"), [config(1)])
    assert store.stats().trials == store.stats().workloads == store.stats().devices == 0
    store.add_many([trial(1), trial(2, None), trial(3, None, kind=FailureKind.RUN), trial(4, workload=DENSE)])
    store.add(trial(5, device=BOARD))
    stats = store.stats()
    assert (stats.trials, stats.failures, stats.workloads, stats.devices) == (5, 2, 2, 2)
    assert stats.failures_by_kind == {"compile": 1, "run": 1}
    assert store.workloads() == [CONV, DENSE]
    assert store.workloads(BOARD) == [CONV]
    assert store.devices() == [LAPTOP, BOARD]
    assert store.devices("cpu", BOARD.family) == [BOARD]
    assert store.devices("cuda") == []


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("times", (float("inf"),), "finite"),
        ("times", (-1.0,), "positive"),
        ("seed", 2**63, "64 bits"),
        ("searcher", "a\0b", "cannot be printed"),
        ("created", NOON.replace(tzinfo=None), "no time zone"),
        ("device", DeviceKey("cpu", "\ud800", "m"), "cannot be printed"),
    ],
)
def test_a_trial_that_could_not_come_back_is_refused(store: Store, field: str, value: object, words: str) -> None:
    with pytest.raises(DatabaseError, match=words):
        store.add(Trial(**{**vars_of(trial()), field: value}))  # type: ignore[arg-type]
    assert store.stats().trials == 0


def test_an_error_that_is_no_number_is_without_bound(store: Store) -> None:
    store.add(trial(1, error=float("nan")))
    (back,) = store.trials()
    assert back.error == float("inf")
    assert store.best(CONV, LAPTOP, tolerance=1e9) is None


def test_an_interrupted_import_keeps_its_whole_batches(store: Store) -> None:
    def broken() -> object:
        for tile in range(5001):
            yield trial(tile)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.add_many(broken())  # type: ignore[arg-type]
    assert store.stats().trials == 5000


def test_imports_of_the_same_trials_in_opposite_orders_do_not_wait_for_each_other(url: str) -> None:
    made = [trial(tile, workload=Workload("conv2d", {"batch": tile % 200})) for tile in range(4000)]
    open_db(url).close()

    def add(some: list[Trial]) -> int:
        with open_db(url) as store:
            return store.add_many(some)

    with ThreadPoolExecutor(4) as pool:
        added = list(pool.map(add, [made, made[::-1], made, made[::-1]]))
    assert sum(added) == len(made)
    with open_db(url) as store:
        assert set(store.trials()) == set(made)

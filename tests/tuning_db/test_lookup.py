"""Look-ups fall back from the device to its family, nearest relative first, and say so."""

from __future__ import annotations

from tests.tuning_db.made import CONV, LAPTOP, trial
from tuning_db import lookup
from tuning_db.lookup import BestTrial
from tuning_db.record import DeviceKey
from tuning_db.store import Store


def device(model: str = "znver4", family: str = "x86_64-avx512", kind: str = "cpu", **attrs: int) -> DeviceKey:
    return DeviceKey(kind, family, model, attrs)


def test_the_device_itself_comes_first_however_slow(store: Store) -> None:
    own, relative = trial(1, 9e-3), trial(2, 1e-3, device=device(threads=8))
    store.add_many([relative, own])
    assert lookup.best(store, CONV, LAPTOP) == BestTrial(own, "device")


def test_then_the_nearest_relative_not_the_fastest(store: Store) -> None:
    other_model = trial(1, 1e-4, device=device("skylake", threads=2, limit=1))
    more_threads = trial(2, 2e-4, device=device(threads=8, limit=1))
    more_limit = trial(3, 5e-3, device=device(threads=2, limit=9))
    store.add_many([other_model, more_threads, more_limit])
    here = device(threads=2, limit=1)
    assert lookup.relatives(store, here)[-1] == other_model.device
    assert lookup.best(store, CONV, here, usable=lambda t: t != more_threads) == BestTrial(more_limit, "family")
    assert lookup.best(store, CONV, device("skylake", threads=4, limit=1)) == BestTrial(other_model, "family")


def test_of_one_model_the_device_with_most_equal_attributes_is_nearest(store: Store) -> None:
    here = device(limit=1, lanes=8, threads=2)
    alike = [
        device(limit=9, lanes=8, threads=2),
        device(limit=5, lanes=8, threads=4),
        device(limit=1, lanes=4, threads=1),
    ]
    alike.append(device("skylake", limit=1, lanes=8, threads=2))  # another model is less alike than any of these
    store.add_many([trial(i, device=d) for i, d in enumerate(alike)])
    found = lookup.relatives(store, here)
    assert (found[0], found[-1]) == (alike[0], alike[-1])
    assert set(found) == set(alike)


def test_a_relative_without_a_usable_trial_is_passed_over(store: Store) -> None:
    store.add_many(
        [
            trial(1, None, device=device(threads=3)),
            trial(2, 1e-3, error=None, device=device(threads=4)),
            trial(3, 1e-3, error=0.5, device=device(threads=5)),
            trial(4, 2e-3, device=device("skylake")),
        ]
    )
    found = lookup.best(store, CONV, LAPTOP)
    assert found is not None
    assert (found.trial.config["tile"], found.source) == (4, "family")
    assert lookup.best(store, CONV, LAPTOP, usable=lambda t: t.template_version == 2) is None


def test_other_families_and_kinds_are_no_relatives(store: Store) -> None:
    store.add_many([trial(1, device=device(family="aarch64-neon")), trial(2, device=device(kind="opencl"))])
    assert lookup.best(store, CONV, LAPTOP) is None

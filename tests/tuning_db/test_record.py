"""Keys are canonical: equal things have equal keys, other things other keys, and a key says all there is."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tuning_db.made import trial
from tests.tuning_db.strategies import configs, devices, mappings, numbers, workloads
from tuning_db.record import Config, DeviceKey, Failure, FailureKind, Trial, Workload


def test_the_key_does_not_depend_on_the_order_of_attributes() -> None:
    first = Workload("conv2d", {"batch": 1, "kernel": (3, 3)})
    second = Workload("conv2d", {"kernel": [3, 3], "batch": 1})
    assert first == second
    assert first.key == second.key
    assert first.key == '{"attrs":{"batch":1,"kernel":[3,3]},"dtype":"float32","epilogue":[],"op":"conv2d"}'


@given(mappings, st.randoms())
def test_no_order_of_attributes_changes_a_key(attrs: dict, random: object) -> None:
    names = list(attrs)
    random.shuffle(names)  # type: ignore[attr-defined]
    shuffled = {name: attrs[name] for name in names}
    assert Config("t", attrs).key == Config("t", shuffled).key
    assert Config("t", attrs) == Config("t", shuffled)


@given(st.integers(-(2**53), 2**53))
def test_a_whole_float_is_the_same_value_as_its_int(number: int) -> None:
    as_int, as_float = Config("t", {"n": number}), Config("t", {"n": float(number)})
    assert (as_int, as_int.key, hash(as_int)) == (as_float, as_float.key, hash(as_float))


@given(numbers, numbers)
def test_values_are_equal_exactly_when_their_keys_are(a: object, b: object) -> None:
    first, second = Config("t", {"n": a}), Config("t", {"n": b})
    assert (first == second) == (first.key == second.key)


def test_true_is_not_one() -> None:
    assert Config("t", {"unroll": True}) != Config("t", {"unroll": 1})
    assert Config("t", {"unroll": True}).key != Config("t", {"unroll": 1}).key


def test_values_of_other_libraries_become_plain_ones() -> None:
    assert Config("t", {"n": np.float64(2.5)}).key == '{"knobs":{"n":2.5},"template":"t"}'
    assert Config("t", {"n": FailureKind.RUN}).key == '{"knobs":{"n":"run"},"template":"t"}'


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_value_that_is_not_finite_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="not finite"):
        Config("t", {"n": value})


@pytest.mark.parametrize("value", [None, {"a": 1}, object()])
def test_a_value_that_cannot_be_a_key_is_refused(value: object) -> None:
    with pytest.raises(TypeError, match="cannot be part of a key"):
        Config("t", {"n": value})


@given(st.one_of(workloads, devices, configs))
def test_a_key_decodes_to_what_it_came_from(value: Workload | DeviceKey | Config) -> None:
    again = type(value).from_dict(json.loads(value.key))
    assert again == value
    assert again.key == value.key
    assert hash(again) == hash(value)


def test_a_trial_has_either_times_or_a_failure() -> None:
    good = trial()
    with pytest.raises(ValueError, match="either times or a failure"):
        Trial(good.workload, good.device, good.config, 1)
    with pytest.raises(ValueError, match="either times or a failure"):
        Trial(good.workload, good.device, good.config, 1, (1.0,), Failure(FailureKind.RUN, ""))


def test_seconds_are_the_median_and_failures_sort_last() -> None:
    assert trial(seconds=2e-3).seconds == 2e-3
    assert sorted([trial(seconds=None), trial(seconds=1.0)], key=lambda t: t.seconds)[0].ok

"""Invariants of knobs and spaces, over random spaces."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from templates.space import Constraint, Knob, SearchSpace, Space
from tuning_db.record import Config

sizes = st.lists(st.integers(1, 5), min_size=1, max_size=4)


def _space(name: str, counts: list[int], modulus: int) -> Space:
    knobs = tuple(Knob(f"k{i}", tuple(range(1, n + 1))) for i, n in enumerate(counts))
    sums = Constraint("the sum is a multiple", lambda v: sum(v.values()) % modulus != 0 or modulus == 1)
    return Space(name, knobs, (sums,), seeds=({"k0": 1},))


@given(sizes, st.integers(1, 4), st.integers(0, 2**16))
def test_enumeration_sampling_and_validity_agree(counts: list[int], modulus: int, seed: int) -> None:
    space = _space("a", counts, modulus)
    everything = list(space)
    assert len(everything) == len(set(everything)) <= space.raw_size
    assert all(space.is_valid(c) for c in everything)
    rng = random.Random(seed)
    for _ in range(5):
        sample = space.sample(rng)
        assert (sample in everything) if everything and sample else (sample is None or not everything)


@given(sizes, sizes, st.integers(0, 2**16))
def test_union_knows_whose_config_it_is(left: list[int], right: list[int], seed: int) -> None:
    union = SearchSpace((_space("a", left, 1), _space("b", right, 1)))
    assert len(list(union)) == union.raw_size
    sample = union.sample(random.Random(seed))
    assert sample is not None
    assert union.space_of(sample).template == sample.template
    names, rows = union.encode([sample, *union.seed_configs()])
    assert all(len(row) == len(names) for row in rows)
    assert f"is.{sample.template}" in names


def test_reasons_are_said() -> None:
    space = _space("a", [3, 3], 2)
    assert space.why_invalid(Config("b", {})) == "config is for template b, not a"
    assert "knobs" in space.why_invalid(Config("a", {"k0": 1}))
    assert "k1=9" in space.why_invalid(Config("a", {"k0": 1, "k1": 9}))
    assert space.why_invalid(Config("a", {"k0": 1, "k1": 1})) == "the sum is a multiple"


def test_knobs_refuse_duplicates_and_nothing() -> None:
    for values in ((), (1, 1)):
        with pytest.raises(ValueError, match="knob k"):
            Knob("k", values)


def test_crossover_takes_every_knob_from_a_parent() -> None:
    space = _space("a", [5, 5, 5], 1)
    a, b = Config("a", {"k0": 1, "k1": 1, "k2": 1}), Config("a", {"k0": 5, "k1": 5, "k2": 5})
    child = space.crossover(a, b, random.Random(0))
    assert child is not None
    assert all(child[k] in (a[k], b[k]) for k in child.knobs)

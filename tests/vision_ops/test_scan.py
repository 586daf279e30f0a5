"""Prefix sums, products and maxima along any axis."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from templates.template import template_named
from tests.vision_ops.support import Compiled, Place, configs_of, place
from tuning_db.record import Config
from vision_ops.scan import Scan, ScanOperator
from vision_ops.sweeps import KINDS

__all__ = ["place"]
TEMPLATE = template_named("vision.scan")


def _error(scan: Scan, where: Place, config: Config, dtype: str, seed: int = 0) -> float:
    workload = scan.workload(dtype)
    inputs = ScanOperator().random_inputs(workload, np.random.default_rng(seed))
    return Compiled.of(workload, config, where).error(*inputs)


@pytest.mark.parametrize("dtype", TEMPLATE.dtypes)
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_with_every_seed(place: Place, kind: str, dtype: str) -> None:
    scan = Scan(2, 1009, 3, kind, exclusive=kind == "sum", reverse=kind == "product")
    for config in configs_of(scan.workload(dtype), place.target):
        assert _error(scan, place, config, dtype) <= 1e-5


def test_long_axes_with_sampled_configs(place: Place) -> None:
    scan = Scan(1, 100_003)
    for config in configs_of(scan.workload(), place.target, samples=6):
        assert _error(scan, place, config, "float32") <= 1e-5


def test_a_million(place: Place) -> None:
    scan = Scan(1, 1_000_000, kind="sum")
    config = configs_of(scan.workload("int32"), place.target)[0]
    assert _error(scan, place, config, "int32") == 0


@settings(max_examples=25, deadline=None)
@given(
    outer=st.integers(1, 4),
    length=st.integers(1, 700),
    inner=st.integers(1, 4),
    kind=st.sampled_from(KINDS),
    dtype=st.sampled_from(TEMPLATE.dtypes),
    exclusive=st.booleans(),
    reverse=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_any_scan_with_any_config(
    outer: int, length: int, inner: int, kind: str, dtype: str, exclusive: bool, reverse: bool, seed: int
) -> None:
    scan, host = Scan(outer, length, inner, kind, exclusive, reverse), Place.named("host")
    config = configs_of(scan.workload(dtype), host.target, samples=3, seed=seed)[-1]
    assert _error(scan, host, config, dtype, seed) <= 1e-5


@pytest.mark.parametrize("kind", KINDS)
def test_a_nan_stays_and_infinities_add_up(place: Place, kind: str) -> None:
    workload = Scan(1, 100, kind=kind).workload()
    data = np.ones((1, 100, 1), np.float32)
    data[0, 30], data[0, 60] = np.inf, np.nan
    for config in configs_of(workload, place.target):
        (out,) = Compiled.of(workload, config, place)(data)
        assert np.isfinite(out[0, :30]).all()
        assert np.isposinf(out[0, 30:60]).all()
        assert np.isnan(out[0, 60:]).all()


def test_integers_wrap_around(place: Place) -> None:
    workload = Scan(1, 50, kind="product").workload("int32")
    data = np.full((1, 50, 1), 3, np.int32)
    for config in configs_of(workload, place.target):
        assert Compiled.of(workload, config, place).error(data) == 0


def test_nothing_is_done_where_nothing_is() -> None:
    assert TEMPLATE.space(Scan(0, 5).workload(), Place.named("host").target) is None
    assert TEMPLATE.space(Scan(3, 0).workload(), Place.named("host").target) is None


@pytest.mark.parametrize("wrong", [{"kind": "mean"}, {"outer": -1}, {"inner": -2}])
def test_what_is_no_scan_is_refused(wrong: dict) -> None:
    with pytest.raises(ValueError, match="scan: "):
        Scan(**{"outer": 1, "length": 4, **wrong})

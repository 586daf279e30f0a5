"""Trials made up for tests: `trial` with sensible defaults, and hypothesis strategies for any of them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

from hypothesis import strategies as st

from tuning_db.record import Config, DeviceKey, Failure, FailureKind, Trial, Workload

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
CONV = Workload("conv2d", {"batch": 1, "in_channels": 64, "kernel": (3, 3)}, ("bias", "relu"))
LAPTOP = DeviceKey("cpu", "x86_64-avx512", "znver4", {"threads": 2})


def config(tile: Any = 1, template: str = "direct") -> Config:
    return Config(template, {"tile": tile})


def trial(
    tile: Any = 1,
    seconds: float | None = 1e-3,
    error: float | None = 1e-6,
    minute: float = 0,
    workload: Workload = CONV,
    device: DeviceKey = LAPTOP,
    kind: FailureKind = FailureKind.COMPILE,
    version: int = 1,
) -> Trial:
    """One trial of config(tile); `seconds=None` makes it a failure of `kind`. `minute`: created so long after NOON."""
    failed = seconds is None
    return Trial(
        workload,
        device,
        config(tile),
        version,
        times=() if seconds is None else (seconds, seconds, 2 * seconds),
        failure=Failure(kind, "it broke") if failed else None,
        error=None if failed else error,
        seed=7,
        searcher="random",
        versions={"edgetune": "0.1.0"},
        created=NOON + timedelta(minutes=minute),
    )


words = st.text(st.characters(categories=["L", "N", "P"]), min_size=1, max_size=12)
numbers = st.one_of(st.booleans(), st.integers(-(2**70), 2**70), st.floats(allow_nan=False, allow_infinity=False))
scalars = st.one_of(numbers, st.text(st.characters(), max_size=12))
mappings = st.dictionaries(
    st.text(st.characters(), max_size=8), st.one_of(scalars, st.lists(scalars, max_size=4)), max_size=5
)
seconds = st.floats(1e-9, 1e6, allow_nan=False)
moments = st.datetimes(
    datetime(1, 1, 2),
    datetime(9999, 12, 30),
    timezones=st.sampled_from([UTC, timezone(timedelta(hours=5, minutes=30))]),
)
workloads = st.builds(Workload, words, mappings, st.lists(words, max_size=3).map(tuple), words)
devices = st.builds(DeviceKey, words, words, words, mappings)
configs = st.builds(Config, words, mappings)
failures = st.builds(Failure, st.sampled_from(FailureKind), st.text(st.characters(), max_size=40))


@st.composite
def trials(draw: st.DrawFn) -> Trial:
    """Any trial that can be: attributes of all types, messages of any characters, times in any zone."""
    failure = draw(st.none() | failures)
    return Trial(
        draw(workloads),
        draw(devices),
        draw(configs),
        draw(st.integers(0, 2**31)),
        times=() if failure else tuple(draw(st.lists(seconds, min_size=1, max_size=6))),
        failure=failure,
        error=draw(st.none() | st.floats(0, allow_nan=False)),
        seed=draw(st.none() | st.integers(-(2**63), 2**63 - 1)),
        searcher=draw(st.none() | words),
        versions=draw(mappings),
        created=draw(moments),
    )

"""Hypothesis strategies: any workload, device, config and trial that can be."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

from hypothesis import strategies as st

from tuning_db.record import Config, DeviceKey, Failure, FailureKind, Trial, Workload

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

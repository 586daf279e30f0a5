"""When repetition stops, and what stands for the times."""

from __future__ import annotations

import random
from statistics import median

from hypothesis import given
from hypothesis import strategies as st

from board_agent.timing import (
    BURST_CALLS,
    BURST_MOST,
    BURST_SECONDS,
    Repetition,
    burst,
    in_repeats,
    median_interval,
    repeat,
)

POLICY = Repetition()
SECONDS = st.floats(1e-7, 10.0)


def calls(times):
    """A call() that takes the given seconds, one after the other, for ever."""
    state = iter(times[i % len(times)] for i in range(10**6))
    return lambda: next(state)


def noisy(middle, spread, seed):
    rng = random.Random(seed)
    return lambda: middle * (1 + abs(rng.gauss(0, spread)))


@given(st.lists(SECONDS, min_size=1, max_size=50), st.none() | SECONDS)
def test_repeat_ends_with_at_least_one_time(times, best):
    made = repeat(calls(times), POLICY, best)
    assert 1 <= len(made) <= POLICY.most
    assert all(time in times for time in made)
    # No call is made once the budget of seconds is used up, apart from a second opinion.
    assert len(made) <= 2 or sum(made[:-1]) < POLICY.seconds


def test_clearly_worse_is_given_up_after_few_calls():
    assert len(repeat(calls([2e-3]), POLICY, best_seconds=1e-3)) == POLICY.least


def test_much_too_slow_is_given_up_at_once():
    assert len(repeat(calls([5.0]), POLICY, best_seconds=1e-3)) == 1


def test_slow_without_a_best_gets_a_second_opinion():
    assert len(repeat(calls([5.0]), POLICY)) == 2


def test_one_slow_call_does_not_make_a_candidate_worse():
    assert len(repeat(calls([9e-3] + [1e-3] * 20), POLICY, best_seconds=1e-3)) > POLICY.least


def test_steady_times_stop_soon_and_noisy_ones_near_the_best_go_on():
    steady = repeat(noisy(1e-4, 0.001, 1), POLICY, best_seconds=1e-4)
    shaky = repeat(noisy(1e-4, 0.3, 1), POLICY, best_seconds=1.2e-4)
    far = repeat(noisy(1.3e-4, 0.05, 1), POLICY, best_seconds=1e-4)
    assert len(steady) < 12
    assert len(far) < len(shaky)
    low, high = median_interval(shaky)
    assert len(shaky) == POLICY.most or (high - low) / 2 <= POLICY.precision * median(shaky)


@given(st.lists(SECONDS, min_size=1, max_size=400))
def test_median_interval_contains_the_median(times):
    low, high = median_interval(times)
    assert min(times) <= low <= median(times) <= high <= max(times)


def test_median_interval_holds_the_true_median_nineteen_times_in_twenty():
    rng = random.Random(0)
    held = 0
    for _ in range(400):
        low, high = median_interval([rng.expovariate(1.0) for _ in range(41)])
        held += low <= 0.6931 <= high
    assert 0.92 <= held / 400 <= 0.99


@given(st.lists(SECONDS, min_size=1, max_size=400), st.integers(1, 20))
def test_in_repeats_stands_for_all_times(times, repeats):
    values = in_repeats(times, repeats)
    assert len(values) == min(repeats, len(times))
    assert min(times) <= min(values) <= max(values) <= max(times)
    if len(times) <= repeats:
        assert values == times


@given(st.lists(SECONDS, min_size=1, max_size=50))
def test_a_burst_ends_by_its_seconds_and_a_fast_kernel_by_its_calls(times):
    made = []
    call = calls(times)

    def run():
        made.append(call())
        return made[-1]

    middle = burst(run)
    timed = made[1:]  # the first brings code and data back
    assert middle == median(timed)
    assert BURST_CALLS <= len(timed) <= BURST_MOST
    assert len(timed) == BURST_CALLS or sum(timed[:-1]) < BURST_SECONDS + 1e-9
    assert len(timed) == BURST_MOST or sum(timed) >= BURST_SECONDS - 1e-9

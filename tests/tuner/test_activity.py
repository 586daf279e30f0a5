"""Who listens hears what is being done, what surrounds it, and how far it is."""

from __future__ import annotations

import pytest

from tuner.activity import Activity, activity, listening


def test_changes_are_heard_in_order() -> None:
    heard: list[Activity | None] = []
    with listening(heard.append), activity("planning", 2) as done:
        with activity("timing"):
            pass
        done(1, "detail")
    assert heard == [
        Activity("planning", 0, 2),
        Activity("timing"),
        Activity("planning", 0, 2),
        Activity("planning", 1, 2, "detail"),
        None,
    ]


def test_nothing_is_heard_before_and_after() -> None:
    heard: list[Activity | None] = []
    with activity("before"):
        with listening(heard.append):
            pass
        with activity("after"):
            pass
    assert heard == []


def test_an_activity_that_fails_is_over() -> None:
    heard: list[Activity | None] = []
    with listening(heard.append):
        with pytest.raises(ValueError, match="wrong"), activity("failing"):
            raise ValueError("wrong")
        with activity("next"):
            pass
    assert heard == [Activity("failing"), None, Activity("next"), None]


def test_what_a_listener_raises_stops_the_work() -> None:
    def stop(said: Activity | None) -> None:
        if said is not None and said.done == 1:
            raise InterruptedError("enough")

    worked = []

    @activity("counting")
    def count() -> None:
        with activity("number", 3) as done:
            for number in range(3):
                done(number)
                worked.append(number)

    with listening(stop), pytest.raises(InterruptedError, match="enough"):
        count()
    assert worked == [0]


def test_a_decorated_function_says_so_at_each_call() -> None:
    @activity("squaring")
    def squared(number: int) -> int:
        return number * number

    heard: list[Activity | None] = []
    with listening(heard.append):
        assert [squared(2), squared(3)] == [4, 9]
    assert heard == [Activity("squaring"), None] * 2

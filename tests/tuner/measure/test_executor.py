"""What is launched for a time on an accelerator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from board_agent.timing import Repetition
from tuner.measure.targets import executor as executor


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """How, and with which copy of its weight."""
    launches: list[tuple[str, int]] = []

    def timed(_device: Any, _function: Any, weight: int) -> float:
        launches.append(("timed", weight))
        return 1e-3

    monkeypatch.setattr(executor, "runtime_device", lambda name: name)
    monkeypatch.setattr(executor, "timed_call", timed)
    return launches


def repeated(device: str, launches: list[tuple[str, int]]) -> None:
    copies: Iterator[int] = iter(range(1000))

    def function(weight: int) -> None:
        launches.append(("before", weight))

    accelerator = executor.Accelerator(device)
    accelerator.call(function, lambda: [next(copies)])
    assert launches == [("timed", 0)]
    launches.clear()
    accelerator.repeat(function, lambda: [next(copies)], Repetition(seconds=2e-3), None)


def test_a_gpu_has_work_when_time_starts(launched: list[tuple[str, int]]) -> None:
    """As in a network. Neither call has the other's weight in the cache."""
    repeated("cuda:0", launched)
    assert launched
    assert [how for how, _ in launched] == ["before", "timed"] * (len(launched) // 2)
    assert [copy for _, copy in launched] == list(range(1, 1 + len(launched)))


def test_an_opencl_queue_holds_one_call(launched: list[tuple[str, int]]) -> None:
    repeated("opencl:0", launched)
    assert {how for how, _ in launched} == {"timed"}

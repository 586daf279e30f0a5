"""What this host keeps of its boards: their faults, from run to run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuner.devices.board import Boards, Record
from tuner.devices.board.boards import FAULT_SECONDS, MOST_FAULTS, QUARANTINE_SECONDS


class Clock:
    now = 1e9

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def boards(tmp_path: Path, clock: Clock) -> Boards:
    made = Boards(tmp_path, clock)
    made.add("pi", "127.0.0.1", 9190, "pairing", b"", b"")
    return made


def test_a_board_is_in_quarantine_after_repeated_faults(boards: Boards, clock: Clock, tmp_path: Path) -> None:
    for count in range(1, MOST_FAULTS):
        boards.note_fault("pi")
        assert boards.record("pi") == Record(count, 0.0)
        clock.now += 1
    boards.note_fault("pi")
    clock.now += 60
    assert Boards(tmp_path, clock).record("pi") == Record(MOST_FAULTS, QUARANTINE_SECONDS - 60)  # another run
    assert str(boards.record("pi")) == "in quarantine for 240 s, after 5 faults"
    clock.now += QUARANTINE_SECONDS
    assert boards.record("pi") == Record(MOST_FAULTS, 0.0)
    clock.now += FAULT_SECONDS
    assert boards.record("pi") == Record()


def test_faults_now_and_then_are_none(boards: Boards, clock: Clock) -> None:
    for _ in range(3 * MOST_FAULTS):
        boards.note_fault("pi")
        assert boards.record("pi").quarantine == 0.0
        clock.now += FAULT_SECONDS / (MOST_FAULTS - 1)


def test_a_clock_that_was_set_keeps_no_board_away(boards: Boards, clock: Clock) -> None:
    for _ in range(MOST_FAULTS):
        boards.note_fault("pi")
    clock.now -= 30 * 365 * 86400
    assert boards.record("pi") == Record()
    boards.note_fault("pi")
    assert boards.record("pi") == Record(1)


def test_faults_are_forgiven(boards: Boards) -> None:
    for _ in range(MOST_FAULTS):
        boards.note_fault("pi")
    boards.forgive("pi", 1)
    assert boards.record("pi") == Record(MOST_FAULTS - 1)
    boards.forgive("pi")
    assert boards.record("pi") == Record()
    boards.note_fault("pi")
    boards.add("pi", "127.0.0.1", 9190, "another", b"", b"")  # paired again
    assert boards.record("pi") == Record()
    boards.forget("pi")
    boards.note_fault("pi")  # by a run that goes on
    assert list(boards) == []

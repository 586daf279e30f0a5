"""The line before a board: who is next, whoever dies, and however many connections a pairing has."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from board_agent.turn_queue import MOST, MOST_OF_ONE, Full, QueueEntry, TurnQueue


@pytest.fixture
def line(tmp_path: Path) -> TurnQueue:
    return TurnQueue(tmp_path / "line")


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def came(line: TurnQueue, stack: ExitStack, *pairings: str) -> list[QueueEntry]:
    """Connections that wait, in this order."""
    entries_in_line = [stack.enter_context(line.enter(name)) for name in pairings]
    for entry in entries_in_line:
        entry.wait()
    return entries_in_line


def turns(entries_in_line: dict[str, QueueEntry], count: int) -> list[str]:
    """Who has the board, where everybody comes again when a turn is over."""
    seen = []
    for _ in range(count):
        (name,) = [name for name, entry in entries_in_line.items() if entry.look().place == 0]
        seen.append(name)
        entries_in_line[name].rest()
        entries_in_line[name].wait()
    return seen


def test_first_come_first_served(line: TurnQueue, stack: ExitStack) -> None:
    alice, bob, carol = came(line, stack, "alice", "bob", "carol")
    assert bob.look() == (2, "", 3)
    assert alice.look() == (0, "alice", 2)
    assert [v.look() for v in (alice, bob, carol)] == [(0, "alice", 2), (1, "alice", 2), (2, "alice", 2)]
    alice.rest()
    assert [v.look() for v in (alice, carol, bob)] == [(0, "", 2), (2, "", 2), (0, "bob", 1)]


def test_who_does_not_wait_has_the_board_only_where_nobody_wants_it(line: TurnQueue, stack: ExitStack) -> None:
    passing = stack.enter_context(line.enter("carol"))
    alice, bob = came(line, stack, "alice", "bob")
    assert not passing.take()
    assert alice.look().place == 0
    alice.rest()
    assert not passing.take()
    assert bob.look() == (0, "bob", 0)
    bob.rest()
    assert passing.take()
    assert passing.look() == (0, "carol", 0)


def test_who_comes_again_is_last(line: TurnQueue, stack: ExitStack) -> None:
    names = ("alice", "bob", "carol")
    entries_in_line = dict(zip(names, came(line, stack, *names), strict=True))
    assert turns(entries_in_line, 7) == [*names, *names, "alice"]


def test_many_connections_of_one_are_one_turn_in_two(line: TurnQueue, stack: ExitStack) -> None:
    made = came(line, stack, "alice", "alice", "alice", "bob")
    entries_in_line = dict(zip(("alice1", "alice2", "alice3", "bob"), made, strict=True))
    assert turns(entries_in_line, 8) == ["alice1", "bob", "alice2", "bob", "alice3", "bob", "alice1", "bob"]


def test_places_do_not_grow_while_one_waits(line: TurnQueue, stack: ExitStack) -> None:
    first, *_ = came(line, stack, "alice", "alice")
    assert first.look().place == 0
    (bob,) = came(line, stack, "bob")
    came(line, stack, "alice", "carol")
    assert bob.look().place == 1
    first.rest()
    first.wait()
    assert bob.look().place == 0


def process(line: TurnQueue, pairing: str) -> subprocess.Popen[str]:
    """Another process in line; it says when it is there, and what it found when it has looked."""
    text = (
        "import sys; from pathlib import Path; from board_agent.turn_queue import TurnQueue\n"
        "entry = TurnQueue(Path(sys.argv[1])).enter(sys.argv[2]); entry.wait()\n"
        "for _ in iter(lambda: print(entry.look().place, flush=True) or sys.stdin.readline(), ''): pass\n"
    )
    made = subprocess.Popen(
        [sys.executable, "-c", text, line._folder, pairing],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert made.stdout is not None
    assert made.stdout.readline().strip().isdigit()
    return made


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_process_that_is_killed_leaves_its_place(line: TurnQueue, stack: ExitStack, how: signal.Signals) -> None:
    measuring = stack.enter_context(process(line, "alice"))
    waiting = stack.enter_context(process(line, "alice"))
    (bob,) = came(line, stack, "bob")
    (carol,) = came(line, stack, "carol")
    assert (bob.look(), carol.look().place) == ((1, "alice", 3), 2)
    waiting.send_signal(how)
    waiting.wait()
    assert bob.look() == (1, "alice", 2)
    measuring.send_signal(how)
    measuring.wait()
    assert bob.look() == (0, "bob", 1)
    assert carol.look() == (1, "bob", 1)


def test_who_was_killed_while_it_measured_had_its_turn(line: TurnQueue, stack: ExitStack) -> None:
    measuring = stack.enter_context(process(line, "alice"))
    again, bob = came(line, stack, "alice", "bob")
    measuring.kill()
    measuring.wait()
    assert (again.look().place, bob.look().place) == (2, 0)


def test_connections_are_bounded(line: TurnQueue, stack: ExitStack) -> None:
    came(line, stack, *["alice"] * MOST_OF_ONE)
    with pytest.raises(Full, match=f"has {MOST_OF_ONE} connections"):
        line.enter("alice")
    for i in range(MOST - MOST_OF_ONE):
        stack.enter_context(line.enter(f"host{i // MOST_OF_ONE}"))
    with pytest.raises(Full, match=f"{MOST} connections are open"):
        line.enter("one-more")


def test_a_full_line_has_room_again_when_one_leaves(line: TurnQueue, stack: ExitStack) -> None:
    came(line, stack, *["alice"] * (MOST_OF_ONE - 1))
    with line.enter("alice"), pytest.raises(Full):
        line.enter("alice")
    with line.enter("alice"):
        pass


def test_the_folder_does_not_grow(line: TurnQueue, stack: ExitStack) -> None:
    names = ("alice", "bob")
    entries_in_line = dict(zip(names, came(line, stack, *names), strict=True))
    turns(entries_in_line, 20)
    assert len(os.listdir(line._folder)) <= 5  # a lock, two who wait, when two were served

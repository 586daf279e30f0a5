"""Turns on one board, as hosts see them over the wire: in line, and at the end of a turn."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from board_agent.serve import main
from board_agent.turn_queue import MOST_OF_ONE
from tests.board_agent.support import Agent, eventually
from tuner.devices.board import Board, BoardBusy, Boards, Link, Standing
from tuner.errors import TurnOver

SETTINGS = {"device": "cpu", "form": "library", "threads": 1, "memory_bytes": 1 << 30}
HANG = 600.0  # seconds after which something that has to happen never will
TURN = 1.0  # of an agent whose turns end in tests; with any other they last for longer than one
USERS = ("alice", "bob", "carol")


@contextlib.contextmanager
def shared_agent(folder: Path, *more: str) -> Iterator[tuple[Agent, dict[str, Board]]]:
    """An agent that three users are paired with."""
    agent, boards = Agent(folder), {}
    with pytest.MonkeyPatch.context() as patch:
        for user in USERS:
            patch.setenv("LOGNAME", user)
            boards[user] = agent.introduce(Boards(folder / user), "pi")
    agent.start(*more)
    try:
        yield agent, boards
    finally:
        agent.stop()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Agent, dict[str, Board]]]:
    with shared_agent(Path(tmp_path_factory.mktemp("shared"))) as found:
        yield found


@pytest.fixture(scope="module")
def shared_by_the_second(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Board]]:
    with shared_agent(Path(tmp_path_factory.mktemp("brief")), "--turn", str(TURN)) as (_, found):
        yield found


def free(boards: dict[str, Board]) -> dict[str, Board]:
    """Returns when what an earlier test left is cleared up."""
    eventually(lambda: standing(boards["alice"]) == Standing(0, "", 0))
    return boards


@pytest.fixture
def boards(shared) -> dict[str, Board]:
    return free(shared[1])


@pytest.fixture
def brief(shared_by_the_second) -> dict[str, Board]:
    """The boards of an agent with short turns."""
    return free(shared_by_the_second)


def standing(board: Board) -> Standing:
    with Link(board) as link:
        return link.standing


class Waiter(threading.Thread):
    """A host that wants the board: `seen` is how things stood while it waited, `done` is set when it has it."""

    def __init__(self, board: Board) -> None:
        super().__init__(daemon=True)
        self.link, self.seen, self.has_it = Link(board), list[Standing](), threading.Event()
        self.start()

    def run(self) -> None:
        self.link.start(SETTINGS, 60.0, self.seen.append)
        self.has_it.set()


def measuring(board: Board) -> Link:
    link = Link(board)
    link.start(SETTINGS, 60.0)
    return link


def test_alone_a_turn_has_no_end(brief) -> None:
    with measuring(brief["alice"]) as link:
        for _ in range(6):
            time.sleep(TURN / 2)
            link.ask({"do": "ready"})


def test_in_line_a_host_hears_its_place_and_comes_first_come_first_served(boards) -> None:
    first = measuring(boards["alice"])
    bob = Waiter(boards["bob"])
    eventually(lambda: bool(bob.seen))
    carol = Waiter(boards["carol"])
    eventually(lambda: bool(carol.seen))
    assert (bob.seen[0].place, carol.seen[0].place) == (1, 2)
    assert str(carol.seen[0]).startswith("alice-")
    assert str(carol.seen[0]).endswith(" measures, 2 wait")
    first.close()
    assert bob.has_it.wait(HANG)
    assert not carol.has_it.is_set()
    bob.link.close()
    assert carol.has_it.wait(HANG)
    carol.link.close()
    carol.join()


def test_others_see_who_measures_and_ask_without_waiting(boards) -> None:
    with measuring(boards["alice"]), Link(boards["bob"]) as link:
        assert link.standing.measures == boards["alice"].pairing
        assert link.facts["cpus"]
        assert "free_bytes" in link.ask({"do": "condition"})[0]
        with pytest.raises(BoardBusy, match=r"alice-.* measures"):
            link.start(SETTINGS, 60.0)
        assert "free_bytes" in link.ask({"do": "condition"})[0]


def test_who_only_asks_takes_nobodys_turn(brief) -> None:
    with measuring(brief["alice"]) as link, Link(brief["bob"]) as asks:
        time.sleep(1.5 * TURN)
        with pytest.raises(BoardBusy):
            asks.start(SETTINGS, 60.0)
        link.ask({"do": "ready"})


def test_an_idle_host_loses_the_board_and_hears_so_with_its_next_request(brief) -> None:
    with measuring(brief["alice"]) as link:
        bob = Waiter(brief["bob"])
        assert bob.has_it.wait(HANG)
        with pytest.raises(TurnOver, match=f"turn of {TURN:g} s is over"):
            link.ask({"do": "ready"})
        alice_again = threading.Thread(target=link.start, args=(SETTINGS, 60.0, print))
        alice_again.start()
        bob.link.close()
        alice_again.join()
        link.ask({"do": "ready"})


def prepare_without_end(link: Link) -> None:
    while True:
        link.ask({"do": "ready"})
        time.sleep(0.05)


def test_a_host_that_is_busy_preparing_keeps_the_board_for_five_turns_at_most(brief) -> None:
    began = time.monotonic()
    with measuring(brief["alice"]) as link:
        bob = Waiter(brief["bob"])
        with pytest.raises(TurnOver):
            prepare_without_end(link)
        assert time.monotonic() - began >= 5 * TURN
        assert bob.has_it.wait(HANG)
        bob.link.close()


def test_a_killed_host_frees_its_place(boards) -> None:
    first = measuring(boards["alice"])
    text = (
        "import sys; from pathlib import Path; from tuner.devices.board import Boards, Link\n"
        "link = Link(Boards(Path(sys.argv[1]))['pi'])\n"
        f"link.start({SETTINGS!r}, 60.0, lambda standing: print(standing.place, flush=True))"
    )
    folder = boards["bob"].ours.parent.parent
    with subprocess.Popen([sys.executable, "-c", text, folder], stdout=subprocess.PIPE, text=True) as bob:
        assert bob.stdout is not None
        assert bob.stdout.readline() == "1\n"
        carol = Waiter(boards["carol"])
        eventually(lambda: bool(carol.seen))
        assert carol.seen[0].place == 2
        bob.send_signal(signal.SIGKILL)
        bob.wait()
    first.close()
    assert carol.has_it.wait(HANG)
    carol.link.close()


def test_a_pairing_has_so_many_connections_and_no_more(boards) -> None:
    links = [Link(boards["alice"]) for _ in range(MOST_OF_ONE)]
    try:
        with pytest.raises(BoardBusy, match=f"has {MOST_OF_ONE} connections to it already"):
            Link(boards["alice"])
        assert standing(boards["bob"]) == Standing(0, "", 0)
    finally:
        for link in links:
            link.close()


def test_an_agent_that_is_started_again_knows_nobody_in_line(shared, boards) -> None:
    agent, _ = shared
    link = measuring(boards["alice"])
    waiter = Link(boards["bob"])
    agent.stop(signal.SIGKILL)
    agent.start()
    eventually(lambda: standing(boards["carol"]) == Standing(0, "", 0))
    with measuring(boards["carol"]):
        pass
    link.close()
    waiter.close()


@pytest.mark.parametrize(("option", "most"), [("--turn", ""), ("--alive", ", 60 at most")])
@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf"])
def test_seconds_that_are_none_are_refused(
    option: str, most: str, seconds: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([option, seconds])
    assert ended.value.code == 2
    said = capsys.readouterr().err.splitlines()[-1].partition("error: ")[2]
    assert said == f"{option} must be a positive number of seconds{most}, not {seconds}"

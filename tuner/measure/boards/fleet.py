"""`Fleet` runs the candidates of one run on equal boards, which may go away and come back. Start there.

A board that is lost is left out until a kernel that is known to be good runs there again. Its candidate goes to another
board, or to the same one when it is back. A board that is lost again and again is tried less and less often. After some
faults, in whichever runs of this host, it is in quarantine: it is left out while other boards measure for the run.
Where others measure on a board, the run waits in its turn queue, and goes on with the boards that it has.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from enum import Enum, auto
from functools import partial
from typing import TypeVar

from tuner.devices import kind_of
from tuner.devices.board import Boards, Notices, Standing, boards_of, place_on_board
from tuner.errors import BadInput, DeviceLost, TuneError, TurnOver
from tuner.measure.messages import CompareDone, CompareJob, ExecutorSettings, RunDone, RunJob
from tuner.measure.runner import Closing
from tuner.measure.targets.drift import Drift, Interval
from tuner.measure.workers.run_client import MeasureClient
from tuner.measure.workers.worker import ProcessServer
from tuning_db.record import Failure, FailureKind

_T = TypeVar("_T")
# Seconds that all boards may be away: a reboot takes a minute or two, and a person who repairs a board takes longer.
PATIENCE_SECONDS = 900.0
_PAUSES = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0)  # before each probe of a lost board, by its faults since a good trial
# How many boards may be lost over one candidate before it fails: while it runs, and in whatever is done for it.
_LOSSES, _ALL_LOSSES = 2, 5
_TRANSFER_SECONDS = 120.0
_ASKED_AGAIN = ": it is asked again until it answers"
_WATCH_SECONDS = 0.5  # between looks at idle boards
_QUARANTINE_SECONDS = 1.0  # between looks whether it is over: a person may end it


class _State(Enum):
    """The state that a board is in, as the run sees it."""

    COMING = auto()  # it is being started
    WAITING = auto()  # others measure there
    FREE = auto()
    BUSY = auto()
    AWAY = auto()


class _NotNeeded(Exception):
    """The measurement was cancelled while it waited for a free board."""


class Fleet(Closing):
    """Measures on equal boards, with one MeasureClient for each, for several threads at a time. `losses` counts how
    often a board was lost. `notice` is told of boards that go away, come back, or are in others' use."""

    def __init__(
        self,
        server: ProcessServer,
        settings: ExecutorSettings,
        run_seconds: float,
        notice: Callable[[str], object] = lambda _: None,
    ) -> None:
        self._closed, self._given_up = threading.Event(), threading.Event()
        self._notice = notice
        # A board ends a candidate at its deadline. The host's deadline is later, for silent boards and slow links.
        seconds = run_seconds + _TRANSFER_SECONDS
        self._notices = {name: Notices(notice) for name in boards_of(settings.device)}
        self._clients = {
            MeasureClient(
                server, replace(settings, device=name), seconds, waits=partial(self._waits, name), notice=notice
            ): name
            for name in boards_of(settings.device)
        }
        self._states = dict.fromkeys(self._clients.values(), _State.COMING)
        self._changed = threading.Condition()
        self._faults = dict.fromkeys(self._clients, 0)
        self._boards = Boards()
        self._free: queue.Queue[MeasureClient] = queue.Queue()
        self._error: Exception | None = None
        self.losses = 0

    @property
    def width(self) -> int:
        """Return the number of boards, each of which runs a candidate at a time."""
        return len(self._clients)

    def start(self) -> None:
        """Start all boards, and return when one is free and it is known of the others whether they are. Boards that are
        away may come later. Raises BadInput where no board can run a kernel that is known to be good."""
        problems: list[str] = []
        for client in self._clients:
            self._admit(client, problems)
        with self._changed:
            while not self._is_started():
                self._changed.wait(1.0)
        self._raise_error()
        if len(problems) == len(self._clients) and _State.FREE not in self._states.values():
            raise BadInput("; ".join(problems))
        threading.Thread(target=self._watch, daemon=True).start()
        for problem in problems:
            self._notice(f"{problem}{_ASKED_AGAIN}")

    def _is_started(self) -> bool:
        states = set(self._states.values())
        return self._error is not None or (
            _State.COMING not in states and (_State.FREE in states or states == {_State.AWAY})
        )

    @property
    def drifts(self) -> list[Drift]:
        return [client.drift for client in self._clients]

    def run(self, job: RunJob) -> tuple[RunDone, Interval]:
        """See `MeasureClient.run`. The job runs on whichever board is free first."""
        done = self._on_a_board(lambda client: client.run(job))
        return (RunDone((), done, None, 0), Interval()) if isinstance(done, Failure) else done

    def compare(self, job: CompareJob, call_seconds: float) -> CompareDone | Failure:
        """See `MeasureClient.compare`. The whole comparison runs on one board."""
        return self._on_a_board(lambda client: client.compare(job, call_seconds))

    @contextlib.contextmanager
    def given_up(self) -> Iterator[None]:
        """Cancel, while the block runs, the measurements that wait for a board."""
        self._given_up.set()
        try:
            yield
        finally:
            self._given_up.clear()

    def _on_a_board(self, measure: Callable[[MeasureClient], _T]) -> _T | Failure:
        losses = running = 0
        suspected: list[MeasureClient] = []
        while running < _LOSSES and losses < _ALL_LOSSES:
            client = self._next()
            try:
                done = measure(client)
            except TurnOver:
                self._set(client, _State.WAITING)
                self._admit(client)
                continue
            except DeviceLost as lost:
                losses, running = losses + 1, running + lost.running
                message = str(lost)
                suspected += [client] if lost.running else []
                self._note_fault(client)
                self._lose(client, lost)
                self._admit(client)
                continue
            except BaseException:
                self._give_back(client)
                raise
            self._faults[client] = 0
            self._give_back(client)
            return done
        if running < _LOSSES:  # the candidate need not be at fault
            return Failure(FailureKind.DEVICE_LOST, f"a board was lost {losses} times before it could run: {message}")
        for client in suspected:  # the candidate is to blame, not the boards
            self._boards.forgive(self._board_of(client), 1)
        return Failure(FailureKind.RUN, f"a board was lost {_LOSSES} times over it: {message}")

    def _next(self) -> MeasureClient:
        """Wait for a free board and return it. Raises TuneError where all boards stay away."""
        end = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < end and not self._closed.is_set():
            with contextlib.suppress(queue.Empty):
                client = self._free.get(timeout=1.0)
                self._set(client, _State.BUSY)
                return client
            self._raise_error()
            if self._given_up.is_set():
                raise _NotNeeded
            if set(self._states.values()) != {_State.AWAY}:
                end = time.monotonic() + PATIENCE_SECONDS
        minutes = PATIENCE_SECONDS / 60
        raise TuneError(f"no board has answered for {minutes:.0f} minutes: run this again when one is back")

    def _give_back(self, client: MeasureClient) -> None:
        self._set(client, _State.FREE)
        self._free.put(client)

    def _set(self, client: MeasureClient, state: _State) -> None:
        with self._changed:
            self._states[self._clients[client]] = state
            self._changed.notify_all()

    def _board_of(self, client: MeasureClient) -> str:
        return place_on_board(self._clients[client])[0]

    def _note_fault(self, client: MeasureClient) -> None:
        self._faults[client] += 1
        self._boards.note_fault(self._board_of(client))

    def _lose(self, client: MeasureClient, problem: Exception, told: bool = True) -> None:
        self.losses += 1
        if told:
            self._notices[self._clients[client]].tell(f"{problem}{_ASKED_AGAIN}")
        self._set(client, _State.AWAY)

    def _watch(self) -> None:
        """Notice boards that are lost while there is nothing to do on them."""
        while not self._closed.wait(_WATCH_SECONDS):
            for _ in range(self._free.qsize()):
                with contextlib.suppress(queue.Empty):
                    client = self._free.get_nowait()
                    try:
                        client.look()
                    except DeviceLost as lost:
                        self._note_fault(client)
                        self._lose(client, lost)
                        self._admit(client)
                    else:
                        self._free.put(client)

    def _waits(self, name: str, standing: Standing) -> None:
        with self._changed:
            self._states[name] = _State.WAITING
            self._changed.notify_all()
        self._notices[name].tell(standing.waits_for(kind_of(name).called(name)))

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _admit(self, client: MeasureClient, problems: list[str] | None = None) -> None:
        """Start a board, for the first time or again, in a thread of its own."""
        threading.Thread(target=self._start_client, args=(client, problems), daemon=True).start()

    def _start_client(self, client: MeasureClient, problems: list[str] | None) -> None:
        """Start a board, again and again until it computes right. If the first start fails, the reason goes to
        `problems`."""
        faults = self._faults[client]
        while not self._closed.is_set():
            if faults:
                self._closed.wait(_PAUSES[min(faults, len(_PAUSES)) - 1])
            self._sit_out(client)
            try:
                client.start()
            except TurnOver:  # the turn ended before the board was ready
                continue
            except (DeviceLost, TuneError) as problem:
                faults += 1
                if problems is not None:
                    problems.append(str(problem))
                if not self._closed.is_set():
                    self._lose(client, problem, told=problems is None)
                problems = None
                continue
            except Exception as error:  # a bug here: the thread that measures raises it
                self._error = error
                self._set(client, _State.AWAY)
                return
            self._welcome(client)
            return

    def _sit_out(self, client: MeasureClient) -> None:
        """Wait until a board's quarantine is over, or until no other board measures for this run or may come to."""
        board, waited = self._board_of(client), False
        while (record := self._boards.record(board)).quarantine and not self._closed.is_set():
            self._set(client, _State.AWAY)
            alone = set(self._states.values()) == {_State.AWAY}
            if not waited and not alone:
                text = f"board {board} is {record}: `tune board ping {board}` ends it"
                self._notices[self._clients[client]].tell(text)
            waited = True
            if alone:
                break
            self._closed.wait(_QUARANTINE_SECONDS)
        if waited:
            self._set(client, _State.COMING)

    def _welcome(self, client: MeasureClient) -> None:
        name = self._clients[client]
        if self._notices[name].end():
            self._notice(f"{kind_of(name).called(name)} measures for this run now")
        self._give_back(client)

    def close(self) -> None:
        """Stop starting and watching boards. More calls do nothing."""
        self._closed.set()

"""Ctrl-C at any moment: the session that it ends can still write, and no transaction is done by half."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest

from tests.tuning_db.made import trial
from tuning_db import interrupts, maintain
from tuning_db.store import open_db


@pytest.fixture
def interrupt_soon() -> Iterator[random.Random]:
    """An alarm is a Ctrl-C here."""
    before = signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    yield random.Random(5)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def interrupted_after(seconds: float, work: Callable[[], object]) -> None:
    """The alarm is set here, where whoever calls this awaits it: on a busy machine it may come at once."""
    signal.setitimer(signal.ITIMER_REAL, seconds)
    work()


def test_after_an_interrupt_what_was_measured_can_be_written(
    url: str, interrupt_soon: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuning_db.connect.BUSY_SECONDS", 1.0)
    numbers = count()
    with open_db(url) as store:

        def work() -> None:
            while True:
                one = trial(next(numbers))
                try:
                    store.begin(one.workload, one.device, [one.config])
                finally:  # as a session does, while the interrupt is on its way out
                    store.add(one)

        interrupts = 0
        # On a busy machine an interrupt may come before a single trial is whole: until there are more trials than that.
        while interrupts < 200 or store.stats().trials <= interrupts:
            with pytest.raises(KeyboardInterrupt):
                interrupted_after(interrupt_soon.uniform(0.001, 0.01), work)
            interrupts += 1
        assert list(maintain.verify(store)) == []


@pytest.mark.usefixtures("interrupt_soon")
def test_who_waits_for_another_writer_can_be_interrupted(path: Path) -> None:
    with open_db(path) as store, closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(KeyboardInterrupt):
            interrupted_after(0.05, lambda: store.add(trial(1)))
        other.execute("ROLLBACK")
        assert store.add(trial(1))


def test_an_interrupt_that_the_process_handles_is_handled_once_at_the_end() -> None:
    handled: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: handled.append(number))
    try:
        with interrupts.held(), interrupts.held():
            os.kill(os.getpid(), signal.SIGINT)
            assert handled == []
        assert handled == [signal.SIGINT]
    finally:
        signal.signal(signal.SIGINT, before)


def test_nothing_is_held_where_interrupts_are_ignored_or_in_another_thread() -> None:
    seen: list[object] = []

    def look() -> None:
        with interrupts.held():
            interrupts.pass_on()
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        look()
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == [before, signal.SIG_IGN]

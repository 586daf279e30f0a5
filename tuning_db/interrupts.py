"""Ctrl-C does not land within a transaction.

An interrupt between two of a transaction's statements leaves its connection to the garbage collector, with the lock:
whoever then notes what was measured, in the same process, waits for itself.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class _Holding:
    """A handler that notes that an interrupt came, for the one `before` it."""

    def __init__(self, before: Callable[[int, FrameType | None], object]) -> None:
        self._before = before
        self._came = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self._came = True

    def pass_on(self) -> None:
        """Once for all interrupts since the last."""
        if self._came:
            self._came = False
            self._before(signal.SIGINT, None)


@contextmanager
def held() -> Iterator[None]:
    """What Ctrl-C does here it does at the end of the block, or at a `pass_on` in it. In a thread that gets no signals,
    and in a process that ignores them, nothing changes."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    holding = _Holding(before)
    signal.signal(signal.SIGINT, holding)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        holding.pass_on()


def pass_on() -> None:
    """Where a held block may be interrupted: do now what the Ctrl-C that has come since does."""
    handler = signal.getsignal(signal.SIGINT)
    if isinstance(handler, _Holding) and threading.current_thread() is threading.main_thread():
        handler.pass_on()

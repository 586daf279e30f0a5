"""This module keeps Ctrl-C from interrupting a transaction: start at `held`.

An interrupt between two statements of a transaction would leave its connection, and the lock that it holds, to the
garbage collector. The same process would then wait for its own lock when it stores what was measured.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class _Holding:
    """A signal handler that remembers an interrupt for the handler that was set before it."""

    def __init__(self, before: Callable[[int, FrameType | None], object]) -> None:
        self._before = before
        self._came = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self._came = True

    def pass_on(self) -> None:
        """Call the earlier handler once if interrupts have come since the last call."""
        if self._came:
            self._came = False
            self._before(signal.SIGINT, None)


@contextmanager
def held() -> Iterator[None]:
    """Delay Ctrl-C until the end of the block, or until `pass_on` is called in it.

    Nothing changes in threads other than the main one, which get no signals, or in a process that ignores Ctrl-C.
    """
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
    """Let a Ctrl-C that came inside a `held` block take effect now. It is called where the block may be interrupted."""
    handler = signal.getsignal(signal.SIGINT)
    if isinstance(handler, _Holding) and threading.current_thread() is threading.main_thread():
        handler.pass_on()

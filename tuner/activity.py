"""Say what long work is doing, so that a command or a caller can show it. Start at `activity` and `listening`.

Code that takes seconds names what it does in a `with activity(...)` block, and knows nothing of who listens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from threading import Lock


@dataclass(frozen=True)
class Activity:
    """Says what is being done: `text` in words, such as "compiling 52 functions". `done` of `total` parts are done; a
    `total` of None is not known. `detail` is what its package tells of it besides: a tuner.session.Progress or None."""

    text: str
    done: int = 0
    total: int | None = None
    detail: object = None


# A listener is called with what is being done now, or with None when nothing is.
Listener = Callable[[Activity | None], None]


class Meter:
    """Says how far an activity is: call it with the parts that are done, and a detail for those who know it."""

    def __init__(self, text: str, total: int | None) -> None:
        self.said = Activity(text, 0, total)

    def __call__(self, done: int, detail: object = None) -> None:
        """Tell all listeners. Raises what they raise."""
        self.said = replace(self.said, done=done, detail=detail)
        _tell()


_lock = Lock()
_listeners: list[Listener] = []
_under_way: list[Meter] = []  # each within the one before it


def _tell() -> None:
    with _lock:
        now, listeners = _under_way[-1].said if _under_way else None, tuple(_listeners)
    for listener in listeners:
        listener(now)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Call `listener` with every change of what is being done while the block runs, from the thread that does it. What
    the listener raises is raised where the work is done."""
    with _lock:
        _listeners.append(listener)
    try:
        yield
    finally:
        with _lock:
            _listeners.remove(listener)


@contextmanager
def activity(text: str, total: int | None = None) -> Iterator[Meter]:
    """Say that `text` is being done while the block runs. Behind it, what was said before is said again. The block gets
    a meter for how many of `total` parts are done."""
    meter = Meter(text, total)
    with _lock:
        _under_way.append(meter)
    try:
        _tell()
        yield meter
    finally:
        with _lock:
            _under_way.remove(meter)
        _tell()

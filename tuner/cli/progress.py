"""Shows what a command is doing: in a live panel on a terminal, elsewhere as a line every few seconds.

Start at `Display`, or from Python at `verbose`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Event, RLock, Thread
from types import TracebackType
from typing import TYPE_CHECKING, Self, cast

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from tuner.activity import Activity, listening
from tuner.cli.terminal import console, visible

if TYPE_CHECKING:
    from tuner.session import Progress

LINE_SECONDS = 5.0  # until a line says what is being done, and between two lines, where there is no terminal
_SHORT = 0.5  # seconds that an activity may last before a terminal shows it
_TICK = 0.25
_START = Activity("starting")  # until something else is said or printed: Python imports TVM
_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


@contextmanager
def verbose() -> Iterator[None]:
    """Show on standard error what edgetune does while the block runs, as the commands do: in a panel on a terminal,
    elsewhere as lines."""
    with Display(console(sys.stderr)):
        yield


class Display:
    """A display of what is being done on this machine (see tuner.activity). It shows it while its `with` block runs."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console, self._clock = console, clock
        self._has_panel = console.is_terminal and not console.is_dumb_terminal
        self._live: Live | None = None
        self._said: Activity | None = _START if self._has_panel else None
        self._since = clock()  # of the activity
        self._due = float("inf")  # when a line about it may be printed
        self._lock, self._over = RLock(), Event()
        self._listening = listening(self.tell)
        self._ticking = Thread(target=self._tick_on, name="display", daemon=True)

    def __enter__(self) -> Self:
        self._listening.__enter__()
        self._ticking.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._listening.__exit__(None, None, None)
        self._over.set()
        self._ticking.join()
        self._erase()

    def tell(self, said: Activity | None) -> None:
        """Show what is being done now, or nothing."""
        with self._lock:
            before, self._said = self._said, said
            if said is None or before is None or said.text != before.text:
                self._since = self._clock()
                self._due = self._since + LINE_SECONDS
            if said is not None and said.detail is not None and (before is None or before.detail is None):
                self._due = self._since
                self.tick()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Erase the panel while the block prints on another stream of the same terminal."""
        with self._lock:
            if self._said is _START:
                self._said = None
            self._erase()
            yield

    def tick(self) -> None:
        """Bring what is shown up to date."""
        with self._lock:
            said, now = self._said, self._clock()
            if self._has_panel:
                if said is not None and (said.detail is not None or now - self._since >= _SHORT):
                    self._draw(_panel(said, now - self._since))
                else:
                    self._erase()
            elif said is not None and now >= self._due:
                self._due = now + (LINE_SECONDS if said.detail is not None else max(LINE_SECONDS, now - self._since))
                self._console.print(_line(said, now - self._since), highlight=False, soft_wrap=True)

    def _tick_on(self) -> None:
        while not self._over.wait(_TICK):
            with suppress(OSError, ValueError):  # a stream that was closed says so to the thread that works
                self.tick()

    def _draw(self, what: RenderableType) -> None:
        if self._live is None:
            self._live = Live(
                console=self._console,
                auto_refresh=False,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()
        self._live.update(what, refresh=True)

    def _erase(self) -> None:
        with self._lock:
            live, self._live = self._live, None
            if live is not None:
                live.stop()


def _facts(progress: Progress) -> dict[str, str]:
    from tuner.report.text import describe, failures_text, microseconds, milliseconds, times_text

    together = "nothing measured yet"
    if progress.measured:
        gain = times_text(progress.first_total / progress.best_total)
        of = "" if progress.measured == progress.tasks else f" ({progress.measured} of {progress.tasks} measured)"
        together = f"{milliseconds(progress.best_total)} ms, {gain} than at first{of}"
    task = progress.task
    speed = "" if progress.gflops is None else f", {progress.gflops:.0f} GF/s"
    return {
        "task": f"{progress.index + 1} of {progress.tasks}: {task.workload.op} {describe(task.workload)}",
        "phase": "searching" if progress.phase == "search" else "comparing the best again",
        "trials": f"{progress.trials} of this task, {progress.session_trials} in this session "
        f"({progress.trials_per_second:.1f} a second)",
        "best": f"{microseconds(progress.best_seconds)} us{speed}",
        "last": _last(progress),
        "all tasks": together,
        "failures": failures_text(progress.failures),
        "time left": "unknown" if progress.seconds_left is None else clock_text(progress.seconds_left),
    }


def _last(progress: Progress) -> str:
    trial = progress.last
    outcome = f"{trial.seconds * 1e6:.1f} us" if trial.failure is None else f"{trial.failure.kind}"
    return f"{outcome} with {progress.config.template}"


def _words(said: Activity) -> str:
    if said.total is not None:
        return f"{said.text}: {said.done} of {said.total}"
    return f"{said.text}: {said.done}" if said.done else said.text


def _panel(said: Activity, lasted: float) -> RenderableType:
    if said.detail is None:
        frame = _FRAMES[int(lasted / _TICK) % len(_FRAMES)]
        return Text(f"{frame} {visible(_words(said))}, {clock_text(lasted)}", no_wrap=True, overflow="ellipsis")
    progress = cast("Progress", said.detail)
    table = Table(box=None, show_header=False)
    for name, text in _facts(progress).items():
        table.add_row(Text(name, style="dim"), text)
    if progress.seconds_left is not None:
        whole = progress.elapsed + progress.seconds_left
        table.add_row("", ProgressBar(total=max(whole, 1e-9), completed=progress.elapsed, width=40))
    return table


def _line(said: Activity, lasted: float) -> str:
    if said.detail is None:
        return f"{_words(said)}, {clock_text(lasted)}"
    facts = _facts(cast("Progress", said.detail))
    return (
        f"task {facts['task']}; {facts['phase']}; trials {facts['trials']}; best {facts['best']}; "
        f"all tasks {facts['all tasks']}; failures {facts['failures']}; time left {facts['time left']}"
    )


def clock_text(seconds: float) -> str:
    """Return `seconds` as minutes and seconds, such as "3:07"."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02}"

"""Shows how a session proceeds: in a live panel on a terminal, elsewhere as a line every few seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from tuner.session import Progress

LINE_SECONDS = 5.0  # between two lines, where there is no terminal


class ProgressDisplay:
    """A display that shows a session's progress. Use it in a `with` statement and call `show` after every trial."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._live = Live(console=console, refresh_per_second=4, transient=True) if console.is_terminal else None
        self._last_line = float("-inf")

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()

    def note(self, text: str) -> None:
        """Print a line that stays, above the panel if there is one. Any thread may call this."""
        self._console.print(text, highlight=False, soft_wrap=True)

    def show(self, progress: Progress) -> None:
        if self._live is not None:
            self._live.update(_panel(progress))
        elif self._clock() - self._last_line >= LINE_SECONDS:
            self._last_line = self._clock()
            self._console.print(_line(progress), highlight=False, soft_wrap=True)


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


def _panel(progress: Progress) -> Table:
    table = Table(box=None, show_header=False)
    for name, text in _facts(progress).items():
        table.add_row(Text(name, style="dim"), text)
    if progress.seconds_left is not None:
        whole = progress.elapsed + progress.seconds_left
        table.add_row("", ProgressBar(total=max(whole, 1e-9), completed=progress.elapsed, width=40))
    return table


def _line(progress: Progress) -> str:
    facts = _facts(progress)
    return (
        f"task {facts['task']}; {facts['phase']}; trials {facts['trials']}; best {facts['best']}; "
        f"all tasks {facts['all tasks']}; failures {facts['failures']}; time left {facts['time left']}"
    )


def clock_text(seconds: float) -> str:
    """Return `seconds` as minutes and seconds, such as "3:07"."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02}"

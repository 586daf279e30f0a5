"""Report the processor time of every test: its own process and all that it started.

Wall time on a shared machine says little about what a test costs. Processor seconds change less with the load: by about
a quarter, where two hyperthreads share a core.
`--processor-times FILE` writes a JSON line for each test; the summary of every run lists the most expensive ones.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Generator
from pathlib import Path

import pytest

_SHOWN = 20


def tree_seconds(root: int) -> float:
    """Return the user and system seconds of process `root`, of its living descendants, and of all that they have
    waited for. What a descendant that lost its parent has used is not known any more."""
    own: dict[int, int] = {}
    children: dict[int, list[int]] = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            stat = Path("/proc", pid, "stat").read_bytes()
            # Behind the name: state, parent, and from the 12th on its ticks and those of children that it waited for.
            fields = stat.rpartition(b")")[2].split()
            own[int(pid)] = sum(map(int, fields[11:15]))
            children.setdefault(int(fields[1]), []).append(int(pid))
    total, todo = 0, [root]
    while todo:
        pid = todo.pop()
        total += own.get(pid, 0)
        todo += children.get(pid, [])
    return total / os.sysconf("SC_CLK_TCK")


class ProcessorTimes:
    """Measures tests where they run, and lists them where the run is reported (the same process without xdist)."""

    def __init__(self, file: Path | None) -> None:
        self._before = tree_seconds(os.getpid())
        self._file = file
        self._tests: dict[str, tuple[float, float]] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Add to the last report of a test what was used since the one before it."""
        report = yield
        if report.when == "teardown":
            now = tree_seconds(os.getpid())
            report.processor_seconds = now - self._before  # xdist hands attributes on
            self._before = now
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add up the phases of a test."""
        name = re.sub(r"@[^\[\]]*$", "", report.nodeid)  # xdist puts a test's group there
        processor, wall = self._tests.get(name, (0.0, 0.0))
        found = self._tests[name] = processor + getattr(report, "processor_seconds", 0.0), wall + report.duration
        if report.when == "teardown" and self._file is not None and "PYTEST_XDIST_WORKER" not in os.environ:
            line = {"test": name, "processor_seconds": round(found[0], 3), "seconds": round(found[1], 3)}
            with self._file.open("a") as out:
                out.write(json.dumps(line) + "\n")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """List the tests that used most."""
        most = sorted(self._tests.items(), key=lambda test: -test[1][0])[:_SHOWN]
        total = sum(processor for processor, _ in self._tests.values())
        terminalreporter.section(
            f"{len(most)} most expensive of {len(self._tests)} tests: {total:.0f} processor seconds"
        )
        for name, (processor, wall) in most:
            terminalreporter.line(f"{processor:8.1f} s, {wall:7.1f} s of wall time  {name}")

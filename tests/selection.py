"""Choose the tests of a run: what a change has to pass, or everything.

`pytest` alone runs what a change has to pass: all tests but those marked `night`, and of each large matrix (marked
`sampled(n)`) one case in n, chosen by hashes of the case and the commit, so that some commit within days runs each.
`pytest -m ""` runs everything. A test that is named on the command line (`file.py::test`) is never left out.
"""

from __future__ import annotations

import os
import subprocess
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from zlib import crc32

import pytest

ROOT = Path(__file__).parent.parent
COMMIT = "EDGETUNE_TEST_COMMIT"
CHANGE = "not night"  # pyproject.toml gives it to -m
MARKERS = {
    "slow": "takes more than ten processor seconds; still part of what a change has to pass",
    "night": "takes long for what it may find: runs with -m '' alone, as the nightly run does",
    "sampled(n)": "one case in n runs with a change (chosen by hashes of the case and the commit), all at night",
}


def commit() -> str:
    """Return the checked-out commit; the empty string outside of a git repository, where the sample never changes."""
    command = ["git", "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def sampled_in(test: str, cases: Iterable[str], one_in: int, commit: str) -> set[str]:
    """Return those cases of a test that the run of `commit` has: one in `one_in`, as near as that can be.

    The commit's hash says where in the cases, ordered by their hashes, the choice begins.
    """
    begin = crc32(test.encode()) + crc32(commit.encode())
    ordered = sorted(cases, key=lambda case: (crc32(case.encode()), case))
    return {case for rank, case in enumerate(ordered, begin) if rank % one_in == 0}


def matrices(items: Iterable[pytest.Item]) -> dict[tuple[str, int], list[pytest.Item]]:
    """Return the sampled tests that share a sample: the cases of one function, and by file the functions without.

    With these in samples of their own, all of a file's dear tests would fall to some commits and none to others.
    """
    found = defaultdict[tuple[str, int], list[pytest.Item]](list)
    for item in items:
        if sampled := item.get_closest_marker("sampled"):
            test, has_cases, _ = item.nodeid.partition("[")
            found[test if has_cases else test.partition("::")[0], sampled.args[0]].append(item)
    return found


class Selection:
    """Marks as `night` the cases of matrices that are not in this commit's sample, and says what a run left out."""

    def __init__(self, config: pytest.Config) -> None:
        self._named = any("::" in argument for argument in config.args)
        # Workers of xdist have to choose the same cases, whatever happens to the repository meanwhile.
        self._commit = os.environ.setdefault(COMMIT, commit())
        self._left_out = 0

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Runs before pytest deselects by marks."""
        if self._named and config.option.markexpr == CHANGE:
            config.option.markexpr = ""
        for (test, one_in), cases in matrices(items).items():
            chosen = sampled_in(test, (case.nodeid for case in cases), one_in, self._commit)
            for case in cases:
                if case.nodeid not in chosen:
                    case.add_marker("night")
        if config.option.markexpr == CHANGE:
            self._left_out = sum(1 for item in items if item.get_closest_marker("night") is not None)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Tell the process that reports how many tests were left out; with xdist only workers collect."""
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            output["left_out"] = self._left_out

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object) -> None:
        """Runs in xdist's controller, once for each worker: all have collected the same."""
        self._left_out = getattr(node, "workeroutput", {}).get("left_out", self._left_out)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say what this run did not do, and how to do it."""
        if self._left_out:
            terminalreporter.write_line(
                f"{self._left_out} tests are left for the night (matrices are sampled for commit "
                f"{self._commit[:12] or 'unknown'}); to run all: python -m pytest -m ''"
            )

"""This benchmark plants faults, one-line mistakes in every part of the project, and counts how many the tests find.

    python benchmarks/planted_faults.py [--only NAME ...] [--first-only] [--no-night] [--jobs N] [--check] [--json]

Every fault is planted in its own clone of HEAD. The tests that are the most likely to find it run first. Then the other
tests that a change has to pass run (as tests/selection.py chooses them for HEAD), and then those that only run at
night. A fault counts as found if a test fails, fails once more alone, and passes without the fault. The faults are in
planted_list.py. They were chosen as a mutation tester would choose them, whether or not tests find them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from models_cpu import machine
from planted_list import FAULTS, Fault

ROOT = Path(__file__).parent.parent
OWN_TEST = "tests/benchmarks/test_planted_faults.py"  # left out: it fails for any fault, as it looks for the old text
CHANGE, NIGHT = "not night", "night"  # expressions that select the tests of a run by marks; together they are all tests
FAILED, INTERRUPTED, NO_TESTS = 1, 2, 5  # exit statuses of pytest; xdist ends with the second after a failure too
_LAST_FAILED = ".pytest_cache/v/cache/lastfailed"
_GROUP = re.compile(r"@[^\]@]+$")  # xdist appends the group to the name of a test


class Broken(Exception):
    """Raised where the script cannot say whether a fault is found. Its one line says why."""


class Endless(Exception):
    """Raised when a run takes longer than it may."""


def planted(fault: Fault, text: str) -> str:
    """Return the file's text with the fault in it. Raises Broken unless the old text occurs exactly once."""
    if (count := text.count(fault.old)) != 1:
        raise Broken(f"{fault.name}: {fault.file} has {count} times, not once: {fault.old}")
    return text.replace(fault.old, fault.new)


def last_word(output: str) -> str:
    """Return the last line that a command has written."""
    return (output.strip().splitlines() or ["it said nothing"])[-1]


@dataclass(frozen=True)
class Tree:
    """A clone of HEAD, in which pytest runs. A run may take `seconds`."""

    folder: Path
    commit: str
    jobs: int | None
    seconds: float

    def run(self, *options: str) -> int:
        """Run pytest and return its exit status. Raises Endless, and Broken for a status that says nothing."""
        (self.folder / _LAST_FAILED).unlink(missing_ok=True)
        jobs = [] if self.jobs is None else ["-n", str(self.jobs)]
        status, output = self._ran("-m", "pytest", "-x", "-q", *jobs, *options)
        told = status in (FAILED, INTERRUPTED) and self.failed
        if status not in (0, NO_TESTS) and not told:
            raise Broken(f"pytest {' '.join(options)} ended with {status}: {last_word(output)}")
        return status

    @property
    def failed(self) -> list[str]:
        """Return what failed in the last run, in order: tests, and files that cannot be collected."""
        path = self.folder / _LAST_FAILED
        return [_GROUP.sub("", name) for name in json.loads(path.read_text())] if path.exists() else []

    def check_path(self) -> None:
        """Raise Broken unless processes import the clone's packages, wherever they are started."""
        _, output = self._ran("-c", "import tuner; print(tuner.__file__)", cwd=self.folder.parent)
        if not output.startswith(str(self.folder)):
            raise Broken(f"tests would not run the clone: they import {output.strip()}")

    def _ran(self, *arguments: str, cwd: Path | None = None) -> tuple[int, str]:
        environment = {**os.environ, "PYTHONPATH": str(self.folder), "EDGETUNE_TEST_COMMIT": self.commit}
        # The output goes to a file, because a pipe would stay open as long as a process that a test left behind.
        with tempfile.TemporaryFile("w+", errors="replace") as output:
            process = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=cwd or self.folder,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                status = process.wait(self.seconds)
            except subprocess.TimeoutExpired:
                raise Endless from None
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # pytest's workers, if it was interrupted
                process.wait()
            output.seek(0)
            return status, output.read()


@contextlib.contextmanager
def clone(jobs: int | None, seconds: float) -> Iterator[Tree]:
    """Make a clone of HEAD in a temporary folder that the unprivileged processes of boards may read too."""
    with tempfile.TemporaryDirectory(prefix="edgetune-fault-") as name:
        folder = Path(name).resolve() / "tree"
        folder.parent.chmod(0o755)
        git("clone", "--quiet", "--shared", str(ROOT), str(folder))
        commit = git("rev-parse", "HEAD")
        git("-C", str(folder), "checkout", "--quiet", "--detach", commit)
        tree = Tree(folder, commit, jobs, seconds)
        try:
            yield tree
        finally:
            if sys.pycache_prefix is not None:
                shutil.rmtree(Path(sys.pycache_prefix) / folder.parent.relative_to("/"), ignore_errors=True)


def git(*arguments: str) -> str:
    """Return the output of a git command. Raises Broken with the last line of its errors."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Broken(f"git {arguments[0]} failed: {last_word(done.stderr)}")
    return done.stdout.strip()


@dataclass
class Row:
    """A row of the result, which says what became of a fault.

    `found` is "change" or "night", by the run that found it, and `test` is the test that failed first. `unsure` lists
    tests that failed, but did not fail again or also failed without the fault. `endless` says that a run was ended
    because it took too long.
    """

    name: str
    place: str
    file: str
    wrong: str
    found: str | None = None
    test: str | None = None
    seconds: float = 0.0
    unsure: list[str] = field(default_factory=list)
    endless: bool = False

    @property
    def verdict(self) -> str:
        if self.found is not None:
            return "yes" if self.found == "change" else "only at night"
        return "did not end" if self.endless else "not at all"


@dataclass(frozen=True)
class Hunt:
    """A hunt that runs the tests in the clone of one fault until one finds it."""

    fault: Fault
    tree: Tree
    original: str
    row: Row

    def search(self, first_only: bool, night: bool) -> None:
        """Plant the fault and run tests until one finds it. The result is stored in the row."""
        self._write(planted(self.fault, self.original))
        others = [f"--ignore={path}" for path in self.fault.first]
        runs = [("change", CHANGE, list(self.fault.first))]
        runs += [] if first_only else [("change", CHANGE, others)]
        runs += [("night", NIGHT, list(self.fault.first) if first_only else [])] if night else []
        for found, marks, where in runs:
            self.row.test = self._finder(["-m", marks, f"--ignore={OWN_TEST}", *where])
            if self.row.test is not None:
                self.row.found = found
                return

    def _finder(self, options: Sequence[str]) -> str | None:
        """Return the first test of a run that finds the fault, or None."""
        while True:
            left_out = [f"--deselect={name}" if "::" in name else f"--ignore={name}" for name in self.row.unsure]
            self.tree.run(*options, *left_out)
            if not (failed := self.tree.failed):
                return None
            if self._is_sure(failed[0]):
                return failed[0]
            self.row.unsure.append(failed[0])

    def _is_sure(self, name: str) -> bool:
        """Return whether a test (or the collection of a file) fails again, and passes without the fault."""
        options = [name] if "::" in name else [name, "--collect-only"]
        if self.tree.run(*options) in (0, NO_TESTS):
            return False
        self._write(self.original)
        try:
            return self.tree.run(*options) in (0, NO_TESTS)
        finally:
            self._write(planted(self.fault, self.original))

    def _write(self, text: str) -> None:
        (self.tree.folder / self.fault.file).write_text(text)


def measure(fault: Fault, given: argparse.Namespace) -> Row:
    """Look for one fault, as the options say."""
    row = Row(fault.name, fault.place, fault.file, fault.wrong)
    start = time.perf_counter()
    with clone(given.jobs, given.minutes * 60) as tree:
        tree.check_path()
        original = (tree.folder / fault.file).read_text()
        try:
            Hunt(fault, tree, original, row).search(given.first_only, given.night)
        except Endless:
            row.endless = True
    row.seconds = time.perf_counter() - start
    return row


def check() -> None:
    """List the faults. Raises Broken for one that cannot be planted in the checked-out files."""
    for fault in FAULTS:
        compile(planted(fault, (ROOT / fault.file).read_text()), fault.file, "exec")
        print(f"{fault.name} ({fault.file}): {fault.wrong}")


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [fault.name for fault in FAULTS]
    parser.add_argument("--only", action="append", choices=names, metavar="NAME", help="this fault (may be repeated)")
    parser.add_argument("--first-only", action="store_true", help="only the tests that are the most likely to find it")
    parser.add_argument(
        "--night",
        action=argparse.BooleanOptionalAction,
        help="go on with the tests that only a night runs (default: yes, unless --first-only is given)",
    )
    parser.add_argument("--jobs", type=int, help="processes that run tests, 0: none beside pytest (default: all cores)")
    parser.add_argument("--minutes", type=float, default=180.0, help="end a run of pytest after so many")
    parser.add_argument("--check", action="store_true", help="only list the faults, and whether all can be planted")
    parser.add_argument("--json", action="store_true", help="end with one JSON object on standard output")
    given = parser.parse_args()
    given.night = not given.first_only if given.night is None else given.night
    return given


def run(given: argparse.Namespace) -> None:
    say_to = sys.stderr if given.json else sys.stdout
    here, rows = {**machine(), "commit": git("rev-parse", "HEAD")}, []
    print(f"{'place':28} {'fault':22} {'found':13} {'seconds':>7}  first by", file=say_to, flush=True)
    for fault in FAULTS:
        if not given.only or fault.name in given.only:
            row = measure(fault, given)
            rows.append(row)
            line = f"{row.place:28} {row.name:22} {row.verdict:13} {row.seconds:7.0f}  {row.test or '-'}"
            unsure = f" (not sure: {', '.join(row.unsure)})" if row.unsure else ""
            print(line + unsure, file=say_to, flush=True)
    summary = {
        "found_by_change": sum(row.found == "change" for row in rows),
        "found": sum(row.found is not None for row in rows),
        "planted": len(rows),
    }
    print(", ".join(f"{name}: {count}" for name, count in summary.items()), file=say_to)
    if given.json:
        print(json.dumps({"summary": summary, "rows": [asdict(row) for row in rows], "machine": here}))


def main() -> None:
    given = parsed()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # so that the clone is removed too
    try:
        check() if given.check else run(given)
    except Broken as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()

"""Large logs: read by several processes, in order, with nothing lost on the way."""

from __future__ import annotations

import gzip
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.tuning_db.made import trial
from tuning_db import importing, logs
from tuning_db.errors import DatabaseError
from tuning_db.logs import BadLine
from tuning_db.record import Trial
from tuning_db.rows import from_record
from tuning_db.store import Store

LINES = 45_000  # enough for processes


def large(bad: dict[int, bytes]) -> list[bytes]:
    """Lines of different trials, but for those at some places."""
    line = logs.line_of(trial(1)).encode() + b"\n"
    marks = (b'"tile":1', b'"tile":%d')
    assert line.count(marks[0]) == 1
    return [bad.get(i, line.replace(marks[0], marks[1] % i)) for i in range(LINES)]


@pytest.mark.sampled(4)
def test_all_is_there_in_its_order_and_bad_lines_have_their_numbers(store: Store) -> None:
    bad = {0: b"{\n", 7: b"# a comment\n", 4_999: b"{}\n", 5_000: b"17\n", 30_001: b"\n", LINES - 1: b"[\n"}
    lines = large(bad)
    report = importing.import_log(store, lines)
    assert (report.added, report.known) == (LINES - len(bad), 0)
    assert [item.number for item in report.bad] == [1, 5_000, 5_001, LINES]
    assert [item.reason for item in report.bad] == [
        item.reason for item in logs.read(lines) if isinstance(item, BadLine)
    ]
    assert [t.config["tile"] for t in store.trials()] == [i for i in range(LINES) if i not in bad]
    again = importing.import_log(store, lines)
    assert (again.added, again.known) == (0, LINES - len(bad))


@pytest.mark.sampled(2)
def test_a_large_file_that_was_cut_gives_what_came_before(store: Store, tmp_path: Path) -> None:
    path, lines = tmp_path / "log.gz", large({})
    whole = gzip.compress(b"".join(lines), 1)
    path.write_bytes(whole[: len(whole) * 9 // 10])
    with logs.opened(path) as found:
        report = importing.import_log(store, found)
    assert LINES * 0.8 < report.added < LINES
    assert [item.number for item in report.bad][-1] in (report.added + 1, report.added + 2)
    assert "cannot be read from here on" in report.bad[-1].reason


def _killed_on_the_way(data: Any, known: dict[str, Any] | None) -> Trial:
    """As a system does that has no memory left."""
    if data["config"]["knobs"]["tile"] == 22_222:
        os.kill(os.getpid(), signal.SIGKILL)
    return from_record(data, known)


needs_cores = pytest.mark.skipif(len(os.sched_getaffinity(0)) == 1, reason="one core reads the log by itself")


@pytest.mark.sampled(2)
@needs_cores
def test_a_process_that_is_killed_costs_no_trial(store: Store) -> None:
    lines = large({})
    with pytest.raises(DatabaseError, match="was killed: import again, which adds the rest"):
        importing.import_log(store, lines, _killed_on_the_way)
    before = store.stats().trials
    report = importing.import_log(store, lines)
    assert (report.added, report.known) == (LINES - before, before)


SCRIPT = """
import sys
from tuning_db import importing, logs
from tuning_db.store import open_db
print("begun")
with open_db("t.db") as store, logs.opened(__import__("pathlib").Path("log.jsonl")) as lines:
    print(importing.import_log(store, lines).added)
"""


@needs_cores
def test_a_script_that_imports_is_run_once(tmp_path: Path) -> None:
    """Without the guard that Python's own pools of processes need."""
    (tmp_path / "log.jsonl").write_bytes(b"".join(large({})))
    (tmp_path / "script.py").write_text(SCRIPT)
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": root},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["begun", str(LINES)]
    assert done.stderr == ""

"""Child processes and files end with the tuner, however the tuner ends, and not a moment before they have to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.tuner.measure.misbehaving import candidate
from tuner.devices import open_device
from tuner.measure import LocalRunner, MeasureOptions

pytestmark = pytest.mark.usefixtures("started_servers")
ROOT = Path(__file__).parents[3]
PATIENCE_SECONDS = 60
OPTIONS = MeasureOptions(compile_seconds=3600, run_seconds=3600, plugins=("tests.tuner.measure.misbehaving",))

# Measures one candidate, says so, and goes on with one that never ends.
_TUNER = """
import sys
from tests.tuner.measure.misbehaving import candidate
from tests.tuner.measure.test_lifetime import OPTIONS
from tuner.devices import open_device
from tuner.measure import LocalRunner
with LocalRunner(open_device("cpu", 1), OPTIONS) as runner:
    next(runner.measure([candidate("good")]))
    print("measured", flush=True)
    list(runner.measure([candidate(sys.argv[1])]))
"""


@pytest.fixture(params=["build_hang", "run_hang"])
def tuner(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[subprocess.Popen]:
    """A process that measures a candidate that hangs, with its temporary files in `tmp_path`."""
    process = subprocess.Popen(
        [sys.executable, "-c", _TUNER, request.param],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "measured\n"
    yield process
    process.kill()
    process.communicate()


def descendants(process: subprocess.Popen) -> list[psutil.Process]:
    found = psutil.Process(process.pid).children(recursive=True)
    assert len(found) >= 3  # the server, a builder, the measuring worker
    return found


@pytest.mark.sampled(2)
def test_kill_9_leaves_no_process_and_no_file(tuner, tmp_path):
    children = descendants(tuner)
    tuner.kill()
    _, alive = psutil.wait_procs(children, PATIENCE_SECONDS)
    assert alive == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.sampled(2)
def test_an_interrupt_ends_in_order(tuner, tmp_path):
    children = descendants(tuner)
    for process in (tuner, *children):  # as a terminal sends it: to all of them
        process.send_signal(signal.SIGINT)
    _, errors = tuner.communicate()
    assert errors.splitlines()[-1] == "KeyboardInterrupt"
    _, alive = psutil.wait_procs(children, PATIENCE_SECONDS)
    assert alive == []
    assert list(tmp_path.iterdir()) == []


def test_killing_every_child_loses_one_candidate_at_most():
    with LocalRunner(open_device("cpu", 1), OPTIONS) as runner:
        assert [t.ok for t in runner.measure([candidate("good")])] == [True]
        for child in psutil.Process().children(recursive=True):
            child.kill()
        trials = list(runner.measure([candidate("good", tile) for tile in (1, 2, 4)]))
    assert [t.ok for t in trials] == [True, True, True]


def test_a_runner_outlives_the_thread_that_made_it():
    made: list[LocalRunner] = []
    thread = threading.Thread(target=lambda: made.append(LocalRunner(open_device("cpu", 1), OPTIONS)))
    thread.start()
    thread.join()
    with made[0] as runner:
        before = {child.pid for child in psutil.Process().children(recursive=True)}
        assert [t.ok for t in runner.measure([candidate("good")])] == [True]
        assert before <= {child.pid for child in psutil.Process().children(recursive=True)}


def test_close_leaves_no_process():
    before = psutil.Process().children(recursive=True)
    runner = LocalRunner(open_device("cpu", 1), OPTIONS)
    assert len(psutil.Process().children(recursive=True)) > len(before)
    runner.close()
    assert psutil.Process().children(recursive=True) == before

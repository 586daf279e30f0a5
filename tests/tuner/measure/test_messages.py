"""One short line for whatever went wrong."""

from __future__ import annotations

import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tvm import te
from tvm.s_tir import Schedule, ScheduleError

from tuner.measure.failures import LIMIT, describe, how_it_ended, last_meaningful_line


@given(st.text())
def test_always_one_short_line(text):
    for line in (last_meaningful_line(text), describe(ValueError(text)), how_it_ended(-6, text)):
        assert len(line) <= LIMIT
        assert len(line.splitlines()) <= 1


def test_a_real_schedule_error_says_what_was_wrong():
    a = te.placeholder((8, 8), name="a")
    k = te.reduce_axis((0, 8), "k")
    schedule = Schedule(te.create_prim_func([a, te.compute((8,), lambda i: te.sum(a[i, k], axis=k), name="sum")]))
    with pytest.raises(ScheduleError) as caught:
        schedule.vectorize(schedule.get_loops(schedule.get_sblock("sum"))[-1])
    line = describe(caught.value)
    assert line.startswith("ScheduleError")
    assert "vectorize" in line


def test_the_telling_line_wins_over_tracebacks_and_programs():
    text = "Traceback (most recent call last):\n  File 'x'\nTVMError: Check failed: a == b\nfor i in range(8):\n  x = 1"
    assert last_meaningful_line(text) == "TVMError: Check failed: a == b"


def test_an_error_without_a_message_is_named():
    assert describe(KeyboardInterrupt()) == "KeyboardInterrupt"


def test_out_of_memory_names_the_limit():
    assert describe(MemoryError(), 512 << 20) == "out of memory (limit 512 MiB)"
    assert describe(RuntimeError("std::bad_alloc"), 1 << 30) == "out of memory (limit 1024 MiB)"


@pytest.mark.parametrize(
    ("status", "log", "line"),
    [
        (-signal.SIGSEGV, "anything", "killed by SIGSEGV"),
        (-signal.SIGABRT, "LLVM ERROR: out of memory\n", "killed by SIGABRT: LLVM ERROR: out of memory"),
        (-signal.SIGABRT, "", "killed by SIGABRT"),
        (7, "", "process exited with status 7"),
        (1, "ImportError: no x\n", "process exited with status 1: ImportError: no x"),
        (None, "", "process was killed"),
    ],
)
def test_how_a_process_ended(status, log, line):
    assert how_it_ended(status, log) == line

"""How long a contender runs when it is asked to."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest

from tuner.report import contender


def test_a_block_lasts_as_long_as_it_is_asked_to_whatever_its_runs_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel's seconds are a small part of a run that waits for the host. The clock is the test's: of eighths of a
    second, which add up without rounding."""
    now = 0.0

    def run() -> float:
        nonlocal now
        now += 0.125
        assert now < 100
        return 1e-9

    replies = io.StringIO()
    monkeypatch.setattr("sys.stdin", ['{"block": 2}'])
    monkeypatch.setattr(contender.time, "perf_counter", lambda: now)
    contender.serve(run, "slow", replies)
    version, block = map(json.loads, replies.getvalue().splitlines())
    assert version == {"version": "slow"}
    assert block["times"] == [1e-9] * 16


def test_the_peak_of_memory_is_this_processs_own(tmp_path: Path) -> None:
    status = tmp_path / "status"
    status.write_text("Name:\tpython\nVmPeak:\t  900 kB\nVmHWM:\t  123 kB\nVmRSS:\t  100 kB\n")
    assert contender.peak_bytes(status) == 123 << 10
    before = contender.peak_bytes()
    held = np.ones(before + (64 << 20), np.uint8)
    assert contender.peak_bytes() >= held.nbytes

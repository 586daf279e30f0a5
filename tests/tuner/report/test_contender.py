"""How long a contender runs when it is asked to."""

from __future__ import annotations

import io
import json
import time

import pytest

from tuner.report import contender


def test_a_block_lasts_as_long_as_it_is_asked_to_whatever_its_runs_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel's seconds are a small part of a run that waits for the host."""
    start = time.perf_counter()

    def run() -> float:
        assert time.perf_counter() - start < 5
        time.sleep(0.001)
        return 1e-9

    replies = io.StringIO()
    monkeypatch.setattr("sys.stdin", ['{"block": 0.02}'])
    contender.serve(run, "slow", replies)
    version, block = map(json.loads, replies.getvalue().splitlines())
    assert version == {"version": "slow"}
    assert 5 <= len(block["times"]) <= 20

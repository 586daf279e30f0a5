"""Names of workloads: no two have the same."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from templates.workloads import Conv2d
from tests.tuning_db import made
from tuner.errors import BadInput
from tuner.report.explain import workloads_like
from tuner.report.page import collect
from tuner.report.page.names import distinct_texts
from tuner.report.text import workload_text
from tuning_db.store import open_db

SAME = Conv2d(1, 8, 14, 14, 8, (3, 3), padding=(1, 1, 1, 1)).workload()
NONE = Conv2d(1, 8, 14, 14, 8, (3, 3)).workload()
OTHER = Conv2d(1, 8, 14, 14, 16, (3, 3)).workload()
CLIPPED = [replace(OTHER, epilogue=(token,)) for token in ("clip:0,6", "clip:0,1")]


def test_names_that_would_be_one_say_what_differs():
    assert workload_text(SAME) == workload_text(NONE)
    texts = distinct_texts([SAME, NONE, OTHER, *CLIPPED])
    assert texts[SAME] == f"{workload_text(SAME)} (padding=1x1x1x1)"
    assert texts[NONE] == f"{workload_text(NONE)} (padding=0x0x0x0)"
    assert texts[OTHER] == workload_text(OTHER)
    assert len(set(texts.values())) == 5


def test_each_of_them_can_be_named_and_the_page_tells_them_apart(tmp_path: Path):
    with open_db(tmp_path / "t.db") as store:
        store.add_many(made.trial(workload=w) for w in (SAME, NONE, OTHER))
        both = workloads_like(store, workload_text(SAME))
        assert sorted(both.values(), key=lambda w: w.key) == sorted((SAME, NONE), key=lambda w: w.key)
        assert [list(workloads_like(store, name).values()) for name in both] == [[w] for w in both.values()]
        assert len(workloads_like(store, "CONV2D")) == 3
        assert {task["text"] for task in collect(store)["tasks"]} == {*both, workload_text(OTHER)}
        nearest = re.escape(f"nearest first, {workload_text(OTHER)}; ")
        with pytest.raises(BadInput, match=f"no workload of .*{nearest}"):
            workloads_like(store, workload_text(OTHER) + " +none")
    with open_db(tmp_path / "empty.db") as store, pytest.raises(BadInput, match="it has none"):
        workloads_like(store, "pooling")

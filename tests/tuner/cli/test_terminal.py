"""Tables fit a terminal: the first column and the numbers stay whole, and what is left out is told."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.table import Table

from tuner.cli.terminal import fitted


def table(first: str = "conv2d 64x56x56 -> 64, 3x3/1 +bias +relu") -> Table:
    made = Table(box=None)
    made.add_column("task", overflow="fold")
    for title in ("first us", "best us", "gain", "error"):
        made.add_column(title, justify="right", no_wrap=True)
    made.add_column("template", no_wrap=True)
    made.add_column("failures")
    made.add_row(first, "1,234", "617", "2.00x", "3e-07", "conv2d_direct_nchw", "3 compile, 1 run")
    return made


def shown(what: Table, width: int) -> str:
    out = io.StringIO()
    Console(file=out, width=width, force_terminal=False).print(what)
    return out.getvalue()


def test_a_wide_terminal_has_all_of_it() -> None:
    whole, left_out = fitted(table(), 140)
    assert left_out == []
    assert [column.header for column in whole.columns] == [column.header for column in table().columns]


def test_eighty_columns_keep_the_task_and_whole_numbers() -> None:
    narrow, left_out = fitted(table(), 80)
    assert left_out == ["failures"]
    text = shown(narrow, 80)
    assert all(word in text for word in ("task", "1,234", "617", "2.00x", "3e-07", "conv2d_direct_nchw"))
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80
    assert (
        "".join(line[:26].strip() for line in text.splitlines()[1:]).replace(" ", "").startswith("conv2d64x56x56->64")
    )


def test_what_fits_behind_a_column_that_does_not_is_shown() -> None:
    narrow, left_out = fitted(table(), 75)
    assert left_out == ["template"]
    assert narrow.columns[-1].header == "failures"


@given(width=st.integers(60, 140), name=st.text(st.characters(categories=["Lu", "Nd", "Zs"]), max_size=60))
def test_no_line_is_longer_than_the_terminal_and_no_number_is_cut(width: int, name: str) -> None:
    narrow, left_out = fitted(table(name), width)
    text = shown(narrow, width)
    assert all(len(line) <= width for line in text.splitlines())
    assert "…" not in text
    assert len(narrow.columns) + len(left_out) == len(table().columns)


@pytest.mark.parametrize("width", [1, 10, 25])
def test_the_first_column_is_kept_in_any_case(width: int) -> None:
    narrow, left_out = fitted(table(), width)
    assert narrow.columns[0].header == "task"
    assert "failures" in left_out

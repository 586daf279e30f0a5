"""Every table and figure of the five papers has its line in the manual, with a command that exists."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.manual import ROOT

PAGE = ROOT / "docs" / "papers.md"
# The numbers of tables and figures of each paper, by the beginning of its heading on the page.
PAPERS = {
    "Wang et al.": (5, 3),
    "Liu et al.": (1, 3),
    "Deep Optimal Scheduling": (5, 8),
    "Jia, Zaharia and Aiken": (4, 14),
    "Mirhoseini et al.": (2, 9),
}
STATES = {"measured", "simulated", "drawn", "lacking"}


@dataclass(frozen=True)
class Line:
    """A line of the page's tables."""

    paper: str
    name: str
    shows: str
    state: str
    result: str


def lines() -> Iterator[Line]:
    paper = ""
    for text in PAGE.read_text(encoding="utf-8").splitlines():
        if text.startswith("## "):
            paper = next(known for known in PAPERS if text.startswith(f"## {known}"))
        elif text.startswith(("| Table", "| Figure")):
            yield Line(paper, *(cell.strip() for cell in text.strip("|").split(" | ")))


def commands() -> list[str]:
    return sorted({command for line in lines() for command in re.findall(r"`python (benchmarks/[^`]+)`", line.result)})


@pytest.mark.parametrize("paper", PAPERS)
def test_every_table_and_figure_has_one_line(paper: str) -> None:
    tables, figures = PAPERS[paper]
    expected = [f"Figure {i + 1}" for i in range(figures)] + [f"Table {i + 1}" for i in range(tables)]
    assert [line.name for line in lines() if line.paper == paper] == expected


def test_every_line_says_what_became_of_it() -> None:
    for line in lines():
        assert line.state in STATES, line
        assert line.shows, line
        assert line.result, line


def test_what_was_measured_or_simulated_has_a_command() -> None:
    """A line may name another line's command, or a file of the repository that has it."""
    for line in lines():
        if line.state in ("measured", "simulated"):
            assert re.search(r"`[^`]+`|as (table|figure) \d|the (same )?command", line.result), line


def test_every_file_that_is_named_is_there() -> None:
    for line in lines():
        for path in re.findall(r"`((?:tuner|vision_ops|benchmarks|templates)/[^` ]+)", line.result):
            assert (ROOT / path).exists(), path


@pytest.mark.parametrize("command", commands())
def test_every_command_is_understood(command: str) -> None:
    """The script is there, and has every option that the page gives it."""
    script, *words = shlex.split(command)
    text = (ROOT / script).read_text(encoding="utf-8")
    for word in words:
        assert not word.startswith("--") or f'"{word}"' in text, f"{script} has no {word}"

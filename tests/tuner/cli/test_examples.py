"""What `--help` ends with: every example is a command that `tune` understands, shown as it is typed."""

from __future__ import annotations

import shlex
from itertools import pairwise

import pytest
import typer

from tests.tuner.cli.conftest import run_tune
from tests.tuner.cli.usage import COMMANDS, parsed
from tuner.cli.completion import CPUS, NETWORKS, PEERS, PROFILES, SEARCHERS
from tuner.cli.examples import examples, examples_of

NAMES = {"--searcher": SEARCHERS, "--against": PEERS, "--target": PROFILES, "--network": NETWORKS}
WIDTH = 78  # of a terminal with 80 columns, what typer leaves to an epilog


@pytest.mark.parametrize("path", COMMANDS, ids=lambda path: " ".join(path) or "tune")
def test_every_command_has_examples_that_it_understands(path):
    lines = examples_of(COMMANDS[path])
    assert 2 <= len(lines) <= 3
    assert len(set(lines)) == len(lines)
    for line in lines:
        assert len(line) <= WIDTH, line
        program, *words = shlex.split(line)
        assert program == "tune"
        ran = parsed(words)
        assert ran[: len(path)] == path, line
        names = {**NAMES, "--target": CPUS} if ran == ("export",) else NAMES
        for option, value in pairwise(words):
            for name in value.split(",") if option in names else ():
                assert name.partition(":")[0] in names[option], line


def test_what_is_no_usage_is_no_example():
    usage_error = typer.BadParameter.__mro__[1]
    for line in ("model", "model m.onnx --trails 5", "modle m.onnx", "model m.onnx --trials 0", "db best more"):
        with pytest.raises(usage_error):
            parsed(shlex.split(line))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("path", [(), ("op",), ("replay",), ("explain",), ("db",), ("board", "serve")])
def test_help_ends_with_them_line_by_line(tmp_path, path):
    done = run_tune(*path, "--help", cwd=tmp_path, env={"COLUMNS": "80"})
    assert done.status == 0
    shown = [line.strip() for line in done.out.rstrip().splitlines()]
    lines = examples_of(COMMANDS[path])
    assert shown[-len(lines) - 1 :] == ["Examples:", *lines]


def test_a_bracket_in_an_example_is_no_markup():
    command = typer.Typer()
    line = "tune zoo [bold]x"
    command.command(epilog=examples(line))(lambda: None)
    assert examples_of(typer.main.get_command(command)) == [line]
    assert not examples_of(typer.main.get_command(typer.Typer(callback=lambda: None)))

"""Names made to harm a terminal, or to look like markup, in models: shown as text by every command that shows them."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from rich.table import Table

from tests.tuner.cli.conftest import Done, run_tune
from tests.tuner.tiny_network import write_tiny_network
from tests.tuning_db import made
from tuner.cli.terminal import console, visible
from tuning_db.record import DeviceKey, Workload
from tuning_db.store import open_db

HARM = "[/x]:boom:\x1b[1m\r\u202e"
SHOWN = r"[/x]:boom:\u001b[1m\u000d\u202e"
LONG = "n" * 10_000
MODEL = "[b]\x1b[1mnet"


def write_harmful_network(path: Path) -> Path:
    """The tiny network, its input, its output and every other operator named HARM and a number, the rest LONG."""
    model = onnx.load(write_tiny_network(path))
    (given,), (made,) = model.graph.input, model.graph.output
    for tensor, name in ((given, f"{HARM}in"), (made, f"{HARM}out")):
        for node in model.graph.node:
            for names in (node.input, node.output):
                for i, old in enumerate(names):
                    if old == tensor.name:
                        names[i] = name
        tensor.name = name
    for i, node in enumerate(model.graph.node):
        node.name = f"{LONG if i % 2 else HARM}{i}"
    model.graph.name = HARM
    path.write_bytes(model.SerializeToString())
    return path


def assert_shown(done: Done, *parts: str) -> None:
    assert done.status == 0, done.err
    text = done.out + done.err
    assert not {c for c in text if c != "\n" and not c.isprintable()}, ascii(text)
    told = "".join(text.split())
    for part in parts:
        assert part in told, part
    assert LONG not in told


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the network, t.db, and the network built as out."""
    made = tmp_path_factory.mktemp("names")
    write_harmful_network(made / f"{MODEL}.onnx")
    common = (f"{MODEL}.onnx", "--threads", 1, "--db", "t.db")
    tuned = run_tune("model", *common, "--trials", 1, cwd=made)
    assert_shown(tuned)
    assert_shown(run_tune("build", *common, "-o", "out", cwd=made), SHOWN, "n...(10,0")
    return made


@pytest.mark.sampled(2)
def test_a_plan_and_where_the_time_goes_show_them(folder: Path) -> None:
    planned = run_tune("plan", f"{MODEL}.onnx", "--threads", 1, "--db", "t.db", "-o", "plan.json", cwd=folder)
    assert_shown(planned, SHOWN)
    assert_shown(run_tune("bench", "out", "--profile", "--rounds", 1, cwd=folder), SHOWN)


def test_a_run_shows_them_and_a_timeline_has_them_as_they_are(folder: Path) -> None:
    assert_shown(run_tune("run", "out", "--trace", "trace.json", cwd=folder), f"{SHOWN}in", f"{SHOWN}out")
    text = (folder / "trace.json").read_text()
    assert text.isascii()
    trace = json.loads(text)
    assert trace["otherData"]["model"] == MODEL
    layers = {event["args"].get("layer") for event in trace["traceEvents"] if event["ph"] == "X"}
    manifest = json.loads((folder / "out" / "manifest.json").read_text())
    names = {operator["node"] for operator in manifest["operators"]}
    assert names <= layers
    assert any(name.startswith(HARM) for name in names)


def test_an_explanation_that_cannot_be_given_is_a_line_of_what_is_seen(tmp_path: Path) -> None:
    workload = Workload("[/b]odd", {HARM: f"{HARM}{LONG}"})
    with open_db(tmp_path / "t.db") as store:
        store.add(replace(made.trial(1, 1e-3), workload=workload, device=DeviceKey("cpu", "x86_64", HARM, {})))
    for asked in ("odd", "no such"):
        done = run_tune("explain", asked, "--db", "t.db", "--threads", 1, cwd=tmp_path)
        assert done.status == 2
        assert visible(HARM.split("\r")[0]) in done.error
        assert done.error.isprintable()
        assert len(done.error) < 1000
    assert_shown(run_tune("db", "stats", "--db", "t.db", cwd=tmp_path))


def test_an_error_about_one_is_a_line_without_orders_to_the_terminal(tune: Callable[..., Done]) -> None:
    assert visible("\x1b[31m.onnx") in tune("model", "\x1b[31m.onnx").error
    assert tune("report", "no\nsuch\x07").status == 2


def test_a_terminal_is_given_no_markup_and_no_orders() -> None:
    stream = io.StringIO()
    table = Table(box=None, title=HARM)
    table.add_column(HARM)
    table.add_row(HARM)
    shown = console(stream)
    shown.print(table)
    shown.print(f"{HARM}\ttab\nline\ud800", highlight=False, soft_wrap=True)
    assert stream.getvalue().count(SHOWN) == 4
    assert r"\ud800" in stream.getvalue()
    assert not {"\x1b", "\r", "\u202e"} & set(stream.getvalue())

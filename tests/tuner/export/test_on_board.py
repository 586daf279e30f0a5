"""Exports for a board: this machine is the board, with a real agent. They are verified and timed there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.board_agent.support import Agent
from tests.tuner.cli.conftest import run_tune
from tests.tuner.export.support import Made
from tests.tuner.module.test_detector import write_tiny_detector
from tests.tuner.tiny_network import write_tiny_network
from tuner.devices.board import Boards
from tuner.errors import BadInput
from tuner.export.on_board import BoardNetwork
from tuner.module.manifest import read_manifest
from tuning_db.store import open_db


@pytest.fixture
def board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a board that is paired with this user."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    agent = Agent(tmp_path)
    try:
        agent.pair(Boards(), "pi")
        yield "board:pi"
    finally:
        agent.stop()


def test_it_computes_there_what_the_module_does_here(board: str, made: Made) -> None:
    module = made.loaded()
    with BoardNetwork(board, made.folder, made.name, read_manifest(made.module)) as network:
        for seed in range(2):
            inputs = made.inputs(seed)
            results, wanted = network(inputs), module(inputs)
            assert results.keys() == wanted.keys()
            assert all(results[n].tobytes() == value.tobytes() for n, value in wanted.items())
        assert 0 < network.seconds(made.inputs()) < 60


@pytest.mark.parametrize("write", [write_tiny_network, write_tiny_detector])
def test_an_export_for_a_board(board: str, tmp_path: Path, write: object) -> None:
    model = write(tmp_path / "net.onnx")
    open_db(tmp_path / "edgetune.db").close()
    done = run_tune("export", model.name, "-o", "out", "--device", board, "--json", cwd=tmp_path)
    assert done.status == 0, done.err
    checked = done.json()["checked"]
    assert checked["device"] == board
    assert checked["errors"]
    assert max(checked["errors"].values()) < 1e-4
    assert checked["seconds"] > 0
    assert json.loads((tmp_path / "out" / "net.json").read_text())["checked"] == checked


def test_weights_of_another_export(board: str, tiny: Made, exports: Path, tmp_path: Path) -> None:
    """What the library says of them becomes one line."""
    manifest = read_manifest(tiny.module)
    folder = tmp_path / "mixed"
    folder.mkdir()
    (folder / "libtiny.so").write_bytes((tiny.folder / "libtiny.so").read_bytes())
    (folder / "tiny.weights").write_bytes((exports / "detector.c" / "detector.weights").read_bytes())
    with (
        BoardNetwork(board, folder, "tiny", manifest) as network,
        pytest.raises(BadInput, match=f"tiny cannot run on {board}: .*the weights are not those of this export"),
    ):
        network({"data": np.zeros((1, 3, 16, 16), np.float32)})


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--device", "board:nobody"], "no board is named 'nobody'"),
        (["--device", "cuda:57"], "device cuda:57: not found here"),
        (["--device", "board:a+b"], "networks are exported for devices that are here, or the CPU of one board"),
        (["--device", "board:a", "--target", "rpi4"], "--target and --device both say for which processor"),
    ],
)
def test_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], line: str) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    write_tiny_network(tmp_path / "net.onnx")
    open_db(tmp_path / "edgetune.db").close()
    done = run_tune("export", "net.onnx", "-o", "out", *words, cwd=tmp_path)
    assert done.status == 2
    assert line in done.error
    assert not (tmp_path / "out").exists()

"""Exports for a board: this machine is the board, with a real agent. They are verified and timed there."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import numpy as np
import pytest

from tests.board_agent.support import Agent, eventually
from tests.tuner.cli.conftest import run_tune
from tests.tuner.export.support import Made
from tests.tuner.module.test_detector import write_tiny_detector
from tests.tuner.tiny_network import write_tiny_network
from tuner.devices.board import Boards, Link
from tuner.errors import BadInput
from tuner.export.on_board import BoardNetwork
from tuner.module.manifest import read_manifest
from tuning_db.store import open_db


def test_it_computes_there_what_the_module_does_here(board: str, made: Made) -> None:
    module = made.loaded()
    with BoardNetwork(board, made.folder, made.name, read_manifest(made.module)) as network:
        for seed in range(2):
            inputs = made.inputs(seed)
            results, wanted = network(inputs), module(inputs)
            assert results.keys() == wanted.keys()
            assert all(results[n].tobytes() == value.tobytes() for n, value in wanted.items())
        assert 0 < network.seconds(made.inputs()) < 60


def test_waiting_for_a_turn_is_told(board: str, tiny: Made) -> None:
    notes: list[str] = []
    settings = {"device": "cpu", "form": "network", "threads": 1, "memory_bytes": 1 << 30, "network": "n", "inputs": 1}
    with Link(Boards()["pi"]) as other:
        other.start(settings, 60.0)

        def leave() -> None:
            eventually(lambda: notes)
            other.close()

        leaving = threading.Thread(target=leave)
        leaving.start()
        with BoardNetwork(board, tiny.folder, "tiny", read_manifest(tiny.module), notice=notes.append) as network:
            assert network(tiny.inputs())
        leaving.join()
    assert notes[0].startswith("waiting for board pi: 1st in line, ")
    assert notes[0].endswith(" measures, 1 wait")
    assert notes[-1] == "board pi runs this network now"


def test_it_goes_on_after_the_end_of_its_turn(agent: Agent, tiny: Made) -> None:
    """Another host gets the board meanwhile."""
    agent.pair(Boards(), "pi", "--turn", "0.5")
    notes: list[str] = []
    settings = {"device": "cpu", "form": "network", "threads": 1, "memory_bytes": 1 << 30, "network": "n", "inputs": 1}

    def wait_for_a_turn() -> None:
        with Link(Boards()["pi"]) as other:
            other.start(settings, 60.0, waits=lambda _: None)
            eventually(lambda: notes)

    with BoardNetwork("board:pi", tiny.folder, "tiny", read_manifest(tiny.module), notice=notes.append) as network:
        wanted = network(tiny.inputs())
        waiting = threading.Thread(target=wait_for_a_turn)
        waiting.start()
        eventually(lambda: network(tiny.inputs()) and notes)
        waiting.join()
        results = network(tiny.inputs())
    assert all(results[name].tobytes() == value.tobytes() for name, value in wanted.items())


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
        (["--device", "board:a+b"], "networks are built for one board at a time: name one"),
        (["--device", "board:a/cuda:0"], "networks are built for the CPU or an OpenCL device of one board"),
        (["--device", "board:a:opencl:0"], "a slash is before the device: board:a/opencl:0"),
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

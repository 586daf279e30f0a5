"""Kernels and pieces of networks that are timed on a board by themselves: this machine is the board."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tvm import relax

from tests.board_agent.support import Agent
from tests.tuner.graph.networks import Net
from tuner.devices import Device
from tuner.devices.board import open_to_build
from tuner.devices.roof import sum_kernel
from tuner.errors import BadInput
from tuner.export.bare import END
from tuner.export.board_timing import _OUTPUT, BoardTiming, _Session, timed_there
from tuner.export.chain import Chain
from tuner.graph import AnchorStep, DevicePlan, lower_alone


@pytest.fixture
def device(board: str) -> Device:
    (opened,) = open_to_build(board, 1, print)
    return opened


def test_every_chain_has_its_turn_in_every_round(board: str, device: Device, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("one", "several")]
    for folder, count in zip(folders, (1, 5), strict=True):
        folder.mkdir()
        Chain((192,), [(0, sum_kernel(device, 192))] * count).export([device], folder)
    with _Session(board, folders, 1, print) as session:
        times = session.times(3)
        written = session._get(_OUTPUT, END.shape, END.dtype)
    assert [len(own) for own in times] == [3, 3]
    assert min(map(min, times)) > 0
    assert np.array_equal(written, np.ones(END.shape))  # the end is behind all kernels


def test_a_step_with_weights(board: str, device: Device, tmp_path: Path) -> None:
    """Weights are those that it holds itself, and a value that it reads."""
    net = Net()
    x = net.op("Relu", net.input(1, 16, 12, 12))
    graph = net.graph(tmp_path, net.conv(x, (16, 16), 3, pads=[1] * 4))
    (step,) = (s for s in graph.steps if isinstance(s, AnchorStep))
    alone = lower_alone(graph, step, DevicePlan(device.target, {}))
    (seconds,) = BoardTiming(board, [device]).module(alone.module, device)
    assert seconds > 0


def test_what_does_more_than_call_kernels(board: str, device: Device) -> None:
    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType((4,), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            made = builder.emit_output(relax.call_pure_packed("vm.builtin.copy", x, ty_args=x.ty))
        builder.emit_func_output(made)
    with pytest.raises(RuntimeError, match="cannot be exported"):
        BoardTiming(board, [device]).module(builder.get(), device)


def test_a_board_that_is_gone(agent: Agent, board: str, device: Device) -> None:
    agent.stop()
    with pytest.raises(BadInput, match="nothing listens there"):
        timed_there(board, [device], [Chain((16,), [(0, sum_kernel(device, 16))])], 1)

"""A network as one CUDA graph: all of its kernels are in it, on the streams that they had, and no tensor that an
inference gives or takes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tvm
from tvm import relax
from tvm.target import Target

from tests.tuner.graph.cuda_networks import TARGET, in_stages
from tuner.graph import Placed, memory_as_operands, why_not_captured
from tuner.graph.lowering.capture import CAPTURED, graph_of, with_captured

GRAPH = "captured_cuda_graph_capture"


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Placed:
    return in_stages(tmp_path_factory.mktemp("net"))


def called(function: relax.Function) -> Iterator[str]:
    """The kernels and the runtime's functions, in order."""
    for block in function.body.blocks:
        for binding in block.bindings:
            op = getattr(binding.value, "op", None)
            if isinstance(op, tvm.ir.GlobalVar):
                yield op.name_hint
            elif isinstance(op, relax.ExternFunc):
                yield str(op.global_symbol)


def captured(network: Placed) -> tvm.IRModule:
    module = with_captured(memory_as_operands()(network.module), TARGET)
    return graph_of(relax.transform.StaticPlanBlockMemory()(module))


def test_all_kernels_are_in_one_graph_in_their_order(network: Placed) -> None:
    module = captured(network)
    every = [name.removesuffix("_given") for name in called(module[GRAPH])]
    assert every == list(called(module["main"]))
    assert "edgetune.stage.aside" in every
    assert all(name.startswith("copy") for name in called(module[CAPTURED]))


def test_no_kernel_of_a_graph_allocates(network: Placed) -> None:
    module = captured(network)
    given = [name for name in called(module[GRAPH]) if name.endswith("_given")]
    assert given  # the mean over an image has two kernels, which hand each other sums
    for name, function in module.functions.items():
        if name.name_hint in given:
            root = function.body.block
            assert [tensor for tensor in root.alloc_buffers if tensor.scope() == "global"] == []


def test_there_are_none_on_other_devices(network: Placed) -> None:
    assert why_not_captured(network.module, TARGET) is None
    assert why_not_captured(network.module, Target("llvm")) == "there are no graphs on llvm"


@dataclass(frozen=True)
class Ran:
    """What the child told, and the lines of the driver's log of each of its two inferences."""

    told: dict[str, Any]
    first: list[list[str]]
    second: list[list[str]]


def ran(libraries: Path, folder: Path, **more: str) -> Ran:
    """With TVM's runtime for CUDA, over a driver that refuses what must not be while a stream is captured."""
    log = folder / "log"
    environment = {**os.environ, "LD_LIBRARY_PATH": str(libraries), "EDGETUNE_CUDA_LOG": str(log), **more}
    command = [sys.executable, "-m", "tests.tuner.graph.captured_child", str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    lines = [line.split() for line in log.read_text().splitlines()]
    first, second, end = told["starts"]
    return Ran(told, lines[first:second], lines[second:end])


@pytest.mark.sampled(2)
def test_a_module_is_launched_as_one_with_its_streams(libraries: Path, tmp_path: Path) -> None:
    found = ran(libraries, tmp_path)
    captured = [(kernel, stream) for what, kernel, stream in found.first if what == "captured"]
    assert len({stream for _, stream in captured}) == 3  # branches
    again = [(what, kernel) for what, kernel, _ in found.second]
    graph = [("graph", kernel) for kernel, _ in captured]
    assert again[1:-2] == graph  # between copies of the input and of two results
    assert all(what == "launched" and kernel.startswith("copy") for what, kernel in (again[0], *again[-2:]))
    told = found.told
    assert {name for name in told["kernels"] if name} <= set(told["profiled"])  # a graph shows none of them
    assert not [line for line in told["left out"] if "CUDA graph" in line]  # none was refused
    assert told["measured"][0] > 0
    assert told["measured"][1] == 0


@pytest.mark.night
def test_where_the_driver_captures_nothing_a_line_says_so_and_kernels_are_launched(
    libraries: Path, tmp_path: Path
) -> None:
    found = ran(libraries, tmp_path, EDGETUNE_CUDA_NO_GRAPHS="1")
    refused = [line for line in found.told["left out"] if line.startswith("no CUDA graph: ")]
    assert len(refused) == 1  # by the search; what is remembered was not tried again
    assert "refused while a stream is captured" in refused[0]
    assert found.second
    assert {what for what, _, _ in found.second} == {"launched"}

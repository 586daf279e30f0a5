"""The agent where TVM is not installed: kernels go there as source, and the answers are those of this machine's own
runtime on the same device."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from templates.template import search_space
from tests.board_agent.support import Agent
from tests.board_agent.thin import thin_python
from tests.templates.workloads import WORKLOADS
from tests.tuner.measure.misbehaving_gpu import candidate as misbehaving
from tuner.devices import Device, kind_of, open_device
from tuner.devices.board import Boards, Link, NotCompiled, reports
from tuner.errors import BadInput
from tuner.measure import Candidate, LocalRunner, MeasureOptions, open_runner
from tuning_db.record import FailureKind
from vision_ops.argsort import Argsort
from vision_ops.nms import Nms

FRAGILE = ("-m", "tests.board_agent.fragile_board")  # it is not installed there
THIN = "board:thin/opencl:0"
MEASURED = {
    "convolution": WORKLOADS["conv3x3"],
    "depthwise": WORKLOADS["depthwise"],
    "dense": WORKLOADS["dense_rows"],
    "argsort": Argsort(2, 3000, 3000).workload(),
    "nms": Nms(2, 5, 600, 400, 100, 0.45, score=0.2, centre=True).workload(),
}


@pytest.fixture(scope="module", autouse=True)
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    python, folder = thin_python(), tmp_path_factory.mktemp("thin")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(folder))
        made = Agent(folder, python=python)
        try:
            made.pair(Boards(), "thin")
            yield made
        finally:
            made.stop()


@pytest.fixture(params=["opencl", "cuda"])
def both(request: pytest.FixtureRequest) -> tuple[Device, Device]:
    """The board's first device of a kind, and the same one as it is opened here."""
    kind = request.param
    thin_python(kind)
    there = open_device(f"board:thin/{kind}:0")
    return there, next(device for device in kind_of(f"{kind}:0").list_here() if device.key.model == there.key.model)


def test_the_host_cannot_tell_it_from_its_own_device(both: tuple[Device, Device]) -> None:
    there, here = both
    assert there.key == here.key
    assert str(there.target) == str(here.target)
    assert there.cache_bytes == here.cache_bytes
    assert there.memory_bytes == pytest.approx(here.memory_bytes, rel=0.5)  # PoCL's is what is free now


def test_it_says_whose_memory_its_opencl_device_works_on() -> None:
    model = open_device("board:thin/opencl:0").key.model
    here = next(device for device in kind_of("opencl:0").list_here() if device.key.model == model)
    facts, report = reports("board:thin/opencl:0", print)
    assert report["host_memory"] == here.kind.shares_memory(here)
    assert facts["memory_bytes"] > 1 << 30


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", MEASURED)
def test_it_computes_what_the_full_runtime_computes(name: str, both: tuple[Device, Device]) -> None:
    device, own = both
    space = search_space(MEASURED[name], device.target)
    assert space is not None
    firsts = {config.template: config for config in reversed(space.seed_configs())}
    candidates = [Candidate(MEASURED[name], config) for config in firsts.values()]
    with open_runner(device, MeasureOptions()) as runner:
        there = list(runner.measure(candidates))
        compared = runner.compare(candidates)
    with LocalRunner(own, MeasureOptions()) as runner:
        here = list(runner.measure(candidates))
    assert [trial.failure for trial in there] == [None] * len(candidates)
    assert [trial.error for trial in there] == [trial.error for trial in here]
    assert all(trial.ok for trial in compared)


def test_a_kernel_that_its_compiler_refuses_is_told_and_the_next_one_runs() -> None:
    good = "__kernel void f(__global float* a, int n) { int i = get_global_id(0); a[i] = i + n; }"
    launch = {"kernel": "f", "groups": [2, 1, 1], "items": [4, 1, 1], "arguments": [["argument", 0], ["int32", 3]]}
    program = {"source": good, "arguments": [32], "workspaces": [], "launches": [launch]}
    settings = {"device": "opencl:0", "form": "launches", "threads": 1, "memory_bytes": 1 << 30}
    with Link(Boards()["thin"]) as link:
        link.ask({"do": "start", "settings": settings})
        with pytest.raises(NotCompiled, match="undeclared"):
            link.ask({"do": "load", "id": 1}, [json.dumps({**program, "source": good.replace("+ n", "+ m")}).encode()])
        link.ask({"do": "load", "id": 2}, [json.dumps(program).encode()])
        given = {"id": 3, "shape": [8], "dtype": "float32", "part": 0}
        link.ask({"do": "put", "tensors": [given]}, [np.zeros(8, np.float32)])
        answer, _ = link.ask({"do": "call", "function": 2, "arguments": [3]})
        assert answer["seconds"] > 0
        _, (data,) = link.ask({"do": "get", "tensor": 3})
        np.testing.assert_array_equal(np.frombuffer(data, np.float32), np.arange(8) + 3)


def test_a_kernel_that_takes_the_board_away_while_it_is_compiled_is_to_blame(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuner.measure.boards.fleet._PAUSES", (0.1,))
    fragile = Agent(tmp_path, [*FRAGILE, "load", "#define for while"], python=thin_python())
    try:
        fragile.pair(Boards(), "fragile")
        device = open_device("board:fragile/opencl:0")
        with open_runner(device, MeasureOptions(plugins=("tests.tuner.measure.misbehaving_gpu",))) as runner:
            trials = list(runner.measure([misbehaving("right"), misbehaving("endless"), misbehaving("right", 1)]))
    finally:
        fragile.stop()
    assert [t.ok for t in trials] == [True, False, True]
    failure = trials[1].failure
    assert failure is not None
    assert (failure.kind, "lost 2 times over it" in failure.message) == (FailureKind.RUN, True)


def test_what_it_does_not_have_is_one_line() -> None:
    with pytest.raises(BadInput, match=r"no device opencl:99 here: opencl:0 is "):
        open_device("board:thin/opencl:99")
    with pytest.raises(BadInput, match="board:thin for its CPU, board:thin/opencl:N or /cuda:N"):
        open_device("board:thin/vulkan:0")
    with pytest.raises(BadInput, match="for the CPU"):
        open_device(THIN, 2)
    with (
        pytest.raises(BadInput, match="No module named 'tvm': python3 -m pip install tvm there"),
        open_runner(open_device("board:thin", 1), MeasureOptions()),
    ):
        pass

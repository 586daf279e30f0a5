"""Exports in stages for CUDA, on the stand-in for Nvidia's driver: groups are in streams of their own, or in one stream
where there are no more, and wait for what is before their stage alone."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.tuner.export.test_cuda import MadeForCuda, expected_launches, made_for_cuda, refusal, reports_of
from tuner.export.checking import wrapper_of
from tuner.graph import Program
from tuner.module import OnnxReference


@pytest.fixture
def staged(tmp_path_factory: pytest.TempPathFactory) -> MadeForCuda:
    return made_for_cuda("staged", tmp_path_factory)


def expected_branches(program: Program, streams: int) -> list[tuple[int, int]]:
    """Return the stream of each launch of a run, and how many launches have to be done before it."""
    found: list[tuple[int, int]] = []
    for groups in program.groups():
        aside, before, at = min(len(groups), streams) - 1, len(found), 0
        for number, group in enumerate(groups):
            stream = number + 1 if number < aside else 0
            at = 0 if number <= aside else at  # those in the first stream follow each other
            for function in (program.calls[i].function for i in group):
                for _ in program.launches.get(function, {}).get("launches", ()):
                    found.append((stream, before + at))
                    at += 1
    return found


def computed(made: MadeForCuda, plain: bool, streams: int) -> None:
    """Compute twice and check the outputs, and what was launched where."""
    network = made.network(driver=made.driver, plain_launches=plain)
    reference = OnnxReference(made.module.parent / "net.onnx")
    with reports_of(made) as driver:
        for seed in range(2):
            inputs = made.inputs(seed)
            outputs = network(inputs)
            for name, wanted in reference(inputs).items():
                np.testing.assert_allclose(outputs[name], wanted, rtol=1e-4, atol=1e-5 * np.abs(wanted).max())
            assert driver.launches() == expected_launches(made.program)
            assert driver.branches() == expected_branches(made.program, streams)
        del network


@pytest.mark.parametrize("plain", [False, True], ids=["graph", "plain"])
def test_groups_run_in_streams_of_their_own(staged: MadeForCuda, plain: bool) -> None:
    widest = max(len(stage.groups) for stage in staged.program.stages)
    assert widest == 3
    computed(staged, plain, widest)


@pytest.mark.parametrize("plain", [False, True], ids=["graph", "plain"])
@pytest.mark.parametrize(
    ("variable", "value", "streams"),
    [("EMULATED_STREAMS", "2", 2), ("EMULATED_STREAMS", "1", 1), ("EMULATED_FAULT", "cuEventCreate=2", 1)],
)
def test_where_no_more_streams_can_be_made_groups_follow_each_other(
    staged: MadeForCuda, variable: str, value: str, streams: int, plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    computed(staged, plain, streams)


@pytest.mark.parametrize("function", ["cuEventRecord", "cuStreamWaitEvent"])
def test_what_the_driver_refuses(staged: MadeForCuda, function: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it captures, it is said when a network is made, and else when it runs, after which it runs again."""
    line = f"{function}: unknown error (error 719): the device or its driver failed"
    wrapper = wrapper_of(staged.folder, "net")
    with reports_of(staged) as driver:
        network = wrapper.Network(driver=staged.driver, plain_launches=True)
        right = network(staged.inputs())
        monkeypatch.setenv("EMULATED_FAULT", f"{function}=719")
        assert refusal(staged) == line
        with pytest.raises(wrapper.NetworkError, match=re.escape(line)):
            network(staged.inputs())
        monkeypatch.delenv("EMULATED_FAULT")
        again = network(staged.inputs())
        assert {name: value.tobytes() for name, value in again.items()} == {n: v.tobytes() for n, v in right.items()}
        driver.launches()
        del network

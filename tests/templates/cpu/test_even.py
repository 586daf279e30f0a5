"""The first configs of CPU templates keep all threads busy."""

from __future__ import annotations

from typing import Any

import pytest
import tvm_ffi
from tvm import tirx
from tvm.target import Target

import vision_ops  # noqa: F401  (registers the templates)
from templates.batch_matmul import BatchMatmul
from templates.cpu.stages import even, waiting
from templates.template import default_config, template_named
from templates.workloads import Conv2d, Dense
from tuning_db.record import Workload

_MOST = 1.34  # that threads may wait: of three chunks one thread of two has two

WORKLOADS = {
    "few channels": Conv2d(1, 16, 256, 256, 16, (3, 3), padding=(1, 1, 1, 1)).workload(),
    "one block to one, 1x1": Conv2d(1, 16, 112, 112, 16, (1, 1)).workload(),
    "three blocks, 1x1": Conv2d(1, 144, 56, 56, 48, (1, 1)).workload(),
    "first layer": Conv2d(1, 3, 224, 224, 16, (3, 3), strides=(2, 2), padding=(1, 1, 1, 1)).workload(),
    "depthwise of one block": Conv2d(1, 16, 112, 112, 16, (3, 3), padding=(1, 1, 1, 1), groups=16).workload(),
    "small groups": Conv2d(1, 32, 56, 56, 32, (3, 3), padding=(1, 1, 1, 1), groups=8).workload(),
    "dense of three blocks": Dense(197, 192, 192).workload(),
    "one product": BatchMatmul(1, 196, 64, 48).workload(),
}


def _parallel(func: tirx.PrimFunc) -> list[int]:
    """Return the extents of the parallel loops of a function, with 1 where there is none."""
    loops: list[Any] = []
    tvm_ffi.structural_walk(func.body, [(tirx.For, loops.append)])
    return [int(loop.extent) for loop in loops if loop.kind == tirx.ForKind.PARALLEL] or [1]


@pytest.mark.parametrize("threads", [2, 4])
@pytest.mark.parametrize("isa", ["x86-64-v4", "x86-64-v3"])
@pytest.mark.parametrize("name", WORKLOADS)
def test_threads_share_the_first_config_out(name: str, isa: str, threads: int) -> None:
    target = Target({"kind": "llvm", "mcpu": isa, "num-cores": threads})
    workload: Workload = WORKLOADS[name]
    config = default_config(workload, target)
    assert config is not None
    func = template_named(config.template).prim_func(workload, target, config)
    assert all(waiting(chunks, threads) <= _MOST for chunks in _parallel(func)), (config, _parallel(func))


def test_waiting() -> None:
    assert [waiting(chunks, 2) for chunks in (1, 2, 4)] == [2, 1, 1]
    assert waiting(3, 4) == pytest.approx(4 / 3)
    assert even(7, 4)
    assert not even(5, 4)


@pytest.mark.parametrize("threads", [2, 4, 6])
@pytest.mark.parametrize("name", WORKLOADS)
def test_a_config_of_other_threads_is_spread(name: str, threads: int) -> None:
    """What was the best on one thread is valid on several, keeps them busy, and is the same where it did so before."""
    workload: Workload = WORKLOADS[name]
    one, several = (Target({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": n}) for n in (1, threads))
    config = default_config(workload, one)
    assert config is not None
    template = template_named(config.template)
    found = template.spread(workload, several, config)
    space = template.space(workload, several)
    assert space is not None
    assert space.is_valid(found)
    before, after = (_parallel(template.prim_func(workload, several, c)) for c in (config, found))
    assert all(waiting(chunks, threads) <= 1.51 for chunks in after), (found, after)
    assert found == config or max(waiting(c, threads) for c in before) > max(waiting(c, threads) for c in after)
    assert template.spread(workload, one, config) == config

"""Runs a template of an operator without a weight, on the host or a driver, beside its reference."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import tvm
from tvm.target import Target

import vision_ops
from templates.gpu.limits import gpu_limits
from templates.lowering import build
from templates.operator import Operator, operator_named
from templates.template import search_space, template_named
from tests.templates.gpu.support import PLATFORMS, driver
from tests.templates.support import CPU, at_cache_lines, host_target
from tuner.measure.targets.operands import unwritten
from tuning_db.record import Config, Workload

assert vision_ops is not None  # imported for the operators that it registers

PLACES = ("host", *PLATFORMS)
_FENCE = 1024  # values behind an output that a kernel must leave alone, and before it on the host


@dataclass(frozen=True)
class Place:
    """Where kernels run."""

    target: Target
    device: Any

    @staticmethod
    def named(name: str) -> Place:
        """The host, or the first device of a driver; the test is skipped where that is not installed."""
        if name == "host":
            return Place(host_target(), CPU)
        found = driver(name)
        return Place(found.target(), found.device)


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> Place:
    return Place.named(request.param)


def configs_of(workload: Workload, target: Target, samples: int = 0, seed: int = 0) -> list[Config]:
    """The seeds of all templates, and some more; on drivers, which take seconds to compile, the first of either."""
    space = search_space(workload, target)
    assert space is not None, "no template applies"
    rng, seeds = random.Random(seed), space.seed_configs()
    sampled = [space.sample(rng) for _ in range(samples)]
    if target.kind.name != "llvm":
        seeds, sampled = seeds[:1], sampled[:1]
    return list(dict.fromkeys([*seeds, *(config for config in sampled if config is not None)]))


@dataclass(frozen=True)
class Compiled:
    """A config's function, compiled as candidates and modules are."""

    workload: Workload
    place: Place
    function: Any

    @staticmethod
    def of(workload: Workload, config: Config, place: Place) -> Compiled:
        func = template_named(config.template).prim_func(workload, place.target, config)
        module = build(func, place.target)
        assert gpu_limits(place.target) is None or module.imports
        return Compiled(workload, place, module["main"])

    @property
    def operator(self) -> Operator:
        return operator_named(self.workload.op)

    def __call__(self, *inputs: np.ndarray) -> list[np.ndarray]:
        """The outputs. Fails if anything was written outside them."""
        tensors = [tvm.runtime.tensor(a, self.place.device) for a in inputs]
        fences, outputs = [], []
        for spec in self.operator.outputs(self.workload):
            around, out = _fenced(spec.shape, spec.dtype, self.place.device)
            fences += around
            outputs.append(out)
        self.function(*tensors, *outputs)
        self.place.device.sync()
        assert all((fence == 7).all() for fence in fences), "the kernel wrote outside its output"
        return [out.numpy() for out in outputs]

    def error(self, *inputs: np.ndarray) -> float:
        expected = self.operator.reference(self.workload, inputs)
        return self.operator.error(self.workload, self(*inputs), expected)


def _fenced(shape: Sequence[int], dtype: str, device: Any) -> tuple[list[np.ndarray], Any]:
    """An output whose cells hold what no kernel writes, and, on the host, the fences that it lies between."""
    empty = np.full(shape, unwritten(dtype), dtype)
    if device != CPU:
        return [], tvm.runtime.tensor(empty, device)
    room = at_cache_lines(np.full(empty.size + 2 * _FENCE, 7, dtype))
    inside = room[_FENCE : _FENCE + empty.size].reshape(shape)
    inside[...] = empty
    return [room[:_FENCE], room[_FENCE + empty.size :]], tvm.runtime.from_dlpack(inside)

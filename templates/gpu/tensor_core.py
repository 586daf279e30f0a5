"""Convolution on Nvidia's tensor cores as an implicit matrix product: half precision, or tf32. Compiled only, not run.

Data (N, C/16, H, W, 16), weights (K/16, C/16, R, S, 16 in, 16 out), output (N, K/16, OH, OW, 16). A warp multiplies
fragments of 16 pixels by 16 channels, `mi` by `ni` of them, and a group is `mt` by `nt` warps. In every turn the group
copies one kernel position of `ct` blocks of input channels into local memory; at the end the sums go through local
memory too, where the epilogue reads them in whole vectors. Sums are float32. See `templates.gpu.tensor_core_kernels`.

Hopper's own instructions (wgmma) and its copies of whole tiles (TMA) are not used.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from tvm import tirx
from tvm.target import Target

from templates.blocking import blocking, divisors, pack_oihw
from templates.gpu import tf32  # noqa: F401  registers its hook
from templates.gpu.limits import GpuLimits, gpu_limits, gpu_limits_of
from templates.gpu.stages import launch_features, limit_constraints
from templates.gpu.tensor_core_kernels import (
    FRAGMENT,
    TensorCoreProblem,
    schedule_tensor_core,
    tensor_core_compute,
)
from templates.space import Constraint, Knob, Space, Values
from templates.template import AnchorTemplate, Layout, Layouts
from templates.workloads import conv_of
from tuning_db.record import Config, Workload

# Pixels computed in vain, in relation to those needed: a tensor core is at least four times as fast as the rest.
MAX_WASTE = 2.0
# Warps along pixels and along channels, and fragments of a warp, best first.
_SEEDS: tuple[Values, ...] = (
    {"mt": 2, "nt": 2, "mi": 2, "ni": 2, "ct": 2},
    {"mt": 4, "nt": 2, "mi": 2, "ni": 2, "ct": 1},
    {"mt": 2, "nt": 2, "mi": 2, "ni": 1, "ct": 2},
    {"mt": 2, "nt": 2, "mi": 1, "ni": 1, "ct": 4},
    {"mt": 1, "nt": 2, "mi": 1, "ni": 1, "ct": 4},
)


class GpuTensorCore(AnchorTemplate):
    """Knobs: warps of a group along pixels and output channels (`mt`, `nt`), fragments of a warp (`mi`, `ni`), `ct`
    input blocks per turn, `skew`: rows in local memory lie in different banks, `asynchronous` copies of the next turn's
    values (from compute capability 8.0 on)."""

    name = "gpu.conv2d_tensor_core"
    op = "conv2d"
    dtypes = ("float16",)
    capability = 70  # CUDA's, times ten

    def _problem(self, workload: Workload, limits: GpuLimits) -> TensorCoreProblem:
        conv = conv_of(workload)
        return TensorCoreProblem(conv, blocking(conv, FRAGMENT), workload.dtype, limits)

    def layouts(self, workload: Workload, target: Target) -> Layouts:
        return Layouts(Layout(FRAGMENT), Layout(FRAGMENT))

    def space(self, workload: Workload, target: Target) -> Space | None:
        limits = gpu_limits(target)
        if limits is None or limits.capability < self.capability or workload.dtype not in self.dtypes:
            return None
        problem = self._problem(workload, limits)
        if problem.conv.is_depthwise or problem.conv.in_channels < FRAGMENT:
            return None
        knobs = _knobs(problem)
        smallest = {knob.name: knob.values[0] for knob in knobs}
        if problem.waste(smallest) > MAX_WASTE:
            return None
        return Space(self.name, knobs, _constraints(problem), _seeds(knobs), lambda v: _features(problem, v))

    def weight_key(self, workload: Workload, target: Target, config: Config) -> str:
        return "oihw"

    def pack_weight(self, workload: Workload, target: Target, config: Config, weight: np.ndarray) -> np.ndarray:
        problem = self._problem(workload, gpu_limits_of(target))
        return pack_oihw(problem.conv, problem.blocks, weight)

    def prim_func(self, workload: Workload, target: Target, config: Config) -> tirx.PrimFunc:
        problem = self._problem(workload, gpu_limits_of(target))
        func = tensor_core_compute(problem, workload.epilogue, config.knobs)
        return schedule_tensor_core(problem, func, config.knobs)


class GpuTensorCoreTf32(GpuTensorCore):
    """The same for float32, whose operands are rounded to 11 significant bits (tf32) before they are multiplied: only
    for those who ask for it by name, and allow the error."""

    name = "gpu.conv2d_tensor_core_tf32"
    dtypes = ("float32",)
    capability = 80
    exact = False
    tolerance = 1e-3


def _knobs(p: TensorCoreProblem) -> tuple[Knob, ...]:
    b = p.blocks
    tiles = -(-p.pixels // FRAGMENT)
    powers = (1, 2, 4, 8)
    several = b.in_blocks * p.conv.kernel[0] * p.conv.kernel[1] > 1
    return (
        Knob("mt", tuple(n for n in powers if n <= tiles)),
        Knob("mi", tuple(n for n in powers[:3] if n <= tiles)),
        Knob("nt", divisors(b.out_blocks, 8)),
        Knob("ni", divisors(b.out_blocks, 4)),
        Knob("ct", tuple(d for d in (1, 2, 4, 8) if b.in_blocks % d == 0)),
        Knob("skew", (1, 0)),
        *([Knob("asynchronous", (0, 1))] if p.limits.copies_asynchronously and several else []),
    )


def _constraints(p: TensorCoreProblem) -> tuple[Constraint, ...]:
    return (
        Constraint("the tile does not divide the channels", lambda v: p.blocks.out_blocks % (v["nt"] * v["ni"]) == 0),
        *limit_constraints(p.limits, p.group, p.registers, p.local_bytes),
        Constraint("too many pixels are computed in vain", lambda v: p.waste(v) <= MAX_WASTE),
        Constraint(
            "there is no next turn to copy asynchronously", lambda v: not v.get("asynchronous", 0) or p.turns(v) > 1
        ),
    )


def _seeds(knobs: tuple[Knob, ...]) -> tuple[Values, ...]:
    """Those above, no larger than the problem allows; the first of them with asynchronous copies too."""
    values = {knob.name: knob.values for knob in knobs}
    fitted = [{name: max(x for x in values[name] if x <= wanted) for name, wanted in s.items()} for s in _SEEDS]
    first = [{**seed, "asynchronous": 1} for seed in fitted[:2] if "asynchronous" in values]
    return (*first, *fitted, {})


def _features(p: TensorCoreProblem, v: Values) -> Mapping[str, float]:
    """What the loops say: items and groups, how many groups fit at once, work per load, registers, local memory."""
    pixels, blocks = p.tile(v)
    channels = blocks * FRAGMENT
    return {
        **launch_features(p.limits, p.group(v), p.groups(v), p.local_bytes(v)),
        "flop_per_byte": 2.0 * pixels * channels / (p.value_bytes * (pixels + channels)),
        "accumulators": float(v["mi"] * v["ni"]),
        "registers": float(p.registers(v)),
        "loads_per_fma": (v["mi"] + v["ni"]) / (v["mi"] * v["ni"]),
        "body_fmas": float(v["mi"] * v["ni"] * v["ct"] * FRAGMENT // p.depth),
        "turns": float(p.turns(v)),
        "waste": p.waste(v),
    }

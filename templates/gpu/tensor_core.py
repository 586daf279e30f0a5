"""The templates that compute convolutions on Nvidia's tensor cores, in half precision, tf32 or 8-bit integers.

Start at `GpuTensorCore`. The convolution is an implicit matrix product (`templates.gpu.tensor_core_kernels`). Data is
(N, C/16, H, W, 16), weights are (K/16, C/16, R, S, 16 in, 16 out), the output is (N, K/16, OH, OW, 16). A warp computes
`mi` by `ni` fragments of 16 pixels by 16 channels, and a group has `mt` by `nt` warps. In every turn the group copies
one kernel position of `ct` blocks of input channels into local memory. At the end the sums are stored to local memory
too, where the epilogue reads them in whole vectors. Sums are float32. For integers blocks and fragments have 32
channels, weights are words (K/32, C/32, R, S, 32 out, 8), and sums are int32.

These kernels have been compiled only, not run. Hopper's own instructions (wgmma) and its copies of whole tiles (TMA)
are not used.
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
    block_of,
    schedule_tensor_core,
    tensor_core_compute,
)
from templates.integers import INTEGERS
from templates.space import Constraint, Knob, Space, Values
from templates.template import AnchorTemplate, Layout, Layouts
from templates.words import in_dots, pack_words
from templates.workloads import conv_of
from tuning_db.record import Config, Workload

# The largest ratio of computed pixels to needed ones. It may be large, as tensor cores are at least four times as fast
# as the device's other units.
MAX_WASTE = 2.0
# The seed configs, best first: warps and fragments along pixels (mt, mi) and channels (nt, ni), and input blocks (ct).
_SEEDS: tuple[Values, ...] = (
    {"mt": 2, "nt": 2, "mi": 2, "ni": 2, "ct": 2},
    {"mt": 4, "nt": 2, "mi": 2, "ni": 2, "ct": 1},
    {"mt": 2, "nt": 2, "mi": 2, "ni": 1, "ct": 2},
    {"mt": 2, "nt": 2, "mi": 1, "ni": 1, "ct": 4},
    {"mt": 1, "nt": 2, "mi": 1, "ni": 1, "ct": 4},
)


class GpuTensorCore(AnchorTemplate):
    """A template whose groups have `mt` warps along pixels and `nt` along output channels.

    A warp computes `mi` by `ni` fragments. The other knobs: a turn copies `ct` input blocks. `skew` moves rows in local
    memory to different banks. `asynchronous` copies the next turn's values while the current turn computes (from
    compute capability 8.0 on).
    """

    name = "gpu.conv2d_tensor_core"
    op = "conv2d"
    dtypes = ("float16",)
    capability = 70  # the least CUDA compute capability, times ten

    def _problem(self, workload: Workload, limits: GpuLimits) -> TensorCoreProblem:
        conv = conv_of(workload)
        return TensorCoreProblem(conv, blocking(conv, block_of(workload.dtype)), workload.dtype, limits)

    def layouts(self, workload: Workload, target: Target) -> Layouts:
        block = Layout(block_of(workload.dtype))
        return Layouts(block, block)

    def space(self, workload: Workload, target: Target) -> Space | None:
        limits = gpu_limits(target)
        if limits is None or limits.capability < self.capability or workload.dtype not in self.dtypes:
            return None
        problem = self._problem(workload, limits)
        if problem.conv.is_depthwise or problem.conv.in_channels < problem.block:
            return None
        # A border of integers is no zero, which is all that an asynchronous copy can fill in.
        return tensor_core_space(self.name, problem, asynchronous=not problem.words or not any(problem.conv.padding))

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
    """A template for float32 that rounds operands to 11 significant bits (tf32) before it multiplies them.

    Its knobs are those of `GpuTensorCore`. It is used only if it is asked for by name and its error is tolerated.
    """

    name = "gpu.conv2d_tensor_core_tf32"
    dtypes = ("float32",)
    capability = 80
    exact = False
    tolerance = 1e-3


class GpuTensorCoreInteger(GpuTensorCore):
    """A template that multiplies uint8 by int8 and sums in int32, exactly. Its knobs are those of `GpuTensorCore`."""

    name = "gpu.conv2d_tensor_core_integer"
    dtypes = (INTEGERS,)
    capability = 80

    def pack_weight(self, workload: Workload, target: Target, config: Config, weight: np.ndarray) -> np.ndarray:
        words = pack_words(super().pack_weight(workload, target, config, weight))
        return np.ascontiguousarray(words.swapaxes(-1, -2))

    def prim_func(self, workload: Workload, target: Target, config: Config) -> tirx.PrimFunc:
        return in_dots(super().prim_func(workload, target, config), data=True)


def tensor_core_space(name: str, p: TensorCoreProblem, *, asynchronous: bool = True) -> Space | None:
    """Return the space of a template called `name`, or None if too many pixels are computed in vain. Copies may be
    `asynchronous` if the device has such."""
    knobs = _knobs(p, asynchronous)
    smallest = {knob.name: knob.values[0] for knob in knobs}
    if p.waste(smallest) > MAX_WASTE:
        return None
    return Space(name, knobs, _constraints(p), _seeds(knobs), lambda v: _features(p, v))


def _knobs(p: TensorCoreProblem, asynchronous: bool) -> tuple[Knob, ...]:
    b = p.blocks
    tiles = -(-p.pixels // FRAGMENT)
    powers = (1, 2, 4, 8)
    several = b.in_blocks * p.conv.kernel[0] * p.conv.kernel[1] > 1
    overlapped = asynchronous and p.limits.copies_asynchronously and several
    return (
        Knob("mt", tuple(n for n in powers if n <= tiles)),
        Knob("mi", tuple(n for n in powers[:3] if n <= tiles)),
        Knob("nt", divisors(b.out_blocks, 8)),
        Knob("ni", divisors(b.out_blocks, 4)),
        Knob("ct", tuple(d for d in (1, 2, 4, 8) if b.in_blocks % d == 0)),
        Knob("skew", (1, 0)),
        *([Knob("asynchronous", (0, 1))] if overlapped else []),
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
    """Return the configs of `_SEEDS`, reduced to what the problem allows. Two come with asynchronous copies as well."""
    values = {knob.name: knob.values for knob in knobs}
    fitted = [{name: max(x for x in values[name] if x <= wanted) for name, wanted in s.items()} for s in _SEEDS]
    first = [{**seed, "asynchronous": 1} for seed in fitted[:2] if "asynchronous" in values]
    return (*first, *fitted, {})


def _features(p: TensorCoreProblem, v: Values) -> Mapping[str, float]:
    """Compute features of the loops: items and groups, occupancy, work per load, registers, local memory."""
    pixels, blocks = p.tile(v)
    channels = blocks * p.block
    return {
        **launch_features(p.limits, p.group(v), p.groups(v), p.local_bytes(v)),
        "flop_per_byte": 2.0 * pixels * channels * p.block / (p.values * p.value_bytes * (pixels + channels)),
        "accumulators": float(v["mi"] * v["ni"]),
        "registers": float(p.registers(v)),
        "loads_per_fma": (v["mi"] + v["ni"]) / (v["mi"] * v["ni"]),
        "body_fmas": float(v["mi"] * v["ni"] * v["ct"] * p.block // p.depth),
        "turns": float(p.turns(v)),
        "waste": p.waste(v),
    }

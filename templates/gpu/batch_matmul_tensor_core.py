"""The templates that multiply pairs of computed matrices on Nvidia's tensor cores, in half precision or tf32.

Start at `TensorCoreMatmul`. The products of all pairs are those of a convolution of 1 x 1 in as many groups: rows are
its pixels, and the groups' channels are filled up to whole blocks of 16. Its loops and knobs are those of
`templates.gpu.tensor_core`. Both matrices are plain: what the convolution's layouts and packed weights prepare is done
here by the copies into local memory.

These kernels have been compiled only, not run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tvm import te, tirx
from tvm.target import Target

from templates.batch_matmul import BatchMatmul
from templates.blocking import blocking
from templates.gpu.limits import GpuLimits, gpu_limits, gpu_limits_of
from templates.gpu.tensor_core import MAX_WASTE, tensor_core_space
from templates.gpu.tensor_core_kernels import FRAGMENT, TensorCoreProblem, fragment_sums, schedule_tensor_core
from templates.space import Constraint, Space, Values, valid_seeds
from templates.stages import stored_as, zero
from templates.template import Template
from templates.workloads import Conv2d
from tuning_db.record import Config, Workload

_MAX_PADDING = 1.25
_MAX_GROUPS = 65535  # of a grid along y


class TensorCoreMatmul(Template):
    """A template whose knobs are those of `templates.gpu.tensor_core.GpuTensorCore`: rows are the pixels, and columns
    the output channels."""

    name = "gpu.batch_matmul_tensor_core"
    op = "batch_matmul"
    dtypes = ("float16",)
    capability = 70  # the least CUDA compute capability, times ten

    def space(self, workload: Workload, target: Target) -> Space | None:
        limits, product = gpu_limits(target), BatchMatmul.of(workload)
        if limits is None or limits.capability < self.capability:
            return None
        if _whole(product.depth) * _whole(product.columns) > MAX_WASTE * product.depth * product.columns:
            return None
        problem = problem_of(product, workload.dtype, limits)
        copied = problem.copy_width
        whole = product.depth % copied == 0 and product.columns % copied == 0 and not product.transposed
        space = tensor_core_space(self.name, problem, asynchronous=whole)
        return None if space is None else _within_grid(space, problem)

    def prim_func(self, workload: Workload, target: Target, config: Config) -> tirx.PrimFunc:
        product = BatchMatmul.of(workload)
        problem = problem_of(product, workload.dtype, gpu_limits_of(target))
        return schedule_tensor_core(problem, matmul_compute(product, problem, config.knobs), config.knobs)


class TensorCoreMatmulTf32(TensorCoreMatmul):
    """A template for float32 that rounds operands to 11 significant bits (tf32) before it multiplies them.

    It is used only if it is asked for by name and its error is tolerated.
    """

    name = "gpu.batch_matmul_tensor_core_tf32"
    dtypes = ("float32",)
    capability = 80
    exact = False
    tolerance = 1e-3


def problem_of(product: BatchMatmul, dtype: str, limits: GpuLimits) -> TensorCoreProblem:
    """Return the convolution whose products are those of the pairs of matrices."""
    channels = product.batch * _whole(product.depth), product.batch * _whole(product.columns)
    conv = Conv2d(1, channels[0], 1, product.rows, channels[1], (1, 1), groups=product.batch)
    return TensorCoreProblem(conv, blocking(conv, FRAGMENT), dtype, limits)


def _whole(channels: int) -> int:
    """Return the channels of whole blocks. They are a multiple of four or two blocks, which tiles can divide, where
    this adds little."""
    padded = (-(-channels // unit) * unit for unit in (4 * FRAGMENT, 2 * FRAGMENT))
    return next((n for n in padded if n <= _MAX_PADDING * channels), -(-channels // FRAGMENT) * FRAGMENT)


def _within_grid(space: Space, p: TensorCoreProblem) -> Space | None:
    """Return the configs of a space whose groups CUDA can launch, or None if no seed is one of them."""

    def fits(v: Values) -> bool:
        return p.blocks.all_out_blocks // int(v["nt"] * v["ni"]) <= _MAX_GROUPS

    constraints = (*space.constraints, Constraint("too many groups along an axis", fits))
    seeds = valid_seeds(space.seeds, space.knobs, constraints)
    return replace(space, constraints=constraints, seeds=seeds) if seeds else None


def matmul_compute(product: BatchMatmul, p: TensorCoreProblem, v: Values) -> tirx.PrimFunc:
    """Build the unscheduled function, with the stages of `templates.gpu.tensor_core_kernels` and "weights"."""
    b, dtype = p.blocks, p.dtype
    first = te.placeholder((product.batch, product.rows, product.depth), name="first", dtype=dtype)
    second = te.placeholder(product.second_shape, name="second", dtype=dtype)
    whole_depth, whole_columns = b.in_blocks * FRAGMENT, b.out_blocks * FRAGMENT

    def guarded(read: Callable[[], Any], *axes: tuple[Any, int, int]) -> Any:
        """Return what is read, or 0 where an index lies beyond its extent, which is filled up to the other one."""
        inside = [index < extent for index, extent, whole in axes if extent < whole]
        return tirx.if_then_else(tirx.all(*inside), read(), zero(dtype)) if inside else read()

    def column(block: Any, _y: Any, _x: Any, row: Any, lane: Any) -> Any:
        g, d = block // b.in_blocks, block % b.in_blocks * FRAGMENT + lane
        rows = row, product.rows, p.covered(v)
        return guarded(lambda: first[g, row, d], rows, (d, product.depth, whole_depth))

    def weight(o: Any, ic: Any, _y: Any, _x: Any, ii: Any, lane: Any) -> Any:
        g, d, j = o // b.out_blocks, ic * FRAGMENT + ii, o % b.out_blocks * FRAGMENT + lane
        axes = (d, product.depth, whole_depth), (j, product.columns, whole_columns)
        return guarded(lambda: second[g, j, d] if product.transposed else second[g, d, j], *axes)

    columns = te.compute((b.groups * b.in_blocks, 1, 1, p.covered(v), FRAGMENT), column, name="columns")
    weights = te.compute((b.all_out_blocks, b.in_blocks, 1, 1, FRAGMENT, FRAGMENT), weight, name="weights")
    sums = fragment_sums(p, columns, weights, groups_apart=True)

    def result(g: Any, i: Any, j: Any) -> Any:
        return stored_as(sums[g, j // FRAGMENT, i, j % FRAGMENT], dtype)

    out = te.compute((product.batch, product.rows, product.columns), result, name="out")
    return te.create_prim_func([first, second, out])

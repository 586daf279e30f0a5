"""The template that multiplies pairs of computed matrices of bytes on a CPU with instructions for it.

The second matrix is packed inside the kernel as `cpu.batch_matmul` packs it, with a group of g neighbouring terms of a
column together: (terms / g, nb, v, g). It is signed, and so is the first one where the instruction asks for that: bytes
are lessened by 128, together with their zero points. With zero points a and b a sum of products is that of the bytes,
less b times the sum of the row and a times that of the column, plus a b for each term.
"""

# TVMScript writes the types of buffers as calls.
# mypy: disable-error-code="valid-type,untyped-decorator"

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import tvm_ffi
from tvm import te, tirx
from tvm.s_tir import SBlock, SBlockRealize, Schedule, TensorIntrin
from tvm.script import tirx as T
from tvm.target import Target

from templates.batch_matmul import BatchMatmul
from templates.cpu.batch_matmul import PackedBatchMatmul, schedule_chunks
from templates.cpu.dot_products import Products, intrinsic, products_of
from templates.cpu.isa import vector_unit
from templates.integers import INTEGERS, MIDDLE, SUMS, WEIGHT, Held
from templates.rewrite import block_with
from templates.space import Constraint, Space, Values
from templates.stages import has_block, new_schedule, unroll_tile
from tuning_db.record import Config, Workload

_INTERLEAVED = 4  # as many rows of bytes the intrinsic for packing takes


class IntegerBatchMatmul(PackedBatchMatmul):
    """A template that has the knobs of `PackedBatchMatmul`, for bytes. `ki` counts groups of terms."""

    name = "cpu.batch_matmul_integer"
    dtypes = (INTEGERS,)
    sums_halves = False

    def space(self, workload: Workload, target: Target) -> Space | None:
        products = products_of(target)
        if products is None:
            return None
        product, held = BatchMatmul.of(workload), products.held
        steps = replace(product, depth=-(-product.depth // held.group))
        space = super().space(steps.workload(workload.dtype), target)
        assert space is not None
        registers = vector_unit(target).registers
        fits = Constraint(
            "what is beside the register tile does not fit",
            lambda v: v["nb"] * v["rows"] == 1 or v["nb"] * v["rows"] + held.beside(v["nb"], v["rows"]) <= registers,
        )
        seeds = tuple(seed for seed in space.seeds if fits.holds(seed)) or ({**space.seeds[0], "nb": 1, "rows": 1},)
        return replace(space, constraints=(*space.constraints, fits), seeds=seeds)

    def prim_func(self, workload: Workload, target: Target, config: Config) -> tirx.PrimFunc:
        products = products_of(target)
        assert products is not None
        product = BatchMatmul.of(workload)
        return _schedule(_compute(product, products, config.knobs), products, config.knobs, product.transposed)


def _compute(product: BatchMatmul, unit: Products, k: Values) -> tirx.PrimFunc:
    held, lanes = unit.held, unit.lanes
    group, wide = held.group, k["nb"] * lanes
    steps, tiles, whole = -(-product.depth // group), -(-product.columns // wide), k["rows"] * k["parts"]
    padded_rows = -(-product.rows // whole) * whole
    first = te.placeholder((product.batch, product.rows, product.depth), name="first", dtype=INTEGERS)
    second = te.placeholder(product.second_shape, name="second", dtype=INTEGERS)
    points = te.placeholder((2,), name="points", dtype=SUMS)
    values, columns = _filled(first, product, held), _edged(second, product, (steps * group, tiles * wide))
    packed = te.compute(
        (product.batch, tiles, steps, k["nb"], lanes, group),
        lambda g, o, s, b, v, q: _signed(columns(g, s * group + q, o * wide + b * lanes + v)).astype(held.weight),
        name="packed",
    )
    s, q = te.reduce_axis((0, steps), "s"), te.reduce_axis((0, group), "q")

    def row(i: Any) -> Any:
        return i if padded_rows == product.rows else tirx.min(i, product.rows - 1)  # rows beyond the end repeat it

    sums = te.compute(
        (product.batch, padded_rows, tiles, k["nb"], lanes),
        lambda g, i, o, b, v: te.sum(
            held.product(values[g, row(i), s * group + q], packed[g, o, s, b, v, q]), axis=[s, q]
        ),
        name="sums",
    )
    out = te.compute(
        (product.batch, product.rows, product.columns),
        lambda g, i, j: sums[g, i, j // wide, j % wide // lanes, j % lanes],
        name="out",
    )
    return te.create_prim_func([first, second, points, *_of_points(product, first, second, points, held.moved), out])


def _signed(value: Any) -> Any:
    return (value ^ tirx.const(MIDDLE, INTEGERS)).astype(WEIGHT)


def _filled(first: te.Tensor, product: BatchMatmul, held: Held) -> te.Tensor:
    """Return the first matrix as it is held, with whole groups of terms, in which what is filled up multiplies by 0."""
    full = product.depth % held.group == 0
    if full and not held.converted:
        return first

    def value(g: Any, i: Any, t: Any) -> Any:
        nothing = tirx.const(MIDDLE * held.moved, INTEGERS)
        return first[g, i, t] if full else tirx.if_then_else(t < product.depth, first[g, i, t], nothing)

    shape = (product.batch, product.rows, -(-product.depth // held.group) * held.group)
    return te.compute(shape, lambda g, i, t: held.convert(value(g, i, t)), name="pad")


def _edged(second: te.Tensor, product: BatchMatmul, sizes: tuple[int, int]) -> Any:
    """Return a function that reads the second matrix at a term and a column. What is read beyond its end is repeated.
    It is in a stage "edges" where rows of it are to be interleaved."""

    def value(g: Any, t: Any, j: Any) -> Any:
        t = t if sizes[0] == product.depth else tirx.min(t, product.depth - 1)
        j = j if sizes[1] == product.columns else tirx.min(j, product.columns - 1)
        return second[g, j, t] if product.transposed else second[g, t, j]

    if product.transposed or sizes == (product.depth, product.columns):
        return value
    return te.compute((product.batch, *sizes), value, name="edges")


def _of_points(
    product: BatchMatmul, first: te.Tensor, second: te.Tensor, points: te.Tensor, moved: bool
) -> tuple[te.Tensor, te.Tensor]:
    """Return what zero points add to the sums, by rows and by columns."""
    t, u = (te.reduce_axis((0, product.depth), name) for name in "tu")
    row_sums = te.compute(
        (product.batch, product.rows), lambda g, i: te.sum(first[g, i, t].astype(SUMS), axis=t), name="row_sums"
    )
    column_sums = te.compute(
        (product.batch, product.columns),
        lambda g, j: te.sum((second[g, j, u] if product.transposed else second[g, u, j]).astype(SUMS), axis=u),
        name="column_sums",
    )
    depth, middle = tirx.const(product.depth, SUMS), tirx.const(MIDDLE, SUMS)
    first_less = tirx.const(MIDDLE * moved, SUMS)
    by_row = te.compute(
        (product.batch, product.rows),
        lambda g, i: (middle - points[1]) * (row_sums[g, i] - depth * first_less),
        name="by_row",
    )
    by_column = te.compute(
        (product.batch, product.columns),
        lambda g, j: (
            (first_less - points[0]) * (column_sums[g, j] - depth * middle)
            + depth * (points[0] - first_less) * (points[1] - middle)
        ),
        name="by_column",
    )
    return by_row, by_column


def _schedule(func: tirx.PrimFunc, unit: Products, k: Values, transposed: bool) -> tirx.PrimFunc:
    sch = new_schedule(func)
    chunk = schedule_chunks(sch, k)
    packed, sums = sch.get_sblock("packed"), sch.get_sblock("sums")
    s, q, ii, b, v = sch.get_loops(sums)[-5:]
    so, si = sch.split(s, [None, k["ki"]])
    sch.reorder(so, si, ii, b, v, q)
    for loop in (si, ii, b):
        sch.unroll(loop)
    sch.compute_at(packed, chunk, preserve_unit_loops=True)
    _schedule_packing(sch, packed, unit, chunk, transposed)
    unroll_tile(sch, sch.get_loops(sch.decompose_reduction(sums, so))[-3:])
    sch.tensorize(v, intrinsic(unit))
    _schedule_sums(sch, unit.lanes, transposed)
    if has_block(sch, "pad"):
        sch.vectorize(sch.split(sch.get_loops(sch.get_sblock("pad"))[-1], [None, unit.lanes])[1])
    return _with_points_added(sch.mod["main"])


def _with_points_added(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return the function without the operands for what zero points add, which it then adds to the sums as it writes
    them. No primitive moves a stage into a loop that makes only one of the stages that it reads."""
    *given, by_row, by_column, out = func.params

    def write(block: Any) -> Any:
        store = block.body
        if block.name_hint != "sums_local" or not isinstance(store, tirx.BufferStore):
            return block
        g, i, j = store.indices
        value = store.value + tirx.BufferLoad(by_row, [g, i]) + tirx.BufferLoad(by_column, [g, j])
        return block_with(block, body=tirx.BufferStore(out, value, [g, i, j]))

    root = func.body.block
    body = tvm_ffi.structural_map(root.body, [(SBlock, write)])
    root = block_with(root, body=body, alloc_buffers=[*root.alloc_buffers, by_row, by_column])
    realized = SBlockRealize(func.body.iter_values, func.body.predicate, root)
    return tirx.PrimFunc([*given, out], realized, func.ret_type, attrs=func.attrs)


def _schedule_packing(sch: Schedule, packed: Any, unit: Products, chunk: Any, transposed: bool) -> None:
    if has_block(sch, "edges"):
        edges = sch.get_sblock("edges")
        sch.compute_at(edges, chunk, preserve_unit_loops=True)
        sch.vectorize(sch.split(sch.get_loops(edges)[-1], [None, unit.lanes])[1])
    *_, v, q = sch.get_loops(packed)
    if not transposed and unit.held.group == _INTERLEAVED and unit.held.weight == WEIGHT:
        sch.tensorize(v, _interleaving(unit.lanes))
    else:
        sch.unroll(q)


def _schedule_sums(sch: Schedule, lanes: int, transposed: bool) -> None:
    """Sum rows, and columns where the matrix has them as rows, one by one, and other columns as vectors."""
    if not transposed:
        block = sch.get_sblock("column_sums")
        _, j, u = sch.get_loops(block)
        jo, ji = sch.split(j, [None, lanes])
        sch.reorder(jo, u, ji)
        sch.vectorize(ji)
        sch.vectorize(sch.get_loops(sch.decompose_reduction(block, u))[-1])


@cache
def _interleaving(lanes: int) -> str:
    """Register the intrinsic that packs four rows of `lanes` bytes, and return its name."""
    name, group = f"edgetune_interleave_{lanes}", _INTERLEAVED
    signs = int.from_bytes(bytes([MIDDLE] * group), "little", signed=True)

    @T.prim_func(s_tir=True)
    def meaning(
        rows: T.Buffer((group, lanes), INTEGERS, offset_factor=1, strides=[T.int32(), 1]),
        packed: T.Buffer((lanes, group), WEIGHT, offset_factor=1),
    ) -> None:
        with T.sblock("root"):
            T.reads(rows[0:group, 0:lanes])
            T.writes(packed[0:lanes, 0:group])
            for v in T.serial(0, lanes):
                for q in T.serial(0, group):
                    with T.sblock("interleave"):
                        vv, vq = T.axis.remap("SS", [v, q])
                        packed[vv, vq] = T.Cast(WEIGHT, T.bitwise_xor(rows[vq, vv], T.uint8(MIDDLE)))

    def word(rows: Any, q: int) -> Any:
        values = T.cast(rows.vload([q, 0], f"{INTEGERS}x{lanes}"), f"{SUMS}x{lanes}")
        return values << T.broadcast(T.int32(8 * q), lanes)

    @T.prim_func(s_tir=True)
    def code(
        rows: T.Buffer((group, lanes), INTEGERS, offset_factor=1, strides=[T.int32(), 1]),
        packed: T.Buffer((lanes, group), WEIGHT, offset_factor=1),
    ) -> None:
        with T.sblock("root"):
            T.reads(rows[0:group, 0:lanes])
            T.writes(packed[0:lanes, 0:group])
            words = (word(rows, 0) | word(rows, 1) | word(rows, 2) | word(rows, 3)) ^ T.broadcast(T.int32(signs), lanes)
            packed[0, T.ramp(T.int32(0), 1, lanes * group)] = T.reinterpret(words, dtype=f"{WEIGHT}x{lanes * group}")

    TensorIntrin.register(name, meaning, code)
    return name

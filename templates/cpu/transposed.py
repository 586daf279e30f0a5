"""The schedule of element-wise functions that read a tensor across the order in which they write. Start at `in_tiles`.

A transposition is one of them, and so is a change to or from a blocked layout. The default schedule would load value by
value. Here a tile of as many rows as a vector has lanes is loaded by vectors, transposed in registers, and computed and
stored by vectors. The last tile of an axis that tiles do not divide begins earlier and computes some values again.
Where there are no shuffles, a tile is stored by rows and loaded by columns: compilers make shuffles of that.
Source: Henry S. Warren, "Hacker's Delight" (2nd edition, 2012), section 7-3, with vectors in the place of words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir import SBlock, SBlockRealize, Schedule
from tvm.script.ir_builder import IRBuilder
from tvm.sym import Analyzer
from tvm.sym.pattern import detect_linear_equation
from tvm.tirx.script import builder as T

from templates.blocking import divisors
from templates.blocks import block_names, extents_of, is_condition, kinds_of
from templates.cpu.stages import PARALLEL_CHUNKS, PARALLEL_VALUES
from templates.rewrite import depends, nodes_of, with_values

_LEAST_SIDE = 4  # of a tile
# TVM computes bfloat16 and smaller floating-point types as others, and loses the types of bound vectors on the way.
_TYPES = {"float16", "float32", "float64", *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64))}


def in_tiles(sch: Schedule, lanes: int, *, shuffles: bool) -> tirx.PrimFunc | None:
    """Return the function with its only stage computed in tiles that are transposed in registers, or through memory
    without `shuffles`.

    Returns None for other functions: those of several stages, with sums or several conditions, or that read as they
    write.
    """
    names = block_names(sch)
    if len(names) != 1:
        return None
    block = sch.get_sblock(names[0])
    extents = extents_of(sch, sch.get_loops(block))
    if set(kinds_of(sch, block)) != {"S"} or -1 in extents:
        return None
    stage = _stage_of(sch.get(block), extents)
    tile = None if stage is None else _tile_of(stage, lanes, shuffles)
    if stage is None or tile is None:
        return None
    return sch.mod["main"].with_body(_emitted(stage, tile))


@dataclass(frozen=True)
class _Axis:
    """An axis of a stage: its variable and the number of its values."""

    var: Any
    extent: int

    @property
    def dtype(self) -> str:
        return str(self.var.ty.dtype)


@dataclass(frozen=True)
class _Access:
    """A load or store (`node`) of the value at an address of a buffer, which is an expression of the stage's axes."""

    node: Any
    buffer: Any
    address: Any


@dataclass(frozen=True)
class _Stage:
    """A stage, which makes one store for every point of its axes. `iterators` are the block's own, as (variable, its
    value at a point). `value` is stored, or `otherwise` where the condition `inside` is false: the loads of `value` may
    be out of bounds there."""

    axes: tuple[_Axis, ...]
    iterators: tuple[tuple[Any, Any], ...]
    loads: tuple[_Access, ...]
    stored: _Access
    value: Any
    inside: Any | None = None
    otherwise: Any | None = None

    def at(self, point: Mapping[Any, Any]) -> dict[Any, Any]:
        """Return the values of the block's iterators at a point, which says the value of each axis."""
        return {var: with_values(value, point) for var, value in self.iterators}

    def chooses_along(self, axis: _Axis) -> bool:
        """Tell whether the stage's condition depends on an axis."""
        values = dict(self.iterators)
        return self.inside is not None and depends(with_values(self.inside, values), axis.var)

    @property
    def fills_with_zeros(self) -> bool:
        """Tell whether the stage stores a load where its condition is true, and zero elsewhere."""
        zero = isinstance(self.otherwise, tirx.IntImm | tirx.FloatImm) and self.otherwise.value == 0
        return zero and any(load.node.same_as(self.value) for load in self.loads)

    def analyzer(self) -> Analyzer:
        analyzer = Analyzer()
        for axis in self.axes:
            analyzer.bind(axis.var, tvm.ir.Range(0, axis.extent))
        return analyzer

    def step(self, access: _Access, axis: _Axis, side: int) -> int | None:
        """Return by how much the address grows with each value in every tile of an axis. Return None where it does so
        by no constant. Tiles have `side` values; they begin at multiples of it, or anywhere if it does not divide the
        axis."""
        analyzer = self.analyzer()
        tile, lane = (tirx.Var(name, axis.dtype) for name in ("tile", "lane"))
        aligned = axis.extent % side == 0
        analyzer.bind(tile, tvm.ir.Range(0, axis.extent // side if aligned else axis.extent - side + 1))
        analyzer.bind(lane, tvm.ir.Range(0, side))
        begin = tile * side if aligned else tile
        first, others = (analyzer.simplify(with_values(access.address, {axis.var: at})) for at in (begin, begin + lane))
        found = detect_linear_equation(analyzer.simplify(others - first), [lane])
        if not found or not analyzer.can_prove_equal(found[1], 0):
            return None
        return int(found[0]) if isinstance(found[0], int | tirx.IntImm) else None


@dataclass(frozen=True)
class _Tile:
    """A tile of `side` values of axis `rows`, along which the `turned` loads are contiguous, by as many of `columns`,
    along which the store and the other loads are. Without `shuffles` it is transposed through memory."""

    side: int
    rows: _Axis
    columns: _Axis
    turned: tuple[_Access, ...]
    shuffles: bool

    def loop(self, kind: Any, extent: int) -> Any:
        """Return a loop of a kind of T whose variable has the type of the axes."""
        return kind(*(tirx.const(bound, self.rows.dtype) for bound in (0, extent)))

    def cell(self, row: int, column: Any) -> Any:
        """Return where a buffer has a value of the tile: by rows if it was transposed in registers, else by columns."""
        return row * self.side + column if self.shuffles else column * self.side + row

    def point(self, begin: Mapping[Any, Any], row: Any, column: Any) -> dict[Any, Any]:
        """Return a point of the tile that begins at one."""
        rows, columns = self.rows.var, self.columns.var
        return {**begin, rows: begin[rows] + row, columns: begin[columns] + column}


def _stage_of(block: SBlock, extents: Sequence[int]) -> _Stage | None:
    """Return what a block computes, or None where it is no plain store. Axes that every access goes through as through
    one are one."""
    store = block.body
    if not isinstance(store, tirx.BufferStore):
        return None
    value, inside, otherwise = store.value, None, None
    if isinstance(value, tvm.ir.Call) and is_condition(value):
        inside, value, otherwise = value.args
    loads, calls = nodes_of(value, tvm.ir.TensorLoad), nodes_of(value, tvm.ir.Call)
    if any(map(is_condition, calls)) or nodes_of((inside, otherwise), tvm.ir.TensorLoad):
        return None
    found = [_access_of(load, load.source, load.indices) for load in loads]
    stored = _access_of(store, store.buffer, store.indices)
    known = tuple(access for access in found if access is not None)
    if stored is None or len(known) < len(found):
        return None
    axes = tuple(_Axis(v.var, extent) for v, extent in zip(block.iter_vars, extents, strict=True))
    iterators = tuple((axis.var, axis.var) for axis in axes)
    return _joined(_Stage(axes, iterators, known, stored, value, inside, otherwise))


def _access_of(node: Any, buffer: Any, indices: Sequence[Any]) -> _Access | None:
    """Return an access by its address. Return None for a buffer that is not stored in the order of its axes."""
    if len(buffer.strides) or not isinstance(buffer.elem_offset, tirx.IntImm) or int(buffer.elem_offset):
        return None
    if not indices:
        return _Access(node, buffer, tirx.const(0, "int32"))
    address = indices[0]
    for index, size in zip(indices[1:], buffer.shape[1:], strict=True):
        address = address * size + index
    return _Access(node, buffer, address)


def _joined(stage: _Stage) -> _Stage:
    """Return the stage with neighbouring axes joined where all addresses allow that."""
    for i, (outer, inner) in enumerate(zip(stage.axes, stage.axes[1:], strict=False)):
        if all(_allows_joining(access.address, outer, inner) for access in (*stage.loads, stage.stored)):
            both = _Axis(tirx.Var("both", outer.dtype), outer.extent * inner.extent)
            values = {outer.var: both.var // inner.extent, inner.var: both.var % inner.extent}
            return _joined(_replaced(stage, (*stage.axes[:i], both, *stage.axes[i + 2 :]), values))
    return stage


def _allows_joining(address: Any, outer: _Axis, inner: _Axis) -> bool:
    found = detect_linear_equation(address, [outer.var, inner.var])
    return bool(found) and Analyzer().can_prove_equal(found[0], found[1] * inner.extent)


def _replaced(stage: _Stage, axes: tuple[_Axis, ...], values: Mapping[Any, Any]) -> _Stage:
    """Return the stage with other axes, in which the old ones have these values."""
    iterators = tuple((var, with_values(value, values)) for var, value in stage.iterators)
    moved = replace(stage, axes=axes, iterators=iterators)
    analyzer = moved.analyzer()

    def replaced(access: _Access) -> _Access:
        return replace(access, address=analyzer.simplify(with_values(access.address, values)))

    return replace(moved, loads=tuple(map(replaced, stage.loads)), stored=replaced(stage.stored))


def _tile_of(stage: _Stage, lanes: int, shuffles: bool) -> _Tile | None:
    """Return the largest tile that the stage's accesses allow, or None if they allow none or need none."""
    side = lanes
    while side >= _LEAST_SIDE:
        for columns in stage.axes:
            if columns.extent < side or stage.step(stage.stored, columns, side) != 1:
                continue
            turned = tuple(load for load in stage.loads if stage.step(load, columns, side) not in (0, 1))
            if any(str(load.node.ty.dtype) not in _TYPES for load in turned):
                return None
            if stage.inside is not None and len(turned) < len(stage.loads):
                continue  # the others would be loaded where they are out of bounds
            if not shuffles and stage.chooses_along(columns) and not stage.fills_with_zeros:
                continue  # there are no vectors of booleans to choose with
            for rows in stage.axes:
                if rows is columns or rows.extent < side or not turned or stage.chooses_along(rows):
                    continue
                if all(stage.step(load, rows, side) == 1 for load in turned):
                    return _Tile(side, rows, columns, turned, shuffles)
        side //= 2
    return None


def _emitted(stage: _Stage, tile: _Tile) -> Any:
    """Return the body of a function that computes the stage tile by tile, with its outer loops in parallel."""
    outer = [axis for axis in stage.axes if axis not in (tile.rows, tile.columns)]
    chunks, tiles = prod(axis.extent for axis in outer), _tiles(tile.rows, tile.side)
    parts = next(parts for parts in divisors(tiles, tiles) if chunks * parts >= PARALLEL_CHUNKS or parts == tiles)
    values = prod(axis.extent for axis in stage.axes)
    loop = T.parallel if values >= PARALLEL_VALUES else T.serial
    with IRBuilder() as builder, T.prim_func():
        T.func_name("main")
        views = {access.buffer: _emit_view(access.buffer) for access in (*stage.loads, stage.stored)}
        with tile.loop(loop, chunks * parts) as index:
            begin = dict[Any, Any]()
            rest = index // parts
            for axis in reversed(outer):
                begin[axis.var] = T.Bind(rest % axis.extent)
                rest = rest // axis.extent
            some, across = tiles // parts, _tiles(tile.columns, tile.side)
            with tile.loop(T.serial, some) as row, tile.loop(T.serial, across) as column:
                begin[tile.rows.var] = T.Bind(_begin(index % parts * some + row, tile.rows, tile.side))
                begin[tile.columns.var] = T.Bind(_begin(column, tile.columns, tile.side))
                _emit_tile(stage, tile, views, begin)
    body = builder.get().body
    return SBlockRealize([], True, SBlock([], [], [], "root", body))


def _tiles(axis: _Axis, side: int) -> int:
    """Return the number of tiles along an axis."""
    return -(-axis.extent // side)


def _emit_view(buffer: Any) -> Any:
    """Emit a view of a buffer as one row of values."""
    return T.decl_buffer((prod(int(size) for size in buffer.shape),), str(buffer.dtype), data=buffer.data)


def _begin(number: Any, axis: _Axis, side: int) -> Any:
    """Return where a tile begins."""
    if axis.extent % side == 0:
        return number * side
    return tirx.min(number * side, tirx.const(axis.extent - side, axis.dtype))


def _emit_tile(stage: _Stage, tile: _Tile, views: Mapping[Any, Any], begin: Mapping[Any, Any]) -> None:
    """Emit the tile that begins at this point."""
    cells = {load: _emit_turned(load, stage, tile, views, begin) for load in tile.turned}
    steps = {load: stage.step(load, tile.columns, tile.side) for load in stage.loads if load not in cells}
    for row in range(tile.side):
        first = tile.point(begin, row, 0)
        with tile.loop(T.vectorized, tile.side) as lane:

            def loaded(node: Any, row: int = row, lane: Any = lane, first: Mapping[Any, Any] = first) -> Any:
                load = next(load for load in stage.loads if load.node.same_as(node))
                if load in cells:
                    return cells[load][tile.cell(row, lane)]
                return views[load.buffer][with_values(load.address, first) + lane * steps[load]]

            value = tvm_ffi.structural_map(stage.value, [(tvm.ir.TensorLoad, loaded)])
            if stage.inside is not None and (tile.shuffles or not stage.fills_with_zeros):
                choose = tirx.Select if tile.shuffles else tirx.if_then_else
                value = choose(stage.inside, value, stage.otherwise)
            value = with_values(value, stage.at(tile.point(begin, row, lane)))
            T.buffer_store(views[stage.stored.buffer], value, [with_values(stage.stored.address, first) + lane])


def _emit_turned(load: _Access, stage: _Stage, tile: _Tile, views: Mapping[Any, Any], begin: Mapping[Any, Any]) -> Any:
    """Emit loads of a tile, and return the buffer that has it then, as `tile.cell` says. Outside of the stage's
    condition there are zeros."""
    side = tile.side
    turned = T.alloc_buffer((side * side,), str(load.node.ty.dtype), scope="local")
    points = [tile.point(begin, 0, column) for column in range(side)]
    vectors = [views[load.buffer][tirx.Ramp(with_values(load.address, point), 1, side)] for point in points]
    if stage.inside is not None:
        nothing = tirx.Broadcast(tirx.const(0, str(load.node.ty.dtype)), side)
        insides = [with_values(stage.inside, stage.at(point)) for point in points]
        vectors = [tirx.if_then_else(c, vector, nothing) for c, vector in zip(insides, vectors, strict=True)]
    columns = list(map(T.Bind, vectors))
    for number, vector in enumerate(_transposed(columns) if tile.shuffles else columns):
        T.buffer_store(turned, vector, [tirx.Ramp(number * side, 1, side)])
    return turned


def _transposed(vectors: list[Any]) -> list[Any]:
    """Emit the transposition of a square of vectors: each step merges the lanes of two vectors, half a square apart."""
    side = len(vectors)
    lanes = [lane for pair in zip(range(side), range(side, 2 * side), strict=True) for lane in pair]
    for _ in range(side.bit_length() - 1):
        pairs = zip(vectors[: side // 2], vectors[side // 2 :], strict=True)
        vectors = [T.Bind(_merged(pair, half)) for pair in pairs for half in (lanes[:side], lanes[side:])]
    return vectors


def _merged(pair: tuple[Any, Any], lanes: Sequence[int]) -> Any:
    return tirx.Shuffle(list(pair), [tirx.const(lane, "int32") for lane in lanes])

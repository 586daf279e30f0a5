"""The kernel of `templates.gpu.running_attention`, written by hand: its sums are rescaled as the maximum moves.

Start at `running_attention`. The loop is that of Dao et al., "FlashAttention: Fast and Memory-Efficient Exact Attention
with IO-Awareness", 2022, section 3.1, with the result's tile in registers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.target import Target
from tvm.tirx.script import builder as T

from templates.attention import OPERATOR, Attention
from templates.attention_stages import Given, masked
from templates.gpu.attention_tile import RowTile
from templates.kernels import Cells, Emitter, function, held, own, shared, when
from templates.space import Values
from templates.stages import stored_as, widened, zero
from tuning_db.record import Workload

_WIDEST_LOAD = 4  # values that an item reads at a time from a row of the first matrix of a product
_LOWEST = float("-inf")


def running_attention(workload: Workload, target: Target, v: Values) -> tirx.PrimFunc:
    """Return the function that computes a workload of attention in one kernel."""
    view = Attention.of(workload)

    def body(*operands: Cells) -> None:
        tile = RowTile(view, v, workload.dtype)
        cells = dict(zip(view.operands, operands[:-1], strict=True))
        _Kernel(tile, Emitter.of(target), cells, operands[-1]).emit()

    return function(OPERATOR.operands(workload), body)


@contextmanager
def _lanes(width: int) -> Iterator[Any]:
    """Emit a loop over the lanes of a vector."""
    if width == 1:
        yield 0
    else:
        with T.vectorized(0, width) as lane:
            yield lane


@dataclass(frozen=True)
class _Item:
    """Where an item works: its head, its group's first row, and its place among the items along rows and columns."""

    head: Any
    first_row: Any
    number: Any
    row: Any
    column: Any


@dataclass(frozen=True)
class _Memory:
    """Holds what an item keeps: tiles that it shares with its group, its own sums, and numbers of each of its rows."""

    queries: Cells
    operand: Cells
    powers: Cells
    partial: Cells  # of each row and item along columns: its largest score, and at the end its sum of powers
    scores: Cells
    sums: Cells
    largest: Cells
    total: Cells
    base: Cells
    rescale: Cells
    first: Cells  # operands of a product
    second: Cells

    @classmethod
    def of(cls, tile: RowTile) -> _Memory:
        v, rows = tile.v, int(tile.v["ri"])
        vectors = max(v["nb"], tile.value_vectors)
        return cls(
            shared(tile.dtype, tile.queries.size),
            shared(tile.dtype, tile.operand_size),
            shared("float32", tile.powers.size),
            shared("float32", tile.rows * v["ot"]),
            own("float32", rows * v["nb"] * v["vec"]),
            own("float32", rows * tile.value_vectors * v["vec"]),
            own("float32", rows),
            own("float32", rows),
            own("float32", rows),
            own("float32", rows),
            own("float32", rows * v["ki"]),
            own("float32", vectors * v["vec"]),
        )


@dataclass(frozen=True)
class _Product:
    """A product of a tile in local memory, of which an item reads its rows, and another one, of which it reads its
    columns. `terms` of each are summed up, `unrolled` of them without a loop."""

    first: Cells
    first_step: int
    second: Cells
    second_step: int
    sums: Cells
    vectors: int
    terms: int
    unrolled: int


@dataclass(frozen=True)
class _Kernel:
    """Emits the kernel's code."""

    tile: RowTile
    emitter: Emitter
    cells: dict[str, Cells]
    out: Cells

    @property
    def view(self) -> Attention:
        return self.tile.view

    @property
    def v(self) -> Values:
        return self.tile.v

    @property
    def stored(self) -> Given:
        """Return the operands, of which halves are read as they are stored."""
        return Given(self.view, self.cells, widens=False)

    def emit(self) -> None:
        tile = self.tile
        with self.emitter.launch(tile.groups, tile.items) as (group, number):
            place = held(group // tile.row_tiles), held(group % tile.row_tiles * tile.rows)
            item = _Item(*place, number, held(number // self.v["ot"]), held(number % self.v["ot"]))
            memory = _Memory.of(tile)
            self._begin(item, memory)
            with T.serial(0, tile.key_tiles) as t:
                first_key = held(t * tile.keys)
                self.emitter.barrier()
                self._copy_keys(item, memory, first_key)
                self.emitter.barrier()
                self._score(item, memory, first_key)
                self.emitter.barrier()
                self._move_maximum(item, memory)
                self._copy_values(item, memory, first_key)
                self.emitter.barrier()
                self._add_products(item, memory)
            self._finish(item, memory)

    def _begin(self, item: _Item, memory: _Memory) -> None:
        """Emit the copy of the queries, and the sums and the maximum of no key at all."""
        matrix, last, raw = self.tile.queries, self.view.rows - 1, self.stored
        width = self.tile.copied_at_once("query", matrix)

        def copy(at: Any) -> None:
            row, d = at * width // matrix.columns, at * width % matrix.columns
            place = tirx.min(item.first_row + row, last)
            with _lanes(width) as lane:
                memory.queries[row * matrix.step + d + lane] = raw.read("query", item.head, place, d + lane)

        self._share_out(item, matrix.rows * matrix.columns // width, copy)
        with T.unroll(0, self.v["ri"]) as i:
            memory.largest[i] = tirx.const(_LOWEST, "float32")
            memory.total[i] = zero()
            # They have memory of their own from here on: some items write the next ones while others read queries.
            memory.partial[(i * self.v["rt"] + item.row) * self.v["ot"] + item.column] = zero()
        self._clear(memory.sums, self.v["ri"] * self.tile.value_vectors)

    def _share_out(self, item: _Item, count: int, work: Callable[[Any], None]) -> None:
        """Emit work for each number below `count`, which the items of a group share."""
        with T.serial(0, -(-count // self.tile.items)) as turn:
            at = held(turn * self.tile.items + item.number)
            if count % self.tile.items:
                with when(at < count):
                    work(at)
            else:
                work(at)

    def _clear(self, cells: Cells, vectors: int) -> None:
        with T.unroll(0, vectors) as n, _lanes(self.v["vec"]) as lane:
            cells[n * self.v["vec"] + lane] = zero()

    def _copy_keys(self, item: _Item, memory: _Memory, first_key: Any) -> None:
        """Emit the copy of a tile of keys, in which the elements of a key lie below each other."""
        depth, keys, padded = self.view.depth, self.tile.keys, self.tile.key_tiles * self.tile.keys
        raw, adjacent = self.stored, self.view.operands["key"][0].token == 1

        def copy(at: Any) -> None:
            j, d = (at % keys, at // keys) if adjacent else (at // depth, at % depth)
            memory.operand[d * self.tile.key_matrix.step + j] = raw.key(item.head, first_key + j, d, padded=padded)

        self._share_out(item, keys * depth, copy)

    def _copy_values(self, item: _Item, memory: _Memory, first_key: Any) -> None:
        matrix, raw = self.tile.value_matrix, self.stored
        keys, padded = matrix.rows, (self.tile.key_tiles * matrix.rows, matrix.columns)
        adjacent, width = self.view.operands["value"][0].token == 1, self.tile.copied_at_once("value", matrix)

        def copy(at: Any) -> None:
            j, e = (at % keys, at // keys) if adjacent else (at * width // matrix.columns, at * width % matrix.columns)
            with _lanes(width) as lane:
                value = raw.value(item.head, first_key + j, e + lane, padded=padded)
                memory.operand[j * matrix.step + e + lane] = value

        self._share_out(item, keys * matrix.columns // width, copy)

    def _score(self, item: _Item, memory: _Memory, first_key: Any) -> None:
        """Emit the scores of a tile of keys, and the largest one of each of the item's rows."""
        tile, v, given = self.tile, self.v, Given(self.view, self.cells)
        self._clear(memory.scores, v["ri"] * v["nb"])
        self._multiply(
            item,
            memory,
            _Product(
                memory.queries,
                tile.queries.step,
                memory.operand,
                tile.key_matrix.step,
                memory.scores,
                v["nb"],
                self.view.depth,
                v["ki"],
            ),
        )
        of_row = v["nb"] * v["vec"]
        with T.unroll(0, v["ri"]) as i:
            row = tirx.min(item.first_row + i * v["rt"] + item.row, self.view.rows - 1)
            with T.unroll(0, v["nb"]) as n, _lanes(v["vec"]) as lane:
                at = i * of_row + n * v["vec"] + lane
                place = item.head, row, first_key + (n * v["ot"] + item.column) * v["vec"] + lane
                memory.scores[at] = masked(given, memory.scores[at], place, padded=tile.key_tiles * tile.keys)
            memory.base[i] = memory.scores[i * of_row]
            with T.unroll(0, of_row - 1) as n:
                memory.base[i] = tirx.max(memory.base[i], memory.scores[i * of_row + n + 1])
            memory.partial[(i * v["rt"] + item.row) * v["ot"] + item.column] = memory.base[i]

    def _move_maximum(self, item: _Item, memory: _Memory) -> None:
        """Emit the powers of a tile of scores, and the sums and products so far as the new maximum has them."""
        v, of_row, vectors = self.v, self.v["nb"] * self.v["vec"], self.tile.value_vectors
        with T.unroll(0, v["ri"]) as i:
            row = i * v["rt"] + item.row
            memory.base[i] = memory.largest[i]
            with T.serial(0, v["ot"]) as column:
                memory.base[i] = tirx.max(memory.base[i], memory.partial[row * v["ot"] + column])
            memory.rescale[i] = memory.largest[i]
            memory.largest[i] = memory.base[i]
            # No key so far counts: the power of -inf, not that of NaN, is what each of them adds.
            none = memory.base[i] == tirx.const(_LOWEST, "float32")
            memory.base[i] = tirx.Select(none, zero(), memory.base[i])
            memory.rescale[i] = tirx.exp(memory.rescale[i] - memory.base[i])
            memory.total[i] = memory.total[i] * memory.rescale[i]
            with T.unroll(0, v["nb"]) as n, _lanes(v["vec"]) as lane:
                at = i * of_row + n * v["vec"] + lane
                memory.scores[at] = tirx.exp(memory.scores[at] - memory.base[i])
            with T.unroll(0, v["nb"]) as n, _lanes(v["vec"]) as lane:
                place = row * self.tile.powers.step + (n * v["ot"] + item.column) * v["vec"] + lane
                memory.powers[place] = memory.scores[i * of_row + n * v["vec"] + lane]
            with T.unroll(0, of_row) as n:
                memory.total[i] = memory.total[i] + memory.scores[i * of_row + n]
            with T.unroll(0, vectors) as n, _lanes(v["vec"]) as lane:
                at = (i * vectors + n) * v["vec"] + lane
                memory.sums[at] = memory.sums[at] * memory.rescale[i]

    def _add_products(self, item: _Item, memory: _Memory) -> None:
        """Emit the products of a tile of powers and values."""
        tile = self.tile
        self._multiply(
            item,
            memory,
            _Product(
                memory.powers,
                tile.powers.step,
                memory.operand,
                tile.value_matrix.step,
                memory.sums,
                tile.value_vectors,
                tile.keys,
                tile.unrolled_keys,
            ),
        )

    def _multiply(self, item: _Item, memory: _Memory, p: _Product) -> None:
        """Emit the loop over the terms of a product, whose body reads a few terms of each row at a time."""
        v, vec = self.v, self.v["vec"]
        load = min(p.unrolled, _WIDEST_LOAD)
        with T.serial(0, p.terms // p.unrolled) as turn:
            term = held(turn * p.unrolled)
            with T.unroll(0, v["ri"]) as i, T.unroll(0, p.unrolled // load) as n, _lanes(load) as lane:
                at = (i * v["rt"] + item.row) * p.first_step + term + n * load + lane
                memory.first[i * p.unrolled + n * load + lane] = widened(p.first[at])
            with T.unroll(0, p.unrolled) as u:
                with T.unroll(0, p.vectors) as n, _lanes(vec) as lane:
                    at = (term + u) * p.second_step + (n * v["ot"] + item.column) * vec + lane
                    memory.second[n * vec + lane] = widened(p.second[at])
                with T.unroll(0, v["ri"]) as i, T.unroll(0, p.vectors) as n, _lanes(vec) as lane:
                    at = (i * p.vectors + n) * vec + lane
                    product = memory.first[i * p.unrolled + u] * memory.second[n * vec + lane]
                    p.sums[at] = p.sums[at] + product

    def _finish(self, item: _Item, memory: _Memory) -> None:
        """Emit the sum of the powers of each row, and the result."""
        v = self.v
        with T.unroll(0, v["ri"]) as i:
            memory.partial[(i * v["rt"] + item.row) * v["ot"] + item.column] = memory.total[i]
        self.emitter.barrier()
        with T.unroll(0, v["ri"]) as i:
            row = i * v["rt"] + item.row
            memory.total[i] = zero()
            with T.serial(0, v["ot"]) as column:
                memory.total[i] = memory.total[i] + memory.partial[row * v["ot"] + column]
            if self.view.rows % self.tile.rows:
                with when(item.first_row + row < self.view.rows):
                    self._write(item, memory, i)
            else:
                self._write(item, memory, i)

    def _write(self, item: _Item, memory: _Memory, i: Any) -> None:
        """Emit the stores of one row."""
        v, vectors = self.v, self.tile.value_vectors
        with T.unroll(0, vectors) as n:
            first = (n * v["ot"] + item.column) * v["vec"]
            if vectors * self.tile.wide > self.view.width:
                with when(first < self.view.width):
                    self._write_vector(item, memory, (i, n), first)
            else:
                self._write_vector(item, memory, (i, n), first)

    def _write_vector(self, item: _Item, memory: _Memory, at: tuple[Any, Any], first: Any) -> None:
        (i, n), v, view = at, self.v, self.view
        lanes = _lanes(v["vec"]) if view.order.endswith("a") else T.unroll(0, v["vec"])
        with lanes as lane:
            index = {
                "b": item.head // view.heads,
                "h": item.head % view.heads,
                "t": item.first_row + i * v["rt"] + item.row,
                "a": first + lane,
            }
            attended = memory.sums[(i * self.tile.value_vectors + n) * v["vec"] + lane] / memory.total[i]
            self.out[tuple(index[axis] for axis in view.order)] = stored_as(attended, self.tile.dtype)

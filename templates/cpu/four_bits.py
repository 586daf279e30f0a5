"""The template that multiplies by a matrix of 4-bit numbers on a CPU, which become float32 in registers.

A register tile has `rows` rows and `nb` tiles of sixteen output features. A word has the numbers of eight inputs. A
number is masked, not shifted: as it stands it is a power of 16 times too large, and the data are multiplied by the
inverse of that before, which rounds nothing. Each block is summed by itself, and its zero point is subtracted from
the sum times the sum of its data. Weights are read once for all rows of a tile. With one row they are what takes the
time, an eighth of the bytes of float32 and their scales.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm import te, tirx
from tvm.target import Target

from templates.blocking import divisors, tile_sizes
from templates.cpu.isa import VectorUnit, threads_of, vector_unit
from templates.cpu.stages import even_first, spread, widen_parts
from templates.four_bits import MIDDLE, TILE, WORD, FourBits
from templates.space import Constraint, Knob, Space, Values
from templates.stages import new_schedule, unroll_tile
from templates.template import Template
from tuning_db.record import Config, Workload

_MAX_UNROLLED = 350
_IN_PLACE = 7  # numbers of a word that are masked where they stand; the sign bit is in the last one, which is shifted
_ONE = 127, 23  # the exponent of 1.0 in float32, and its place


class FourBitsDense(Template):
    """A template whose register tile has `rows` rows and `nb` tiles of output features.

    Its other knobs: `words` are unrolled. `split` says what runs in parallel: tiles of output features ("channels") or
    of rows ("rows").
    """

    name = "cpu.dense_4bit"
    op = "dense_4bit"

    def space(self, workload: Workload, target: Target) -> Space | None:
        if target.kind.name != "llvm":
            return None
        view, unit = FourBits.of(workload), vector_unit(target)
        vectors = TILE // unit.lanes
        knobs = (
            Knob("nb", divisors(view.tiles, 8)),
            Knob("rows", tile_sizes(view.rows, 14)),
            Knob("words", divisors(view.block // WORD, 4)),
            Knob("split", ("channels", "rows") if view.rows > 1 else ("channels",)),
        )

        def tile(v: Values) -> int:
            return int(v["nb"] * v["rows"] * vectors)

        smallest = min(unit.accumulators, vectors)
        constraints = (
            Constraint(
                "the register tile does not fit", lambda v: tile(v) <= max(smallest, unit.accumulators - 2 * vectors)
            ),
            Constraint("too many unrolled multiply-adds", lambda v: tile(v) * v["words"] * WORD <= _MAX_UNROLLED),
        )
        seeds = even_first(_seeds(view, knobs, unit), lambda v: _chunks(view, v), threads_of(target))
        return Space(self.name, knobs, constraints, seeds, lambda v: _features(view, vectors, v))

    def prim_func(self, workload: Workload, target: Target, config: Config) -> tirx.PrimFunc:
        func = _compute(FourBits.of(workload), vector_unit(target).lanes, config["rows"])
        return _schedule(func, config.knobs)

    def spread(self, workload: Workload, target: Target, config: Config) -> Config:
        view = FourBits.of(workload)
        splits = ("channels", "rows") if view.rows > 1 else ()
        return spread(config, [{"split": split} for split in splits], lambda v: _chunks(view, v), threads_of(target))


def _chunks(view: FourBits, v: Values) -> int:
    return -(-view.rows // v["rows"]) if v["split"] == "rows" else view.tiles // v["nb"]


def _seeds(view: FourBits, knobs: tuple[Knob, ...], unit: VectorUnit) -> tuple[Values, ...]:
    """Return tiles that keep half of the registers busy, of as many rows as possible first, as these share what is read
    and converted. The sums of blocks need as many registers again."""
    nbs, rows, words = (knob.values for knob in knobs[:3])
    vectors = TILE // unit.lanes
    room = max(1, unit.accumulators // 2 // vectors)
    tiles = {(max(n for n in nbs if n <= max(1, room // r)), r) for r in rows if r <= room}
    best = sorted(tiles, key=lambda tile: (-(-view.rows // tile[1]) * (6 + 2 * tile[1]), -tile[0]))
    return tuple(
        {"nb": nb, "rows": r, "words": w, "split": "channels"} for nb, r in best[:3] for w in (words[0], words[-1])
    )


def _features(view: FourBits, vectors: int, v: Values) -> Mapping[str, float]:
    tile = v["nb"] * v["rows"] * vectors
    return {
        "accumulators": float(tile),
        "loads_per_fma": (v["nb"] * vectors + v["rows"]) / tile,
        "body_fmas": float(tile * v["words"] * WORD),
        "chunks": float(_chunks(view, v)),
    }


def _compute(view: FourBits, lanes: int, tile_rows: int) -> tirx.PrimFunc:
    padded_rows, each = -(-view.rows // tile_rows) * tile_rows, (view.tiles, view.blocks, TILE)
    data = te.placeholder((view.rows, view.in_features), name="data", dtype="float32")
    weight = te.placeholder((*each[:2], view.block // WORD, TILE), name="weight", dtype="int32")
    scale = te.placeholder(each, name="scale", dtype="float32")
    zero = te.placeholder(each, name="zero", dtype="uint8") if view.zeros else None
    words, inner = (te.reduce_axis((0, size), name) for size, name in ((view.block // WORD, "w"), (WORD, "j")))
    k, step = te.reduce_axis((0, view.block), "k"), te.reduce_axis((0, view.blocks), "step")
    scaled = te.compute(
        (view.rows, view.in_features // WORD, WORD), lambda i, w, j: data[i, w * WORD + j] * _inverse(j), name="scaled"
    )
    totals = te.compute(
        (view.rows, view.blocks), lambda i, s: te.sum(data[i, s * view.block + k], axis=k), name="totals"
    )

    def row(i: Any) -> Any:
        return i if padded_rows == view.rows else tirx.min(i, view.rows - 1)  # rows beyond the end repeat the last

    def term(s: Any, i: Any, t: Any, b: Any, v: Any) -> Any:
        number = _in_place(weight[t, s, words, b * lanes + v], inner).astype("float32")
        return te.sum(scaled[row(i), s * (view.block // WORD) + words, inner] * number, axis=[words, inner])

    shape = (padded_rows, view.tiles, TILE // lanes, lanes)
    parts = te.compute((view.blocks, *shape), term, name="part")

    def block(i: Any, t: Any, b: Any, v: Any) -> Any:
        at = (t, step, b * lanes + v)
        point = tirx.const(MIDDLE, "float32") if zero is None else zero[at].astype("float32")
        return te.sum((parts[step, i, t, b, v] - point * totals[row(i), step]) * scale[at], axis=step)

    sums = te.compute(shape, block, name="sums")
    out = te.compute(
        (view.rows, view.out_features),
        lambda i, c: sums[i, c // TILE, c % TILE // lanes, c % lanes],
        name="out",
    )
    return te.create_prim_func([data, weight, scale, *([] if zero is None else [zero]), out])


def _in_place(word: Any, j: Any) -> Any:
    """Return number `j` of a word times 16 to the power of j, or as it is if it is the last."""
    return (word >> (j // _IN_PLACE * 28)) & (tirx.const(15, "int32") << (j % _IN_PLACE * 4))


def _inverse(j: Any) -> Any:
    """Return by what data are multiplied that meet number `j` of a word, by its exponent."""
    one, place = _ONE
    return tirx.reinterpret("float32", (one - j % _IN_PLACE * 4) << tirx.const(place, "int32"))


def _schedule(func: tirx.PrimFunc, k: Values) -> tirx.PrimFunc:
    sch = new_schedule(func)
    sums, out = sch.get_sblock("sums"), sch.get_sblock("out")
    i, t, b, v, step = sch.get_loops(sums)
    io, ii = sch.split(i, [None, k["rows"]])
    to, ti = sch.split(t, [None, k["nb"]])
    outer = (to, io) if k["split"] == "channels" else (io, to)
    sch.reorder(*outer, step, ii, ti, b, v)
    sch.parallel(outer[0])
    write = sch.cache_write(sums, 0, "local")
    sch.reverse_compute_at(write, outer[1], preserve_unit_loops=True)
    sch.reverse_compute_inline(out)
    unroll_tile(sch, sch.get_loops(write)[-4:])
    part = widen_parts(sch, sums, step, tile=4)
    *tile, word, number = sch.get_loops(part)[-6:]
    wo, wi = sch.split(word, [None, k["words"]])
    sch.reorder(wo, wi, number, *tile)
    unroll_tile(sch, [wi, number, *tile])
    unroll_tile(sch, sch.get_loops(sch.decompose_reduction(part, wo))[-4:])
    sch.vectorize(sch.get_loops(sch.get_sblock("scaled"))[-1])
    return sch.mod["main"]

"""Functions that read across their order of writing are computed in tiles, with the results of the plain function."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import te, tirx
from tvm.target import Target

from templates.default import schedule
from templates.lowering import build
from tests.templates.support import host_target

TYPES = ("float32", "float16", "int8", "int64", "bool")


def computed(func: tirx.PrimFunc, target: Target, arrays: list[np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
    kernel = build(schedule(func, target).with_attr("global_symbol", "main"), target)["main"]
    result = tvm.runtime.tensor(np.zeros(shape, arrays[-1].dtype))
    kernel(*map(tvm.runtime.tensor, arrays), result)
    return np.asarray(result.numpy())


def is_tiled(func: tirx.PrimFunc, target: Target) -> bool:
    return "Shuffle" in schedule(func, target).script()


def values(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    return np.random.default_rng(0).integers(-100, 100, shape).astype(dtype)


@pytest.fixture(scope="module")
def target() -> Target:
    return host_target()


SHAPES = st.lists(st.integers(1, 37), min_size=2, max_size=5)
ORDERED = SHAPES.flatmap(lambda shape: st.tuples(st.just(shape), st.permutations(range(len(shape)))))


@pytest.mark.parametrize("index", ["int32", "int64"])  # Relax's own functions have the second
@given(ordered=ORDERED, dtype=st.sampled_from(TYPES))
@settings(max_examples=30)
def test_any_transposition(target: Target, index: str, ordered: tuple[list[int], list[int]], dtype: str) -> None:
    shape, order = ordered
    new = tuple(shape[axis] for axis in order)
    sizes = [tirx.IntImm(index, size) for size in shape]
    source = te.placeholder(sizes, dtype, name="source")
    result = te.compute(
        [sizes[axis] for axis in order], lambda *at: source[tuple(at[order.index(axis)] for axis in range(len(shape)))]
    )
    array = values(tuple(shape), dtype)
    found = computed(te.create_prim_func([source, result]), target, [array], new)
    np.testing.assert_array_equal(found, array.transpose(order))


@given(st.sampled_from((4, 8, 16)), st.integers(1, 5), st.integers(1, 40), st.integers(1, 40), st.sampled_from(TYPES))
@settings(max_examples=30)
def test_to_and_from_any_blocked_layout(
    target: Target, block: int, blocks: int, height: int, width: int, dtype: str
) -> None:
    plain, blocked = (2, blocks * block, height, width), (2, blocks, height, width, block)
    image = te.placeholder(plain, dtype, name="image")
    packed = te.compute(blocked, lambda n, o, y, x, i: image[n, o * block + i, y, x])
    array = values(plain, dtype)
    expected = array.reshape(2, blocks, block, height, width).transpose(0, 1, 3, 4, 2)
    packing = te.create_prim_func([image, packed])
    np.testing.assert_array_equal(computed(packing, target, [array], blocked), expected)
    image = te.placeholder(blocked, dtype, name="image")
    unpacked = te.compute(plain, lambda n, c, y, x: image[n, c // block, y, x, c % block])
    unpacking = te.create_prim_func([image, unpacked])
    np.testing.assert_array_equal(computed(unpacking, target, [expected.copy()], plain), array)
    if height * width >= 16 and dtype != "bool":
        assert is_tiled(packing, target)
        assert is_tiled(unpacking, target)


@given(st.sampled_from((4, 8, 16)), st.integers(1, 40), st.integers(1, 40), st.sampled_from(TYPES))
@settings(max_examples=30)
def test_lanes_that_have_no_channel(target: Target, block: int, channels: int, width: int, dtype: str) -> None:
    """The last block of channels is filled up with another value, and nothing is read beyond the last channel."""
    blocks, rest = -(-channels // block), -channels % block
    image = te.placeholder((2, channels, 3, width), dtype, name="image")
    filling = tirx.const(1, dtype)

    def value(n: tirx.Var, o: tirx.Var, y: tirx.Var, x: tirx.Var, i: tirx.Var) -> tirx.Expr:
        channel = o * block + i
        return tirx.if_then_else(channel < channels, image[n, channel, y, x], filling)

    packed = te.compute((2, blocks, 3, width, block), value)
    array = values((2, channels, 3, width), dtype)
    full = np.pad(array, ((0, 0), (0, rest), (0, 0), (0, 0)), constant_values=1)
    expected = full.reshape(2, blocks, block, 3, width).transpose(0, 1, 3, 4, 2)
    packing = te.create_prim_func([image, packed])
    np.testing.assert_array_equal(computed(packing, target, [array], expected.shape), expected)
    if rest and width >= 16 and dtype != "bool":
        assert is_tiled(packing, target)


@pytest.mark.parametrize("index", ["int32", "int64"])
def test_a_transposition_is_tiled(target: Target, index: str) -> None:
    rows, columns = (tirx.IntImm(index, size) for size in (33, 70))
    source = te.placeholder((rows, columns), name="source")
    assert is_tiled(te.create_prim_func([source, te.compute((columns, rows), lambda i, j: source[j, i])]), target)


def test_what_is_computed_on_the_way(target: Target) -> None:
    """Operands that are read in order, along one axis or across it, and an index in the value."""
    image = te.placeholder((2, 20, 9, 21), name="image")
    other = te.placeholder((2, 9, 21, 20), name="other")
    second = te.placeholder((20, 2, 9, 21), name="second")
    scales = te.placeholder((20,), name="scales")
    rows = te.placeholder((9,), name="rows")

    def value(n: tirx.Var, y: tirx.Var, x: tirx.Var, c: tirx.Var) -> tirx.Expr:
        here = image[n, c, y, x] * scales[c] + other[n, y, x, c] - second[c, n, y, x]
        return tirx.Select(c < 7, here, te.exp(here) * 0 + c.astype("float32")) + rows[y]

    result = te.compute((2, 9, 21, 20), value, name="result")
    func = te.create_prim_func([image, other, second, scales, rows, result])
    assert is_tiled(func, target)
    shapes = [(2, 20, 9, 21), (2, 9, 21, 20), (20, 2, 9, 21), (20,), (9,)]
    a, b, c, d, e = (values(shape, "float32") / np.float32(32) for shape in shapes)
    here = a.transpose(0, 2, 3, 1) * d + b - c.transpose(1, 2, 3, 0)
    expected = np.where(np.arange(20) < 7, here, np.arange(20)) + e[:, None, None]
    np.testing.assert_allclose(computed(func, target, [a, b, c, d, e], (2, 9, 21, 20)), expected, rtol=1e-6)


def test_a_condition_keeps_loads_inside(target: Target) -> None:
    """A padded transposition is not in tiles: a vector's load would begin before the tensor."""
    image = te.placeholder((32, 30), name="image")
    padded = te.compute((34, 32), lambda x, y: tirx.if_then_else(tirx.all(x >= 2, x < 32), image[y, x - 2], 0.0))
    func = te.create_prim_func([image, padded])
    assert not is_tiled(func, target)
    array = values((32, 30), "float32")
    expected = np.pad(array.T, ((2, 2), (0, 0)))
    np.testing.assert_array_equal(computed(func, target, [array], (34, 32)), expected)


def test_what_tvm_computes_as_another_type_is_not_in_tiles(target: Target) -> None:
    image = te.placeholder((32, 64), "bfloat16", name="image")
    func = te.create_prim_func([image, te.compute((64, 32), lambda i, j: image[j, i])])
    assert not is_tiled(func, target)
    build(schedule(func, target).with_attr("global_symbol", "main"), target)


def test_what_is_read_as_it_is_written_is_not_in_tiles(target: Target) -> None:
    image = te.placeholder((64, 3, 48), name="image")
    swapped = te.compute((3, 64, 48), lambda j, i, k: image[i, j, k])
    assert not is_tiled(te.create_prim_func([image, swapped]), target)

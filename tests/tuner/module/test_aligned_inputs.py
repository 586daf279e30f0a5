"""Inputs that begin where kernels want them to are read where they are; all others are copied."""

from __future__ import annotations

import numpy as np
import pytest

from tests.tuner.graph.networks import Net
from tuner.alignment import aligned
from tuner.devices import open_device
from tuner.graph import load_onnx
from tuner.module import Module, build, load

SHAPE = (1, 4, 64, 80)  # 80 KiB


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Module:
    folder = tmp_path_factory.mktemp("aligned")
    net = Net()
    net.input(*SHAPE)
    build(load_onnx(net.save(folder / "m.onnx", net.op("Relu", "x"))), open_device("cpu", 1), folder / "m")
    return load(folder / "m")


def drawn(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(SHAPE).astype(np.float32)


def off_by(array: np.ndarray, size: int) -> np.ndarray:
    """A copy that begins so many bytes behind a multiple of 64."""
    memory = aligned(np.zeros(array.nbytes + size, np.uint8))
    copy = memory[size:].view(array.dtype).reshape(array.shape)
    np.copyto(copy, array)
    return copy


def held(module: Module) -> np.ndarray:
    """Return what the module's own memory for its input has."""
    (buffer,) = module._buffers
    assert buffer.view is not None
    return buffer.view.copy()


def result(module: Module, array: np.ndarray) -> np.ndarray:
    (value,) = module({"x": array}).values()
    return value


@pytest.mark.parametrize("size", [4, 16, 32])
def test_an_input_that_is_not_aligned_is_copied(module: Module, size: int) -> None:
    given = off_by(drawn(size), size)
    np.testing.assert_array_equal(result(module, given), np.maximum(given, 0))
    np.testing.assert_array_equal(held(module), given)


def test_an_aligned_input_is_read_where_it_is(module: Module) -> None:
    before = drawn(0)
    result(module, off_by(before, 16))
    given = aligned(drawn(1))
    for seed in range(2, 5):
        np.testing.assert_array_equal(result(module, given), np.maximum(given, 0))
        np.copyto(given, drawn(seed))  # as a program does that fills the same memory for every call
    np.testing.assert_array_equal(held(module), before)


def test_results_are_the_callers_own(module: Module) -> None:
    given = aligned(drawn(1))
    first = result(module, given)
    wanted = np.maximum(given, 0)
    given[:] = 0
    result(module, given)
    np.testing.assert_array_equal(first, wanted)


def test_memory_that_must_not_be_written_is_copied(module: Module) -> None:
    given = aligned(drawn(3))
    given.flags.writeable = False
    for call in (module, module.in_place):
        (value,) = call({"x": given}).values()
        np.testing.assert_array_equal(value, np.maximum(given, 0))


def test_an_aligned_view_with_strides_is_copied(module: Module) -> None:
    given = aligned(np.concatenate([drawn(1), drawn(2)], axis=3))[..., :80]
    np.testing.assert_array_equal(result(module, given), np.maximum(given, 0))

"""Copies of arrays in large pages: whole, apart, aligned, writable, alive as long as a tensor is."""

import gc

import numpy as np
import pytest

from tuner.devices import large_pages, placed_in_large_pages


@pytest.mark.parametrize("nbytes", [0, 1, 4096, (2 << 20) + 1])
def test_as_many_zeros_as_asked_for_from_the_start_of_a_page(nbytes: int) -> None:
    found = large_pages(nbytes)
    assert found.shape == (nbytes,)
    assert not found.any()
    assert not nbytes or found.ctypes.data % (2 << 20) == 0
    found[:] = 7  # to its last byte


@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "int8", "bool"])
def test_tensors_hold_what_the_arrays_held(dtype: str) -> None:
    rng = np.random.default_rng(0)
    arrays = [np.asarray(100 * rng.random(shape)).astype(dtype) for shape in [(3, 5), (), (0, 4), (1 << 20,), (7,)]]
    tensors = placed_in_large_pages(arrays)
    kept = [array.copy() for array in arrays]
    for array in arrays:
        array[...] = 0
    gc.collect()
    for tensor, array in zip(tensors, kept, strict=True):
        assert str(tensor.dtype) == dtype
        np.testing.assert_array_equal(tensor.numpy(), array)
        assert not array.size or np.from_dlpack(tensor).ctypes.data % 64 == 0


def test_a_tensor_keeps_the_memory_of_all() -> None:
    first, *others = placed_in_large_pages([np.full(1 << 20, i, "float32") for i in range(3)])
    del others
    gc.collect()
    assert (first.numpy() == 0).all()


def test_more_than_there_is() -> None:
    with pytest.raises(MemoryError, match="MiB of memory"):
        large_pages(1 << 60)

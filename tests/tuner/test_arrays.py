"""Files of named arrays: whatever names they have, and whatever else may be in such a file."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.alignment import ALIGNMENT, aligned, is_aligned
from tuner.arrays import read_arrays, write_arrays
from tuner.errors import BadInput

ARRAYS = {"x": np.arange(6, dtype=np.float32).reshape(2, 3), "y": np.array([True, False])}


@pytest.mark.parametrize("name", ["file", "allow_pickle", "args", "a/b", "arr_0", "x.npy", "ü", "with blank"])
def test_an_array_may_have_any_name(tmp_path: Path, name: str) -> None:
    write_arrays(tmp_path / "a.npz", {name: ARRAYS["x"]})
    (found,) = read_arrays(tmp_path / "a.npz").values()
    np.testing.assert_array_equal(found, ARRAYS["x"])


def test_numpy_reads_what_is_written_and_the_other_way_round(tmp_path: Path) -> None:
    write_arrays(tmp_path / "ours.npz", ARRAYS)
    np.savez_compressed(tmp_path / "theirs.npz", **ARRAYS)
    with np.load(tmp_path / "ours.npz") as ours:
        for found in (ours, read_arrays(tmp_path / "theirs.npz")):
            for name, array in ARRAYS.items():
                np.testing.assert_array_equal(found[name], array)


def archive(compression: int = zipfile.ZIP_DEFLATED, **entries: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as file:
        for name, content in entries.items():
            file.writestr(f"{name}.npy", content)
    return stream.getvalue()


def npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def header(shape: str) -> bytes:
    """An array's head with a shape of which none of the values follow."""
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".ljust(117).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


def encrypted() -> bytes:
    content = bytearray(archive(x=npy(ARRAYS["x"])))
    content[6] |= 1  # the flag in the local head, and that in the directory
    content[content.index(b"PK\x01\x02") + 8] |= 1
    return bytes(content)


def unknown_compression() -> bytes:
    content = bytearray(archive(x=npy(ARRAYS["x"])))
    content[8] = 99
    content[content.index(b"PK\x01\x02") + 10] = 99
    return bytes(content)


WRONG = {
    "nothing": b"",
    "text": b"1, 2, 3",
    "one array": npy(ARRAYS["x"]),
    "an archive of something else": archive(x=b"hello"),
    "encrypted": encrypted(),
    "compressed in an unknown way": unknown_compression(),
    "an array larger than all memory": archive(x=header("(1000000000000,)")),
    "a size beyond integers": archive(x=header("(99999999999999999999999,)")),
    "a negative size": archive(x=header("(-5,)")),
    "a head that nests": archive(x=header("(" * 3000 + ")" * 3000)[:65000]),
    "cut": archive(x=npy(np.arange(1000)))[:-300],
}


@pytest.mark.parametrize("content", WRONG.values(), ids=WRONG)
def test_anything_else_is_one_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(BadInput, match=r"^[^\n]*a\.npz: [^\n]+$"):
        read_arrays(tmp_path / "a.npz")


def test_more_than_fits_into_memory_is_refused_by_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compressed file of few bytes says how much it holds."""
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros(30_000_000, np.uint8))
    assert read_arrays(tmp_path / "a.npz")["x"].nbytes == 30_000_000
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=20_000_000))
    with pytest.raises(BadInput, match=r"a\.npz: holds 0\.03 GB, more than fit into the memory that is free"):
        read_arrays(tmp_path / "a.npz")


def said_of(path: Path) -> str:
    try:
        read_arrays(path)
    except BadInput as error:
        return str(error)
    return ""


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_damage_is_one_line_or_does_no_harm(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    content = bytearray(archive(x=npy(ARRAYS["x"]), y=npy(ARRAYS["y"])))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("damaged") / "a.npz"
    path.write_bytes(content)
    assert "\n" not in said_of(path)


@given(
    shape=st.lists(st.integers(0, 5), max_size=4),
    dtype=st.sampled_from(["float32", "float16", "int64", "bool"]),
    begin=st.integers(0, 80),
    turned=st.booleans(),
)
def test_an_aligned_array_has_the_same_elements_in_order(
    shape: list[int], dtype: str, begin: int, turned: bool
) -> None:
    count = int(np.prod(shape))
    array = np.arange(begin + count).astype(dtype)[begin:].reshape(shape)
    array = array.T if turned else array
    found = aligned(array)
    assert found.shape == array.shape
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found, array)
    assert found.flags.c_contiguous
    assert found.size == 0 or found.ctypes.data % ALIGNMENT == 0
    assert aligned(found) is found
    assert is_aligned(array) == (found is array)

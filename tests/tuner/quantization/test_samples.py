"""Samples are read from what people have, and what does not fit is said in one line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tuner.errors import BadInput
from tuner.quantization import Pixels, open_samples, read_labels
from tuner.tensors import TensorInfo

IMAGE = TensorInfo("x", (1, 3, 4, 6), "float32")
MASK = TensorInfo("mask", (2,), "int64")


def values(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("shape", [(5, 3, 4, 6), (5, 1, 3, 4, 6)])
def test_an_archive_has_samples_along_its_first_axes(tmp_path: Path, shape: tuple[int, ...]) -> None:
    arrays = {"x": values(*shape), "mask": np.arange(10).reshape(5, 2)}
    np.savez(tmp_path / "s.npz", **arrays)
    samples = open_samples(tmp_path / "s.npz", (IMAGE, MASK))
    assert len(samples) == 5
    np.testing.assert_array_equal(samples[3]["x"], arrays["x"].reshape(5, 1, 3, 4, 6)[3])
    np.testing.assert_array_equal(samples.chosen([4, 1])[1]["mask"], [2, 3])


def test_a_folder_has_a_sample_in_each_file_by_their_names(tmp_path: Path) -> None:
    for index, name in enumerate(["b.npy", "a.npy", ".hidden.npy"]):
        np.save(tmp_path / name, values(*IMAGE.shape[1:], seed=index))
    (tmp_path / "README.txt").write_text("not a sample")
    samples = open_samples(tmp_path, (IMAGE,))
    found = [sample["x"] for sample in samples]
    np.testing.assert_array_equal(found, [values(1, 3, 4, 6, seed=1), values(1, 3, 4, 6, seed=0)])


def test_archives_in_a_folder_have_all_inputs_of_one_sample(tmp_path: Path) -> None:
    np.savez(tmp_path / "0.npz", x=values(1, 3, 4, 6), mask=np.array([1, 2]))
    (sample,) = open_samples(tmp_path, (IMAGE, MASK))
    assert {name: array.shape for name, array in sample.items()} == {"x": (1, 3, 4, 6), "mask": (2,)}


@pytest.mark.parametrize(
    ("shape", "dtype", "expected"),
    [
        ((1, 3, 2, 5), "float32", np.array([2.0, -1.0, 0.5])),
        ((1, 2, 5, 3), "float32", np.array([2.0, -1.0, 0.5])),
        ((1, 3, 2, 5), "uint8", np.array([200, 50, 100])),
        ((1, 2, 5, 1), "uint8", np.array([100])),
    ],
)
def test_images_are_scaled_to_the_input(
    tmp_path: Path, shape: tuple[int, ...], dtype: str, expected: np.ndarray
) -> None:
    image = pytest.importorskip("PIL.Image")
    image.new("RGB", (20, 10), (200, 50, 100)).save(tmp_path / "red.png")
    image.new("RGBA", (5, 2), (200, 50, 100, 9)).save(tmp_path / "see-through.PNG")
    pixels = Pixels(100, (1.0, 1.0, 0.5), (0.5, 0.5, 1.0))
    samples = open_samples(tmp_path, (TensorInfo("x", shape, dtype),), pixels)
    assert len(samples) == 2
    for sample in samples:
        assert sample["x"].shape == shape
        assert sample["x"].dtype == dtype
        per_channel = sample["x"].mean(axis=(0, 2, 3) if shape[1] in (1, 3) else (0, 1, 2))
        np.testing.assert_allclose(per_channel, expected, atol=1 if dtype == "uint8" and len(expected) == 1 else 1e-5)


def _write_nothing(folder: Path) -> None:
    (folder / "README.txt").write_text("no sample")


def _write_kinds(folder: Path) -> None:
    np.save(folder / "a.npy", values(1, 3, 4, 6))
    np.savez(folder / "b.npz", x=values(1, 3, 4, 6))


def _write_shape(folder: Path) -> None:
    np.save(folder / "a.npy", values(3, 5, 6))


def _write_dtype(folder: Path) -> None:
    np.save(folder / "a.npy", values(3, 4, 6).astype(np.float64))


def _write_name(folder: Path) -> None:
    np.savez(folder / "a.npz", y=values(1, 3, 4, 6))


def _write_garbage(folder: Path) -> None:
    (folder / "a.npy").write_bytes(b"not an array")


def _write_no_image(folder: Path) -> None:
    (folder / "a.png").write_bytes(b"not an image")


@pytest.mark.parametrize(
    ("write", "says"),
    [
        (_write_nothing, "holds no samples; give a folder of"),
        (_write_kinds, "holds npy files and npz files; give a folder with one kind"),
        (_write_shape, r"a.npy: input 'x' has shape \(3, 5, 6\), the network takes \(1, 3, 4, 6\)"),
        (_write_dtype, "a.npy: input 'x' has dtype float64, the network takes float32: convert it"),
        (_write_name, "a.npz: unknown input 'y': the network takes 'x'"),
        (_write_garbage, "a.npy: not an .npy file that can be read"),
        (_write_no_image, "a.png: not an image that can be read"),
    ],
)
def test_a_folder_that_does_not_fit_is_refused(tmp_path: Path, write, says: str) -> None:
    write(tmp_path)
    with pytest.raises(BadInput, match=says):
        open_samples(tmp_path, (IMAGE,))


def test_what_is_wrong_with_a_later_sample_is_said_when_it_is_read(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", values(1, 3, 4, 6))
    np.save(tmp_path / "b.npy", values(1, 3, 4, 7))
    samples = open_samples(tmp_path, (IMAGE,))
    with pytest.raises(BadInput, match=r"b.npy: input 'x' has shape"):
        samples[1]


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"x": values(0, 3, 4, 6)}, "holds no samples"),
        ({"x": np.float32(3)}, "holds no samples"),
        ({"x": values(2, 3, 4, 6), "mask": np.zeros((3, 2), np.int64)}, "holds 2 of 'x', 3 of 'mask'"),
        ({"x": values(3, 4, 6), "mask": np.zeros((3, 2), np.int64)}, r"sample 0: input 'x' has shape \(4, 6\)"),
        ({"x": values(2, 3, 4, 6)}, "sample 0: input 'mask' is missing"),
    ],
)
def test_an_archive_that_does_not_fit_is_refused(tmp_path: Path, arrays: dict[str, np.ndarray], says: str) -> None:
    np.savez(tmp_path / "s.npz", **arrays)
    with pytest.raises(BadInput, match=says):
        open_samples(tmp_path / "s.npz", (IMAGE, MASK))


def test_images_need_an_input_that_is_one(tmp_path: Path) -> None:
    pytest.importorskip("PIL.Image").new("RGB", (2, 2)).save(tmp_path / "a.png")
    with pytest.raises(BadInput, match=r"'x' \(1, 7, 8, 9\) float32 is no single image of 1 or 3 channels"):
        open_samples(tmp_path, (TensorInfo("x", (1, 7, 8, 9), "float32"),))
    with pytest.raises(BadInput, match="images hold one input, the network has 'x', 'mask'"):
        open_samples(tmp_path, (IMAGE, MASK))
    with pytest.raises(BadInput, match=r"--mean: 2 numbers do not fit images of 3 channel"):
        open_samples(tmp_path, (IMAGE,), Pixels(mean=(1.0, 2.0)))


def test_labels_are_one_whole_number_a_sample(tmp_path: Path) -> None:
    file = tmp_path / "labels.txt"
    file.write_text("3\n1\n2\n0\n")
    assert read_labels(file, 4).tolist() == [[3], [1], [2], [0]]
    assert read_labels(file, 2, 2).tolist() == [[3, 1], [2, 0]]
    with pytest.raises(BadInput, match="holds 4 labels for 5 samples"):
        read_labels(file, 5)
    file.write_text("3\ncat\n")
    with pytest.raises(BadInput, match="holds more than whole numbers"):
        read_labels(file, 2)

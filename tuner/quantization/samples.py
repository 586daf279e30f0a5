"""Read the samples that a network is calibrated with and judged on. Start at `open_samples`.

A sample is one set of the network's inputs, by name. Samples are read one at a time, when they are needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from tuner.arrays import read_arrays
from tuner.errors import BadInput, last_line
from tuner.module.given import checked_inputs
from tuner.tensors import TensorInfo

Sample = Mapping[str, np.ndarray]
_IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".webp")
_ACCEPTED = "a folder of .npy files, of .npz files or of images, or one .npz file with the samples along the first axes"
_COLOURS = (1, 3)  # channels of an image: grey, or red, green and blue


@dataclass(frozen=True)
class Pixels:
    """Says how pixels of 0 to 255 become the values of an input: (pixel / scale - mean) / std. `mean` and `std` have
    one number, or one for each channel."""

    scale: float = 255.0
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)


@dataclass(frozen=True)
class Samples:
    """Samples in the order of their files' names, or of the first axes of an archive's arrays. Reading one raises
    BadInput, naming its file, if its shapes or types are not those of the network's inputs."""

    readers: tuple[Callable[[], Sample], ...]

    def __len__(self) -> int:
        return len(self.readers)

    def __getitem__(self, index: int) -> Sample:
        return self.readers[index]()

    def __iter__(self) -> Iterator[Sample]:
        return (read() for read in self.readers)

    def chosen(self, indices: Sequence[int]) -> Samples:
        """Return the samples that have these indices."""
        return Samples(tuple(self.readers[index] for index in indices))


def open_samples(path: Path, inputs: Sequence[TensorInfo], pixels: Pixels | None = None) -> Samples:
    """Open the samples in a folder of .npy files, .npz files or images, or in one .npz file, and read the first.

    `inputs` describes the network's inputs. Images are scaled to the size of the only input; `pixels` says what their
    values become. Raises BadInput for a path without samples, and for a sample that does not fit the network.
    """
    if path.is_dir():
        readers = _in_folder(path, inputs, pixels or Pixels())
    elif path.is_file() and path.suffix == ".npz":
        readers = _in_archive(path, inputs)
    else:
        raise BadInput(f"{path}: {'no samples' if path.exists() else 'no such file or folder'}; give {_ACCEPTED}")
    samples = Samples(tuple(readers))
    samples[0]  # what is wrong with all of them is said before anything else is done
    return samples


def _in_folder(folder: Path, inputs: Sequence[TensorInfo], pixels: Pixels) -> list[Callable[[], Sample]]:
    """Return what reads each sample of a folder. Files of other kinds are left out."""
    try:
        files = sorted(file for file in folder.iterdir() if file.is_file() and not file.name.startswith("."))
    except OSError as error:
        raise BadInput(f"{folder}: cannot be read: {error.strerror or error}") from None
    kinds = {kind: [f for f in files if f.suffix.lower() in ends] for kind, ends in _KINDS.items()}
    found = [kind for kind, named in kinds.items() if named]
    if not found:
        raise BadInput(f"{folder}: holds no samples; give {_ACCEPTED}")
    if len(found) > 1:
        raise BadInput(f"{folder}: holds {' and '.join(found)}; give a folder with one kind")
    (kind,) = found
    if kind != "npz files" and len(inputs) > 1:
        names = ", ".join(repr(info.name) for info in inputs)
        raise BadInput(f"{folder}: {kind} hold one input, the network has {names}; give .npz files with these names")
    if kind == "images":
        return [partial(_image, file, inputs[0], pixels) for file in kinds[kind]]
    return [partial(_arrays, file, inputs) for file in kinds[kind]]


_KINDS: dict[str, tuple[str, ...]] = {"npy files": (".npy",), "npz files": (".npz",), "images": _IMAGES}


def _arrays(file: Path, inputs: Sequence[TensorInfo]) -> Sample:
    """Read one sample from an .npy file or an .npz file."""
    if file.suffix.lower() == ".npz":
        return _fitted(str(file), inputs, read_arrays(file))
    try:
        array = np.load(file, allow_pickle=False)
    except Exception as error:  # NumPy's parser raises many types of errors
        raise BadInput(f"{file}: not an .npy file that can be read ({last_line(error)})") from None
    return _fitted(str(file), inputs, {inputs[0].name: array})


def _in_archive(path: Path, inputs: Sequence[TensorInfo]) -> list[Callable[[], Sample]]:
    arrays = read_arrays(path)
    counts = {name: len(array) if array.ndim else 0 for name, array in arrays.items()}
    if not counts or min(counts.values()) == 0:
        raise BadInput(f"{path}: holds no samples; every array has them along its first axis")
    if len(set(counts.values())) > 1:
        told = ", ".join(f"{count} of {name!r}" for name, count in counts.items())
        raise BadInput(f"{path}: holds {told}; give the same number of each")

    def read(index: int) -> Sample:
        return _fitted(f"{path}, sample {index}", inputs, {name: array[index] for name, array in arrays.items()})

    return [partial(read, index) for index in range(max(counts.values()))]


def _fitted(where: str, inputs: Sequence[TensorInfo], arrays: Mapping[str, np.ndarray]) -> Sample:
    """Return arrays with the shapes of the inputs. A first axis of 1 may be missing. Raises BadInput if they have other
    names, shapes or types."""
    shapes = {info.name: info.shape for info in inputs}
    whole = {
        name: array[np.newaxis] if (1, *array.shape) == shapes.get(name) else array for name, array in arrays.items()
    }
    try:
        return checked_inputs(inputs, whole, taker="network")
    except BadInput as error:
        raise BadInput(f"{where}: {error}") from None


def _image(file: Path, info: TensorInfo, pixels: Pixels) -> Sample:
    """Read an image as the only input of a network, whatever the order of its axes."""
    try:
        from PIL import Image, ImageOps
    except ImportError:
        raise BadInput("images are read by Pillow, which is not installed: pip install 'edgetune[quantize]'") from None
    shape, is_last = info.shape, _channels_last(file, info)
    height, width, channels = shape[1:] if is_last else (*shape[2:], shape[1])
    try:
        with Image.open(file) as image:
            turned = ImageOps.exif_transpose(image).convert("L" if channels == 1 else "RGB")
            values = np.asarray(turned.resize((width, height), Image.Resampling.BILINEAR))
    except Exception as error:  # Pillow's decoders raise many types of errors
        raise BadInput(f"{file}: not an image that can be read ({last_line(error)})") from None
    values = values.reshape(height, width, channels)
    if info.dtype != "uint8":
        mean, std = (_of_channels(pixels, name, channels) for name in ("mean", "std"))
        values = ((values / np.float32(pixels.scale) - mean) / std).astype(info.dtype)
    return {info.name: np.ascontiguousarray(values if is_last else values.transpose(2, 0, 1))[np.newaxis]}


def _channels_last(file: Path, info: TensorInfo) -> bool:
    """Tell whether the channels of an image are an input's last axis. Raises BadInput if it is no image."""
    shape = info.shape
    if len(shape) == 4 and shape[0] == 1 and (info.dtype == "uint8" or info.dtype.startswith("float")):
        if shape[1] in _COLOURS:
            return False
        if shape[3] in _COLOURS:
            return True
    raise BadInput(
        f"{file}: the network's input {info.name!r} {shape} {info.dtype} is no single image of 1 or 3 channels; give "
        ".npy files"
    )


def _of_channels(pixels: Pixels, name: str, channels: int) -> np.ndarray:
    values: tuple[float, ...] = getattr(pixels, name)
    if len(values) not in (1, channels):
        raise BadInput(f"--{name}: {len(values)} numbers do not fit images of {channels} channel(s)")
    return np.array(values, np.float32)


def read_labels(path: Path, samples: int, rows: int = 1) -> np.ndarray:
    """Read the right class of each sample from a text file of whole numbers, as an array (samples, rows), int64.

    `rows` is the number of images that a sample has. Raises BadInput for a file that holds anything else.
    """
    try:
        words = path.read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: cannot be read as text ({last_line(error)})") from None
    try:
        labels = np.array([int(word) for word in words], np.int64)
    except (ValueError, OverflowError):
        raise BadInput(f"{path}: holds more than whole numbers; give the class of each sample, one a line") from None
    if len(labels) != samples * rows:
        raise BadInput(
            f"{path}: holds {len(labels)} labels for {samples * rows} samples; give one for each, one a line"
        )
    return labels.reshape(samples, rows)

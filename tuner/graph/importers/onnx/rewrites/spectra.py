"""Write ONNX's Fourier transforms of fixed lengths as products with matrices of cosines and sines.

Start at `SPECTRA`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx

from tuner.graph.importers.onnx.rewrites.writer import NodeWriter, Rewrite, attributes_of, operand

_LONGEST = 4096  # the matrix of this length has some 100 MB


def _matrix(length: int, parts: int, *, onesided: bool, inverse: bool) -> np.ndarray:
    """Return the matrix (length * parts, bins * 2) that turns a signal into its spectrum. A number of the signal has
    1 or 2 parts, and a bin of the spectrum has a real and an imaginary part."""
    bins = length // 2 + 1 if onesided else length
    angle = 2 * np.pi * (np.outer(np.arange(length), np.arange(bins)) % length) / length
    cosine, sine = np.cos(angle), np.sin(angle) * (1 if inverse else -1)
    real = np.stack([cosine, sine], -1)  # what a real number contributes
    whole = real if parts == 1 else np.stack([real, np.stack([-sine, cosine], -1)], 1)
    return whole.reshape(length * parts, bins * 2) / (length if inverse else 1)


def _real_inverse(length: int, bins: int) -> np.ndarray:
    """Return the matrix (bins * 2, length) that turns one side of a spectrum into a real signal."""
    weight = np.full(bins, 2.0)
    weight[0] = 1.0
    if length % 2 == 0 and bins == length // 2 + 1:
        weight[-1] = 1.0
    angle = 2 * np.pi * (np.outer(np.arange(bins), np.arange(length)) % length) / length
    parts = np.stack([np.cos(angle), -np.sin(angle)], 1) * weight[:, None, None]
    return parts.reshape(bins * 2, length) / length


def _dft(writer: NodeWriter, node: onnx.NodeProto) -> Sequence[str] | None:
    """Move the axis before the parts, cut or pad it to the requested length, multiply, and move it back."""
    x, attrs = node.input[0], attributes_of(node)
    shape, kind = writer.shape(x), writer.dtype(x)
    axis = attrs.get("axis", 1) if writer.opset < 20 else -2
    if operand(node, 2):
        given = writer.value(operand(node, 2))
        axis = None if given is None else int(given.reshape(-1)[0])
    if shape is None or kind is None or axis is None:
        return None
    rank, axis = len(shape), axis % len(shape)
    inverse, onesided = bool(attrs.get("inverse", 0)), bool(attrs.get("onesided", 0))
    length = shape[axis] if not (inverse and onesided) else 2 * (shape[axis] - 1)
    if operand(node, 1):
        asked = writer.value(operand(node, 1))
        if asked is None:
            return None
        length = int(asked.reshape(-1)[0])
    read = length // 2 + 1 if inverse and onesided else length
    if length > _LONGEST or axis == rank - 1:
        return None
    order = [*(i for i in range(rank - 1) if i != axis), axis, rank - 1]
    rows = writer.add("Transpose", x, perm=order) if order != list(range(rank)) else x
    rows = _resized(writer, rows, rank - 2, sizes=(shape[axis], read), shape=[shape[i] for i in order], kind=kind)
    if inverse and onesided:
        matrix, parts = _real_inverse(length, read), 1
    else:
        matrix, parts = _matrix(length, shape[-1], onesided=onesided, inverse=inverse), 2
    lead = [shape[i] for i in order[:-2]]
    product = writer.add("MatMul", writer.reshape(rows, [*lead, read * shape[-1]]), writer.constant(matrix, kind))
    result = writer.reshape(product, [*lead, matrix.shape[1] // parts, parts])
    back = [order.index(i) for i in range(rank)]
    return [writer.add("Transpose", result, perm=back) if back != list(range(rank)) else result]


def _resized(writer: NodeWriter, x: str, axis: int, *, sizes: tuple[int, int], shape: list[int], kind: np.dtype) -> str:
    """Cut an axis from the first of two sizes to the second, or pad it with zeros to that size."""
    old, new = sizes
    if old > new:
        return writer.split(x, axis, [new, old - new])[0]
    if old < new:
        zeros = np.zeros([new - old if i == axis else size for i, size in enumerate(shape)], kind)
        return writer.add("Concat", x, writer.constant(zeros), axis=axis)
    return x


def _stft(writer: NodeWriter, node: onnx.NodeProto) -> Sequence[str] | None:
    """Gather the frames of a signal, and multiply them with the transform's matrix, which includes the window."""
    signal, attrs = node.input[0], attributes_of(node)
    shape, kind, step = writer.shape(signal), writer.dtype(signal), writer.value(node.input[1])
    window = writer.value(operand(node, 2)) if operand(node, 2) else None
    asked = writer.value(operand(node, 3)) if operand(node, 3) else None
    length = None if asked is None else int(asked.reshape(-1)[0])
    if length is None and window is not None:
        length = len(window)
    if shape is None or kind is None or step is None or length is None or length > _LONGEST:
        return None
    if operand(node, 2) and window is None:
        return None
    parts = shape[2] if len(shape) == 3 else 1
    hop = int(step.reshape(-1)[0])
    frames = (shape[1] - length) // hop + 1
    places = np.arange(frames)[:, None] * hop + np.arange(length)
    rows = writer.reshape(signal, [shape[0], shape[1], parts])
    taken = writer.add("Gather", rows, writer.constant(places.reshape(-1), np.int64), axis=1)
    matrix = _matrix(length, parts, onesided=bool(attrs.get("onesided", 1)), inverse=False)
    if window is not None:
        padded = np.zeros(length)
        begin = (length - len(window)) // 2
        padded[begin : begin + len(window)] = window
        matrix = matrix * np.repeat(padded, parts)[:, None]
    product = writer.add(
        "MatMul", writer.reshape(taken, [shape[0], frames, length * parts]), writer.constant(matrix, kind)
    )
    return [writer.reshape(product, [shape[0], frames, matrix.shape[1] // 2, 2])]


SPECTRA: dict[tuple[str, str], Rewrite] = {("", "DFT"): _dft, ("", "STFT"): _stft}

"""Write three-dimensional convolutions as two-dimensional ones. Start at `convolved`.

The planes of a volume become the images of a batch, so that (N, C, D, H, W) is (N x D, C, H, W). A kernel of several
planes reads as many neighbouring ones: they are stacked along the channels, and so are the kernel's. A depthwise
convolution would not remain one; it is the sum of one convolution for each plane of its kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

from tuner.graph.ir.simplify import as_constant


@dataclass(frozen=True)
class Depth:
    """Describes a window along the depth: how far it moves, by how many planes the volume is extended before and after,
    and how far the planes of the kernel lie apart."""

    stride: int
    padding: tuple[int, int]
    dilation: int

    def planes(self, size: int, kernel: int) -> int:
        """Return the number of planes of the result."""
        return (size + sum(self.padding) - self.dilation * (kernel - 1) - 1) // self.stride + 1


def as_planes(builder: relax.BlockBuilder, volume: Any) -> Any:
    """Emit a volume (N, C, D, H, W) as planes (N, D, C, H, W)."""
    return builder.emit(relax.op.permute_dims(volume, [0, 2, 1, 3, 4]))


def as_volume(builder: relax.BlockBuilder, images: Any, planes: int) -> Any:
    """Emit images (N x D, C, H, W) as a volume (N, C, D, H, W) of so many planes."""
    return as_planes(builder, unbatched(builder, images, planes))


def unbatched(builder: relax.BlockBuilder, images: Any, planes: int) -> Any:
    """Emit images (N x D, C, H, W) as planes (N, D, C, H, W)."""
    count, *image = (int(extent) for extent in images.ty.shape)
    return builder.emit(relax.op.reshape(images, (count // planes, planes, *image)))


def convolved(builder: relax.BlockBuilder, planes: Any, weight: np.ndarray, depth: Depth, attrs: dict[str, Any]) -> Any:
    """Return the convolution of planes (N, D, C, H, W) with an OIDHW weight, as images (N x D, C, H, W). `attrs` are
    those of the two-dimensional convolution."""
    inputs, kernel = int(planes.ty.shape[2]), weight.shape[2]
    taps = _taps(builder, planes, depth, kernel)
    if weight.shape[1] == 1 and attrs["groups"] == inputs and kernel > 1:
        sums = [
            builder.emit(relax.op.nn.conv2d(_images(builder, tap), _constant(weight[:, :, k]), **attrs))
            for k, tap in enumerate(taps)
        ]
        total = sums[0]
        for value in sums[1:-1]:
            total = builder.emit(relax.op.add(value, total))
        return relax.op.add(sums[-1], total)
    stacked = taps[0]
    if kernel > 1:
        stacked = builder.emit(relax.op.concat([builder.emit(relax.op.expand_dims(tap, 3)) for tap in taps], axis=3))
    merged = weight.reshape(weight.shape[0], -1, *weight.shape[3:])
    return relax.op.nn.conv2d(_images(builder, stacked), _constant(merged), **attrs)


def _taps(builder: relax.BlockBuilder, planes: Any, depth: Depth, kernel: int) -> list[Any]:
    """Emit the planes that each plane of the kernel meets, for all planes of the result."""
    size = int(planes.ty.shape[1])
    count = depth.planes(size, kernel)
    if any(depth.padding):
        planes = builder.emit(relax.op.nn.pad(planes, (0, 0, *depth.padding, 0, 0, 0, 0, 0, 0)))
    found = []
    for k in range(kernel):
        begin = k * depth.dilation
        end = begin + (count - 1) * depth.stride + 1
        whole = begin == 0 and depth.stride == 1 and end == int(planes.ty.shape[1])
        step = relax.op.strided_slice(planes, [1], [begin], [end], [depth.stride])
        found.append(planes if whole else builder.emit(step))
    return found


def _images(builder: relax.BlockBuilder, planes: Any) -> Any:
    """Emit planes (N, D, C, H, W) or (N, D, C, taps, H, W) as images (N x D, C x taps, H, W)."""
    n, d, *channels, h, w = (int(extent) for extent in planes.ty.shape)
    return builder.emit(relax.op.reshape(planes, (n * d, int(np.prod(channels)), h, w)))


def _constant(weight: np.ndarray) -> Any:
    return as_constant(np.ascontiguousarray(weight))

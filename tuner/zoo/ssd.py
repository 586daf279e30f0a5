"""Builds SSD (Liu et al., 2016) like GluonCV for the 20 classes of VOC. It takes two maps of MobileNet 1.0 or ResNet-50
v1, and four more that halve. Each has heads of one convolution. Boxes are decoded and suppressed in the graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

import numpy as np

from tuner.zoo import mobilenet as mobilenet_v1
from tuner.zoo import resnet50_v1 as resnet50
from tuner.zoo.builder import GraphBuilder
from tuner.zoo.detection import columns, corners, detections, floats, joined, rows

CLASSES = 20
EXTRA = (512, 512, 256, 256)  # channels of the maps that follow the network's own
STEPS = (16, 32, 64, 128, 256, 512)  # pixels between anchors
SIZES = (0.1, 0.2, 0.37, 0.54, 0.71, 0.88, 0.961)  # shares of the image; a map's anchors use its own and the next one
RATIOS = ((1.0, 2.0, 0.5), *((1.0, 2.0, 0.5, 3.0, 1 / 3),) * 3, *((1.0, 2.0, 0.5),) * 2)
DEVIATIONS = np.array([0.1, 0.1, 0.2, 0.2], np.float32)
BACKGROUND = 16.0  # bias of the background's logit, so that random heads mostly find nothing, as after training


def mobilenet(b: GraphBuilder, batch: int, size: int) -> Sequence[str]:
    """Build SSD on MobileNet 1.0, for images of `size` pixels a side, and return the names of its outputs."""
    maps = mobilenet_v1.features(b, b.input("data", (batch, 3, size, size)))
    return _detector(b, [maps[10], maps[12]], batch, size=size, magnitude=1.0)


def resnet50_v1(b: GraphBuilder, batch: int, size: int) -> Sequence[str]:
    """Build SSD on ResNet-50 v1, for images of `size` pixels a side, and return the names of its outputs."""
    stages = resnet50.features(b, b.input("data", (batch, 3, size, size)))
    return _detector(b, [stages[2][-1], stages[3][-1]], batch, size=size, magnitude=3.4)


def _detector(b: GraphBuilder, maps: list[str], batch: int, *, size: int, magnitude: float) -> Sequence[str]:
    """Add the detector. `magnitude` is that of the maps' values, for which the weights of the heads make up."""
    spread, moved = 9 / magnitude**2, 1 / magnitude**2
    extents = [-(-size // 16), -(-size // 32)]
    for i, channels in enumerate(EXTRA):
        x = b.conv_bn_relu(maps[-1], f"extra{i}.reduce", max(channels // 2, 128), kernel=1)
        maps.append(b.conv_bn_relu(x, f"extra{i}.halve", channels, kernel=3, stride=2, padding=1))
        extents.append(-(-extents[-1] // 2))
    scores, moves, anchors = [], [], []
    sizes = [share * size for share in SIZES]
    for i, (x, extent) in enumerate(zip(maps, extents, strict=True)):
        places = len(RATIOS[i]) + 1
        shift = np.tile([BACKGROUND, *[0.0] * CLASSES], places)
        classes = b.conv(x, f"class{i}", places * (CLASSES + 1), 3, padding=1, bias=True, gain=spread, shift=shift)
        scores.append(rows(b, classes, batch, CLASSES + 1))
        moves.append(rows(b, b.conv(x, f"box{i}", places * 4, 3, padding=1, bias=True, gain=moved), batch, 4))
        anchors.append(_anchors(extent, STEPS[i], sizes[i], next_size=sizes[i + 1], ratios=RATIOS[i]))
    boxes = _decoded(b, joined(b, moves, 1), np.concatenate(anchors))
    ranked = b.node("Softmax", [joined(b, scores, 1)], axis=-1)
    return detections(b, boxes, b.node("Transpose", [columns(b, ranked, 1, CLASSES + 1)], perm=[0, 2, 1]))


def _anchors(extent: int, step: int, size: float, *, next_size: float, ratios: Sequence[float]) -> np.ndarray:
    """Return the anchors (places, 4): centre x and y, width and height in pixels, in the order of a head's result."""
    shapes = [(size, size), (sqrt(size * next_size),) * 2]
    shapes += [(size * sqrt(ratio), size / sqrt(ratio)) for ratio in ratios[1:]]
    centres = (np.arange(extent) + 0.5) * step
    y, x = np.meshgrid(centres, centres, indexing="ij")
    every = np.stack([x, y], -1).reshape(-1, 1, 2)
    wide = np.broadcast_to(every, (len(every), len(shapes), 2))
    return np.concatenate([wide, np.broadcast_to(np.array(shapes), wide.shape)], -1).reshape(-1, 4)


def _decoded(b: GraphBuilder, moves: str, anchors: np.ndarray) -> str:
    scaled = b.node("Mul", [moves, floats(b, DEVIATIONS)])
    centres, extents = floats(b, anchors[None, :, :2]), floats(b, anchors[None, :, 2:])
    centre = b.node("Add", [b.node("Mul", [columns(b, scaled, 0, 2), extents]), centres])
    extent = b.node("Mul", [b.node("Exp", [columns(b, scaled, 2, 4)]), extents])
    return corners(b, centre, extent)

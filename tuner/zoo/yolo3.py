"""Builds YOLOv3 (Redmon and Farhadi, 2018) with Darknet-53 for the 80 classes of COCO: 61.95 M parameters, 32.9 G
multiply-adds at 416 pixels. Boxes are decoded and suppressed in the graph.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tuner.zoo.builder import GraphBuilder
from tuner.zoo.detection import columns, corners, detections, floats, joined, rows

CLASSES = 80
STAGES = ((64, 1), (128, 2), (256, 8), (512, 8), (1024, 4))  # channels, residual blocks
SLOPE = 0.1
# For each head, the pixels between its positions and the extents of its anchors. The coarsest head comes first.
HEADS = (
    (32, ((116, 90), (156, 198), (373, 326))),
    (16, ((30, 61), (62, 45), (59, 119))),
    (8, ((10, 13), (16, 30), (33, 23))),
)
# These make random heads find as much as trained ones: the spread of the logits, and the means of the logits that say
# whether anything is there, and of which class.
SPREAD, ANYTHING, KIND = 0.2, -8.0, -4.0


def build(b: GraphBuilder, batch: int, size: int) -> Sequence[str]:
    """Build the network for images of `size` pixels a side and return the names of its outputs."""
    x = _layer(b, b.input("data", (batch, 3, size, size)), "stem", channels=32, kernel=3)
    maps = []
    for i, (channels, blocks) in enumerate(STAGES):
        x = _layer(b, x, f"stage{i}.halve", channels=channels, kernel=3, stride=2)
        for j in range(blocks):
            y = _layer(b, x, f"stage{i}.{j}.reduce", channels=channels // 2, kernel=1)
            x = b.add(x, _layer(b, y, f"stage{i}.{j}.expand", channels=channels, kernel=3, gain=0.15))
        maps.append(x)
    boxes, scores = [], []
    for i, (step, anchors) in enumerate(HEADS):
        channels = 512 >> i
        if i:
            x = b.concat([b.upsample(_layer(b, x, f"head{i}.transition", channels=channels, kernel=1)), maps[-1 - i]])
        for j in range(5):
            x = _layer(
                b, x, f"head{i}.{j}", channels=channels if j % 2 == 0 else 2 * channels, kernel=1 if j % 2 == 0 else 3
            )
        shift = np.tile([0.0] * 4 + [ANYTHING] + [KIND] * CLASSES, len(anchors))
        tip = _layer(b, x, f"head{i}.tip", channels=2 * channels, kernel=3)
        out = b.conv(tip, f"head{i}.output", len(shift), 1, bias=True, gain=SPREAD, shift=shift)
        found, likely = _decoded(b, rows(b, out, batch, 5 + CLASSES), size // step, step=step, anchors=anchors)
        boxes.append(found)
        scores.append(likely)
    ranked = b.node("Transpose", [joined(b, scores, 1)], perm=[0, 2, 1])
    return detections(b, joined(b, boxes, 1), ranked)


def _layer(
    b: GraphBuilder, x: str, name: str, *, channels: int, kernel: int, stride: int = 1, gain: float = 1.0
) -> str:
    x = b.conv(x, f"{name}.conv", channels, kernel, stride, kernel // 2)
    return b.leaky_relu(b.batch_norm(x, f"{name}.bn", gain), SLOPE)


def _decoded(
    b: GraphBuilder, out: str, extent: int, *, step: int, anchors: Sequence[tuple[int, int]]
) -> tuple[str, str]:
    """Return the boxes (batch, places, 4) and scores (batch, places, classes) of a head."""
    y, x = np.meshgrid(np.arange(extent), np.arange(extent), indexing="ij")
    places = np.repeat(np.stack([x, y], -1).reshape(-1, 2), len(anchors), 0)[None]
    shapes = np.tile(np.array(anchors), (extent * extent, 1))[None]
    inside = b.node("Sigmoid", [columns(b, out, 0, 2)])
    centre = b.node("Mul", [b.node("Add", [inside, floats(b, places)]), floats(b, step)])
    size = b.node("Mul", [b.node("Exp", [columns(b, out, 2, 4)]), floats(b, shapes)])
    object_ = b.node("Sigmoid", [columns(b, out, 4, 5)])
    classes = b.node("Sigmoid", [columns(b, out, 5, 5 + CLASSES)])
    return corners(b, centre, size), b.node("Mul", [classes, object_])

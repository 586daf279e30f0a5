"""Workloads that between them have every shape a template must get right: odd sizes, strides, groups, epilogues."""

from __future__ import annotations

from templates.workloads import Conv2d, Dense
from tuning_db.record import Workload

SAME3 = (1, 1, 1, 1)
WORKLOADS: dict[str, Workload] = {
    "conv3x3": Conv2d(1, 32, 14, 14, 32, (3, 3), padding=SAME3).workload(("bias", "relu")),
    "conv3x3_odd_sizes": Conv2d(1, 24, 13, 9, 40, (3, 3), padding=(0, 1, 2, 1)).workload(("bias", "add", "relu")),
    "conv3x3_batch": Conv2d(2, 32, 8, 8, 16, (3, 3), padding=SAME3).workload(("bias", "clip:0.0:6.0")),
    "conv3x3_strided": Conv2d(1, 32, 15, 17, 32, (3, 3), (2, 2), SAME3).workload(("bias", "leaky_relu:0.1")),
    "conv3x3_dilated": Conv2d(1, 16, 16, 16, 16, (3, 3), padding=(2, 2, 2, 2), dilation=(2, 2)).workload(("relu",)),
    "conv5x1": Conv2d(1, 16, 11, 7, 32, (5, 1), padding=(2, 0, 2, 0)).workload(),
    "conv1x1": Conv2d(1, 64, 7, 7, 48, (1, 1)).workload(("bias", "add", "relu")),
    "conv1x1_prime": Conv2d(1, 16, 17, 19, 40, (1, 1)).workload(("bias", "silu")),
    "conv1x1_strided": Conv2d(1, 32, 14, 14, 64, (1, 1), (2, 2)).workload(("bias",)),
    "conv1x1_strides": Conv2d(2, 32, 15, 13, 48, (1, 1), (3, 2), groups=2).workload(("bias", "add", "relu")),
    "conv_grouped": Conv2d(1, 32, 9, 9, 64, (3, 3), padding=SAME3, groups=2).workload(("bias", "hardswish")),
    "conv_small_groups": Conv2d(1, 32, 9, 9, 32, (3, 3), padding=SAME3, groups=8).workload(("bias", "sigmoid")),
    "conv_pairs_strided": Conv2d(2, 24, 15, 9, 24, (3, 3), (2, 1), SAME3, groups=12).workload(("bias", "add", "relu")),
    "conv_uneven_groups": Conv2d(1, 24, 6, 6, 36, (3, 3), padding=SAME3, groups=3).workload(("bias", "tanh")),
    "first_layer": Conv2d(1, 3, 30, 26, 32, (7, 7), (2, 2), (3, 3, 3, 3)).workload(("bias", "relu")),
    "grey_input": Conv2d(2, 1, 12, 12, 20, (5, 5)).workload(("bias",)),
    "depthwise": Conv2d(1, 32, 14, 14, 32, (3, 3), padding=SAME3, groups=32).workload(("bias", "relu")),
    "depthwise_strided": Conv2d(2, 24, 15, 9, 24, (5, 3), (2, 1), (2, 1, 2, 1), groups=24).workload(("bias", "add")),
    "depthwise_multiplier": Conv2d(1, 16, 8, 8, 32, (3, 3), padding=SAME3, groups=16).workload(("bias",)),
    "dense": Dense(1, 96, 100).workload(("bias",)),
    "dense_rows": Dense(5, 33, 30).workload(("bias", "add", "relu")),
}

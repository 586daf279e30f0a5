"""Workloads of 8-bit integers with the shapes and epilogues that templates must get right, and their kernels."""

from __future__ import annotations

import random

import numpy as np
import tvm
from tvm.target import Target

from templates.integers import INTEGERS
from templates.reference import relative_error, same_integers
from templates.template import AnchorTemplate, search_space, template_named
from templates.workloads import Conv2d, Dense
from tests.templates.support import CPU, Compiled
from tuning_db.record import Workload

SAME3 = (1, 1, 1, 1)
REAL = ("offset", "window", "real", "scale", "bias", "silu")
STEPS = ("offset", "real", "scale", "relu", "quantize")
SUM = ("real", "scale", "bias", "quantize", "bytes", "add_bytes", "relu", "quantize")


def integer(anchor: Conv2d | Dense, *epilogue: str) -> Workload:
    return anchor.workload(epilogue, INTEGERS)


WORKLOADS = {
    "conv3x3": integer(Conv2d(1, 32, 14, 14, 32, (3, 3), padding=SAME3)),
    "conv3x3_border": integer(Conv2d(1, 32, 14, 12, 48, (3, 3), padding=SAME3), "border", *REAL),
    "conv3x3_odd": integer(Conv2d(2, 24, 13, 9, 40, (3, 3), padding=(0, 1, 2, 1)), "border", *STEPS),
    "conv3x3_strided": integer(Conv2d(1, 32, 15, 17, 32, (3, 3), (2, 2), SAME3), "border", "offset", "real"),
    "conv1x1": integer(Conv2d(1, 64, 7, 7, 48, (1, 1)), "offset", "real", "scale", "add", "relu"),
    "conv1x1_prime": integer(Conv2d(1, 16, 17, 19, 40, (1, 1)), *STEPS),
    "first_layer": integer(Conv2d(1, 3, 30, 26, 32, (7, 7), (2, 2), (3, 3, 3, 3)), "border", *STEPS),
    "grey_input": integer(Conv2d(2, 1, 12, 12, 20, (5, 5)), *REAL),
    "depthwise": integer(Conv2d(1, 32, 14, 14, 32, (3, 3), padding=SAME3, groups=32), "border", *STEPS),
    "depthwise_strided": integer(Conv2d(2, 24, 15, 9, 24, (5, 3), (2, 1), (2, 1, 2, 1), groups=24), "real"),
    "depthwise_sums": integer(Conv2d(1, 16, 9, 9, 16, (7, 7), groups=16)),
    "grouped": integer(Conv2d(1, 32, 14, 13, 32, (3, 3), padding=SAME3, groups=8), "border", *STEPS),
    "grouped_wide": integer(Conv2d(1, 24, 11, 9, 24, (3, 3), (2, 2), SAME3, groups=3), "border", *REAL[:1], *REAL[2:]),
    "grouped_pairs": integer(Conv2d(2, 36, 9, 10, 36, (1, 3), groups=18), *STEPS),
    "grouped_merged": integer(Conv2d(1, 36, 10, 9, 60, (3, 3), padding=SAME3, groups=6), "border", *STEPS),
    "grouped_sums": integer(Conv2d(1, 64, 8, 8, 64, (3, 3), dilation=(2, 2), groups=16)),
    "grouped_whole": integer(Conv2d(1, 64, 8, 8, 96, (3, 3), padding=SAME3, groups=2), "border", *STEPS),
    "dense": integer(Dense(1, 96, 100), "offset", "real", "scale", "bias"),
    "dense_rows": integer(Dense(5, 33, 30), *REAL),
    "conv3x3_sum": integer(Conv2d(1, 32, 14, 14, 32, (3, 3), padding=SAME3), *SUM),
    "conv1x1_sum": integer(Conv2d(2, 20, 9, 7, 40, (1, 1)), "offset", *SUM),
    "conv1x1_sum_of_reals": integer(
        Conv2d(1, 64, 7, 7, 48, (1, 1)), "real", "scale", "bytes", "add_bytes", "scale", "quantize"
    ),
    "depthwise_sum": integer(Conv2d(1, 32, 14, 14, 32, (3, 3), padding=SAME3, groups=32), *SUM),
    "dense_sum": integer(Dense(20, 33, 70), *SUM),
    "dense_steps": integer(Dense(20, 30, 130), *STEPS),
}


def right(result: np.ndarray, expected: np.ndarray) -> bool:
    if np.issubdtype(result.dtype, np.integer):
        return same_integers(result, expected)
    return relative_error(result, expected) < 1e-6


def kernels_of(workload: Workload, target: Target, samples: int, device: tvm.runtime.Device = CPU) -> list[Compiled]:
    """The first seed of each of a workload's spaces, and random configs."""
    rng, space, kernels = random.Random(7), search_space(workload, target), []
    assert space is not None
    for one in space.spaces:
        template = template_named(one.template)
        assert isinstance(template, AnchorTemplate)
        configs = [one.seed_configs()[0], *filter(None, (one.sample(rng) for _ in range(samples)))]
        kernels += [Compiled(template, workload, target, config, device) for config in configs]
    return kernels

"""This module holds the code that the child processes of the convolution benchmarks share. Start at `serve_kernel`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from templates.workloads import Conv2d
from tuner.report.contender import isolate, serve

Open = Callable[[dict[str, Any], Conv2d, dict[str, np.ndarray]], Callable[[], float]]


def serve_kernel(opened: Open) -> None:
    """Time a kernel as the parent process asks.

    `opened(spec, conv, arrays)` returns a function that makes one call and returns its seconds. The specification is
    the argument of this process.
    """
    spec = json.loads(sys.argv[1])
    replies = isolate(spec["cpus"])
    conv = Conv2d(**spec["conv"])
    with np.load(spec["operands"]) as archive:
        arrays = {name: archive[name] for name in archive.files}
    serve(opened(spec, conv, arrays), spec["kind"], replies)

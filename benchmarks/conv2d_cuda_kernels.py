"""This module opens and times the kernels that conv2d_cuda.py compares, in its process. Start at `Layer`.

Our kernels come from a built library, and cuDNN's run through torch. All run on the same stream with cold weights, and
each is checked before it is timed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import tvm
from conv2d_cpu import EPILOGUE, files_of

from templates.reference import Operands, random_operands, reference, relative_error
from templates.template import anchor_template
from templates.workloads import Conv2d
from tuner.devices import Device
from tuner.measure.targets.executor import Accelerator
from tuning_db.record import Config

CALLS = 20  # between two events
WARM_RUNS, BLOCK_RUNS = 10, 8
_SLEEP_CYCLES = 4_000_000  # that the GPU waits until all calls are queued, so that the host's time does not count
_FORMATS = (torch.contiguous_format, torch.channels_last)

Run = Callable[[], float]


class WrongAnswer(Exception):
    """Raised when the result of a kernel differs from the float64 reference by more than the tolerance."""


@dataclass(frozen=True)
class Layer:
    """A convolution with bias and ReLU that is computed in one mode on one device.

    `tolerance` is the largest relative error allowed.
    """

    conv: Conv2d
    dtype: str
    tf32: bool
    tolerance: float
    device: Device

    @cached_property
    def operands(self) -> Operands:
        return random_operands(self.conv.workload(EPILOGUE, self.dtype), 0)

    @cached_property
    def expected(self) -> Mapping[bool, np.ndarray]:
        """Return the expected results with (True) and without (False) the epilogue."""
        plain = Operands(self.operands.data, self.operands.weight, ())
        return {
            True: reference(self.conv.workload(EPILOGUE, self.dtype), self.operands),
            False: reference(self.conv.workload((), self.dtype), plain),
        }

    @property
    def cold_bytes(self) -> int:
        return 2 * self.device.cache_bytes

    def check(self, result: np.ndarray, whole: bool) -> None:
        error = relative_error(result, self.expected[whole])
        if not error <= self.tolerance:
            raise WrongAnswer(f"relative error {error:.1e}")

    def ours(self, config: Config, folder: Path) -> Run:
        files = files_of(self.conv, self.device, config, folder, "ours", self.dtype)
        with np.load(files["operands"]) as archive:
            arrays = {name: archive[name] for name in archive.files}
        place = Accelerator(self.device.name)
        function = tvm.runtime.load_module(files["library"])["main"]
        weight = place.cold(arrays["weight"], self.cold_bytes)
        data, bias, out = (place.tensor(arrays[name]) for name in ("data", "bias", "out"))

        def call() -> Any:
            function(data, weight.next(), bias, out)

        call()
        workload, template = self.conv.workload(EPILOGUE, self.dtype), anchor_template(config.template)
        layout = template.layouts(workload, self.device.target).out
        self.check(layout.unpack(place.array(out), self.conv.out_channels), whole=True)
        return _seconds_of(call)

    def cudnn(self, fused: bool) -> Run:
        """Return cuDNN's convolution alone, or with bias and ReLU fused, in the faster of torch's memory formats."""
        torch.backends.cudnn.benchmark = True
        torch.backends.cudnn.allow_tf32 = self.tf32
        runs = [_seconds_of(self._cudnn(fused, layout)) for layout in _FORMATS]
        return min(runs, key=lambda run: min(run() for _ in range(5)))

    def _cudnn(self, fused: bool, layout: Any) -> Callable[[], Any]:
        conv, device = self.conv, torch.device(self.device.name)
        given = (self.operands.data, self.operands.weight, self.operands.extra[0])
        data, weight, bias = (torch.from_numpy(array).to(device) for array in given)
        data = data.contiguous(memory_format=layout)
        copies = min(1024, max(1, -(-self.cold_bytes // given[1].nbytes)))
        weights = [weight.clone().contiguous(memory_format=layout) for _ in range(copies)]
        pad, stride, dilation = list(conv.padding[:2]), list(conv.strides), list(conv.dilation)
        calls = 0

        def call() -> Any:
            nonlocal calls
            calls += 1
            cold = weights[calls % copies]
            if fused:
                return torch.cudnn_convolution_relu(data, cold, bias, stride, pad, dilation, conv.groups)
            return torch.nn.functional.conv2d(data, cold, None, stride, pad, dilation, conv.groups)

        self.check(call().cpu().numpy(), fused)
        return call


def _seconds_of(call: Callable[[], Any]) -> Run:
    """Return a function that measures the GPU's seconds for one call.

    It takes them from events around several calls that follow each other without a gap. TVM and torch launch on the
    same stream, the default one.
    """
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def run() -> float:
        torch.cuda._sleep(_SLEEP_CYCLES)
        start.record()
        for _ in range(CALLS):
            call()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e-3 / CALLS

    return run


def alternated(runs: Mapping[str, Run], rounds: int) -> dict[str, float]:
    """Measure the contenders in blocks that take turns, and return the median seconds per call of each.

    Each round begins with a different contender.
    """
    names, times = list(runs), {name: [] for name in runs}  # type: dict[str, list[float]]
    for run in runs.values():
        for _ in range(WARM_RUNS):
            run()
    for number in range(rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            runs[name]()
            times[name].append(median(runs[name]() for _ in range(BLOCK_RUNS)))
    return {name: median(blocks) for name, blocks in times.items()}

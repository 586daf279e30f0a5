"""Runs one template's function on random operands and compares it with the float64 reference."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import tvm
from tvm.target import Target

from templates.epilogue import OPERANDS, operands
from templates.integers import Types
from templates.lowering import build
from templates.reference import Operands, random_operands, reference, relative_error
from templates.template import AnchorTemplate, Layout
from tuner.devices import cpu
from tuning_db.record import Config, Workload


def host_target(mcpu: str | None = None) -> Target:
    """This machine's, or that of a processor of this name."""
    triple, own = tvm.get_global_func("target.llvm_get_system_triple")(), cpu.host_target(2).attrs
    options = {"kind": "llvm", "mcpu": mcpu or str(own["mcpu"]), "mtriple": triple, "num-cores": 2}
    if mcpu is None and "mattr" in own:
        options["mattr"] = list(own["mattr"])
    return Target(options)


CPU = tvm.cpu()
_FENCE = 4096  # values on both sides of an output on the host that a kernel must leave alone


def at_cache_lines(array: np.ndarray) -> np.ndarray:
    """A copy that starts at a cache line, where kernels expect every buffer to start."""
    room = np.empty(array.nbytes + 64, np.uint8)
    start = -room.ctypes.data % 64
    copy = room[start : start + array.nbytes].view(array.dtype)
    copy[:] = array
    return copy


def _none_of(dtype: np.dtype) -> float | int:
    """A value that no result should have: NaN, or a number that is easily told from others."""
    return np.nan if np.issubdtype(dtype, np.floating) else 113


def before_nothing(array: np.ndarray, device: tvm.runtime.Device) -> tvm.runtime.Tensor:
    """The array on a device, with values behind it that are no numbers: who takes one of them in gets none."""
    behind = np.full(_FENCE, _none_of(array.dtype), array.dtype)
    longer = tvm.runtime.tensor(np.concatenate([array.reshape(-1), behind]), device)
    return longer._create_view(array.shape)


@dataclass(frozen=True)
class Compiled:
    template: AnchorTemplate
    workload: Workload
    target: Target
    config: Config
    device: tvm.runtime.Device = CPU

    def build(self) -> tvm.runtime.Module:
        """The function, compiled as candidates and modules are."""
        func = self.template.prim_func(self.workload, self.target, self.config)
        return build(func, self.target)

    def error(self, seed: int = 0) -> float:
        """Largest error relative to the largest reference value."""
        inputs = random_operands(self.workload, seed)
        expected = reference(self.workload, inputs)
        return relative_error(self.run(inputs, expected.shape), expected)

    def run(self, inputs: Operands, shape: tuple[int, ...]) -> np.ndarray:
        return self.call(self.build()["main"], inputs, shape)

    def call(self, function: tvm.runtime.PackedFunc, inputs: Operands, shape: tuple[int, ...]) -> np.ndarray:
        """The result of the compiled function, in plain layout."""
        *arrays, empty = self.arrays(inputs, shape)
        fenced = at_cache_lines(np.full(empty.size + 2 * _FENCE, 7.0, empty.dtype))
        out = self._on_device(empty, fenced)
        function(*(before_nothing(a, self.device) for a in arrays), out)
        self.device.sync()
        outside = np.concatenate([fenced[:_FENCE], fenced[-_FENCE:]])
        assert (outside == 7.0).all(), "the kernel wrote outside its output"
        return self.plain(out.numpy(), shape)

    def arrays(self, inputs: Operands, shape: tuple[int, ...]) -> list[np.ndarray]:
        """Return what the function takes: its operands and, for the result, values that are no numbers."""
        template, layouts = self.template, self.template.layouts(self.workload, self.target)
        extra = [
            self._packed(OPERANDS[step].shape, array, layouts.out)
            for step, array in zip(operands(self.workload.epilogue), inputs.extra, strict=True)
        ]
        weight = template.pack_weight(self.workload, self.target, self.config, inputs.weight)
        # Not zeros: an element that the kernel forgets must show.
        dtype = Types.of(self.workload).out
        empty = np.full(layouts.out.shape(shape), _none_of(np.dtype(dtype)), dtype)
        return [layouts.data.pack(inputs.data), weight, *extra, empty]

    def plain(self, out: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """A result as the function writes it, in plain layout."""
        return self.template.layouts(self.workload, self.target).out.unpack(out, shape[1])

    def _packed(self, shape: str, array: np.ndarray, layout: Layout) -> np.ndarray:
        """An operand of the epilogue as the function reads it."""
        if shape == "channel":
            return self.template.pack_bias(self.workload, self.target, array)
        return layout.pack(array) if shape == "image" else array

    def _on_device(self, empty: np.ndarray, fenced: np.ndarray) -> tvm.runtime.Tensor:
        """The output on the device; on the host it lies in the middle of `fenced`."""
        if self.device != CPU:
            return tvm.runtime.tensor(empty, self.device)
        middle = fenced[_FENCE:-_FENCE]
        middle[:] = empty.reshape(-1)
        return tvm.runtime.from_dlpack(middle.reshape(empty.shape))

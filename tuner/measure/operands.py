"""Operands of a workload as kernels read them: activations in their layouts, packed weights in cold copies.

Start at `Operands`, which caches all of it for one workload; `ColdWeight` explains the copies.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import tvm
from tvm.target import Target

from templates import reference
from templates.epilogue import operands
from templates.template import Layout, Template
from templates.workloads import anchor_of
from tuning_db.record import Config, Workload

_ALIGN = 64  # of every copy, like TVM's own allocations
_FILLER = 0.75  # in the channels that only fill up a block: templates must not rely on zeros there
_PACKED_KEPT = 8


class ColdWeight:
    """A packed weight in as many copies as exceed the last-level cache, handed out in turn.

    In a network a layer's weights were last read one inference ago and come from main memory. Repeating a call on
    one copy would time another kernel: one whose weights sit in the cache, where other algorithms win.
    """

    def __init__(self, packed: np.ndarray, cold_bytes: int) -> None:
        self._shape, self._dtype = packed.shape, packed.dtype
        self._stride = -(-packed.nbytes // _ALIGN) * _ALIGN
        self._copies = max(1, -(-cold_bytes // self._stride))
        # Allocated by TVM, as a module's parameters are: NumPy would ask for huge pages.
        self._memory = tvm.runtime.empty((self._copies * self._stride,), "uint8", tvm.cpu())
        self._bytes = np.from_dlpack(self._memory)
        rows = self._bytes.reshape(self._copies, self._stride)
        rows[:, : packed.nbytes] = np.ascontiguousarray(packed).reshape(-1).view(np.uint8)
        self._used = packed.nbytes
        self._tensors: dict[int, tvm.runtime.Tensor] = {}
        self._at = 0

    @property
    def nbytes(self) -> int:
        return self._copies * self._stride

    def next(self) -> tvm.runtime.Tensor:
        """The copy that was not read for the longest time."""
        at = self._at
        self._at = (at + 1) % self._copies
        if at not in self._tensors:
            part = self._bytes[at * self._stride : at * self._stride + self._used]
            self._tensors[at] = tvm.runtime.from_dlpack(part.view(self._dtype).reshape(self._shape))
        return self._tensors[at]


def _filled(layout: Layout, plain: np.ndarray) -> np.ndarray:
    """`plain` in `layout`, with something other than zero in the channels that only fill up the last block."""
    packed = layout.pack(plain)
    channels = plain.shape[1]
    if layout.block and channels % layout.block:
        packed[:, -1, ..., channels % layout.block :] = _FILLER
    return packed


class Operands:
    """Everything that kernels of one workload read and write, and the float64 reference of what they should write."""

    def __init__(self, workload: Workload, target: Target, seed: int) -> None:
        self.workload = workload
        self._target = target
        self._plain = reference.random_operands(workload, seed)
        self.expected = reference.reference(workload, self._plain)
        self._steps = operands(workload.epilogue)
        self._tensors: dict[tuple[str, Layout], tvm.runtime.Tensor] = {}
        self._biases: dict[str, tvm.runtime.Tensor] = {}
        self._packed: OrderedDict[tuple[str, str], np.ndarray] = OrderedDict()

    @property
    def nbytes(self) -> int:
        """Memory held, roughly: every array and its copies in layouts."""
        arrays = [self.expected, self._plain.data, self._plain.weight, *self._plain.extra, *self._packed.values()]
        tensors = [int(np.prod(t.shape)) * 4 for t in self._tensors.values()]
        return sum(a.nbytes for a in arrays) + sum(tensors)

    def packed_weight(self, template: Template, config: Config) -> np.ndarray:
        key = template.name, template.weight_key(config)
        if key not in self._packed:
            while len(self._packed) >= _PACKED_KEPT:
                self._packed.popitem(last=False)
            self._packed[key] = template.pack_weight(self.workload, self._target, config, self._plain.weight)
        self._packed.move_to_end(key)
        return self._packed[key]

    def _tensor(self, name: str, layout: Layout, plain: np.ndarray) -> tvm.runtime.Tensor:
        key = name, layout
        if key not in self._tensors:
            self._tensors[key] = tvm.runtime.tensor(_filled(layout, plain), tvm.cpu())
        return self._tensors[key]

    def _bias(self, template: Template, place: int) -> tvm.runtime.Tensor:
        key = f"{template.name}/{place}"
        if key not in self._biases:
            packed = template.pack_bias(self.workload, self._target, self._plain.extra[place])
            self._biases[key] = tvm.runtime.tensor(packed, tvm.cpu())
        return self._biases[key]

    def around_weight(self, template: Template) -> tuple[tvm.runtime.Tensor, list[tvm.runtime.Tensor]]:
        """The data, and what follows the weight: the epilogue's operands in order, then the output."""
        layouts = template.layouts(self.workload, self._target)
        behind = [
            self._bias(template, i) if step == "bias" else self._tensor(f"extra{i}", layouts.out, self._plain.extra[i])
            for i, step in enumerate(self._steps)
        ]
        behind.append(self._tensor("out", layouts.out, np.zeros(self.expected.shape, np.float32)))
        return self._tensor("data", layouts.data, self._plain.data), behind

    def error(self, template: Template, out: Any) -> float:
        """The relative error of an output tensor against the float64 reference; infinity if it is not finite."""
        layouts = template.layouts(self.workload, self._target)
        channels = anchor_of(self.workload).out_shape[1]
        return reference.relative_error(layouts.out.unpack(np.from_dlpack(out), channels), self.expected)

"""Export programs of kernels that belong to no model, to time them where a network is going to run. Start at `Bare`.

Kernels and copies take in them what they take in an exported network, as the same runtime runs both.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from tvm import te, tirx
from tvm.ir import IRModule

from templates import default
from templates.lowering import compiled
from tuner.devices import Device
from tuner.export.compiling import Code, link, own_libc, toolchain_for
from tuner.export.device import device_tables
from tuner.export.layout import laid_out
from tuner.export.source import Source
from tuner.export.weights import weights_of
from tuner.graph import COPY, KernelCall, Program, Value, Workspaces, host_of
from tuner.measure.codegen.launches import launches_of
from tuner.measure.codegen.toolchain import machine_of
from tuner.module.manifest import Processor
from tuner.tensors import TensorInfo

_DTYPE = "float32"
END = TensorInfo("end", (16,), _DTYPE)  # what the only input and the only output are
NAME = "bare"  # of all such exports


class Bare:
    """Collects the kernel calls of a program on some `devices`: a GPU and the CPU of its host, or that CPU alone. The
    indices of values and devices name them. A value that nothing wrote is zero on the host, and arbitrary on a GPU."""

    def __init__(self, devices: Sequence[Device]) -> None:
        self.devices = devices
        self.values: list[Value] = []
        self._calls: list[KernelCall] = []
        self._kernels: dict[tuple[int, tirx.PrimFunc], str] = {}
        self._constants: dict[int, np.ndarray] = {}
        self._host = next(i for i, d in enumerate(devices) if d.is_host)

    def value(self, device: int, shape: tuple[int, ...], dtype: str = _DTYPE, memory: int | None = None) -> int:
        """Add a value, which is another shape of the value `memory` if that is given, and return its index."""
        index = len(self.values)
        self.values.append(Value(shape, dtype, index if memory is None else memory, device))
        return index

    def hold(self, value: int, array: np.ndarray) -> None:
        """Let a value be constant."""
        self._constants[value] = array

    def call(self, device: int, kernel: tirx.PrimFunc, operands: Sequence[int]) -> None:
        """Add a call of a scheduled kernel, which writes to the last of its operands."""
        name = self._kernels.setdefault((device, kernel), f"kernel_{len(self._kernels)}")
        self._calls.append(KernelCall(name, tuple(operands)))

    def copy(self, source: int, target: int) -> None:
        """Add a copy of a value to one of another device."""
        self._calls.append(KernelCall(COPY, (source, target)))

    def ones(self, device: int, value: int) -> None:
        """Add a call that writes ones to a value."""
        ones = te.compute(self.values[value].shape, lambda *_: tirx.const(1.0, _DTYPE), name="ones")
        self.call(device, default.schedule(te.create_prim_func([ones]), self.devices[device].target), (value,))

    def export(self, last: int, folder: Path) -> None:
        """Write libbare.so and bare.weights to a folder: a network with a small input, which nothing reads, and a small
        output, which is written when the device `last` has computed everything that it was given.

        Raises BadInput if a tool is missing or fails, and RuntimeError if a kernel for the GPU computes on the host.
        """
        ends = tuple(self.value(self._host, END.shape) for _ in range(2))
        self._finish(last, ends[1])
        host = self.devices[self._host]
        objects, workspaces = _compiled(self._of(self._host), host, folder / f"{NAME}.o")
        program = replace(self._program(*ends), workspaces=workspaces.found)
        layout = laid_out(program, 1)
        weights = weights_of(self._constants.values(), json.dumps(program.as_dict(), sort_keys=True))
        tables = device_tables(program, layout, self._beside())
        source = Source(
            NAME,
            program,
            layout,
            inputs=(END,),
            outputs=(END,),
            threads=host.threads,
            features=(),
            identity=weights.identity,
            tables=tables,
        )
        code = Code(NAME, source.body(), source.header(), objects, None if tables is None else tables.kind)
        link(code, folder, toolchain_for(machine_of(host.target), own_libc()))
        (folder / f"{NAME}.weights").write_bytes(weights.content)

    def _finish(self, device: int, output: int) -> None:
        """Write the output. A device computes its calls in order, and a copy from it waits for them."""
        end = output if device == self._host else self.value(device, END.shape)
        self.ones(device, end)
        if end != output:
            self.copy(end, output)

    def _of(self, device: int) -> dict[str, tirx.PrimFunc]:
        """Return the kernels of a device, by name."""
        return {name: kernel for (d, kernel), name in self._kernels.items() if d == device}

    def _program(self, first: int, last: int) -> Program:
        """Return the program with its input and output, without the workspaces of the host's kernels."""
        beside = [i for i in range(len(self.devices)) if i != self._host]
        launches = {n: launches_of(f, self.devices[i].target) for i in beside for n, f in self._of(i).items()}
        kinds = tuple(device.key.kind for device in self.devices)
        parts = (first,), tuple(self._constants), (last,), tuple(self._calls)
        return Program(tuple(self.values), *parts, devices=kinds, launches=launches)

    def _beside(self) -> Processor | None:
        """Describe the device that is not the host, or return None if there is none."""
        gpu = next((d for d in self.devices if not d.is_host), None)
        return None if gpu is None else Processor(gpu.name, gpu.key.as_dict(), json.loads(str(gpu.target)))


def _compiled(kernels: Mapping[str, tirx.PrimFunc], host: Device, path: Path) -> tuple[Path | None, Workspaces]:
    """Compile kernels for the host as an object file. Return its path, None if there are no kernels, and what memory
    the kernels take for themselves."""
    workspaces = Workspaces()
    if not kernels:
        return None, workspaces
    module = IRModule({name: kernel.with_attr("global_symbol", name) for name, kernel in kernels.items()})
    compiled(module, host_of([host.target]), workspaces).write_to_file(str(path), "o")
    return path, workspaces

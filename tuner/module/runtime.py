"""Load a module and run it: a call takes named inputs and returns named outputs. Start at `load` and `Module`."""

from __future__ import annotations

import ctypes
import fnmatch
import math
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm.runtime.vm import VirtualMachine

from tuner.alignment import is_aligned
from tuner.devices import large_pages, opencl, placed_in_large_pages, usable_cpus
from tuner.devices.parallel import PATTERN, Pool, open_pool
from tuner.devices.parallel.stage import offer_stages, one_by_one
from tuner.devices.stopwatch import Stopwatch
from tuner.errors import BadInput, last_line
from tuner.module.constants import read_constants
from tuner.module.cpu_features import missing_features
from tuner.module.given import check_names, checked_array
from tuner.module.manifest import Manifest, OperatorEntry, Processor, read_manifest
from tuner.module.placement import device_for
from tuner.module.threads import PoolThreads
from tuner.module.timeline import LABELS, Recorder, Timeline
from tuner.tensors import TensorInfo
from tuner.vendors import require

# TVM's tensors copy with these, after questions in Python that take as long as several kernels of a small network.
_COPY_FROM_BYTES = tvm.get_global_func("runtime.TVMTensorCopyFromBytes")
_COPY_TO_BYTES = tvm.get_global_func("runtime.TVMTensorCopyToBytes")
_COPIED = ("bool", "float16", "float32", "float64", "int8", "int32", "int64", "uint8")
_DTYPES = {name: np.dtype(name) for name in _COPIED}
_WORTH_READING = 1 << 16  # bytes from which on an input is not copied: a small copy takes less time than to ask for it

Shapes = dict[str, tuple[tuple[int, ...], str]]
Observer = Callable[[OperatorEntry, tuple[Any, ...]], None]


@dataclass(frozen=True)
class CallTime:
    """The median seconds that one kernel call, or one copy between devices, takes in an inference. `operator` is the
    operator that the call computes, or None for other functions."""

    name: str
    function: str
    operator: OperatorEntry | None
    seconds: float


def load(directory: str | Path, pin: bool = True, check_files: bool = True) -> Module:
    """Load a module that `build` wrote.

    The weights are copied to their devices once, here. TVM_NUM_THREADS sets the number of threads. Without it, the
    module uses as many threads as it was built for, but not more than there are usable cores. `pin` keeps each thread
    of the pool on its own core; the calling thread is held there only during calls. `check_files` says whether files
    are compared with their checksums.

    Raises BadInput if the directory is not a module or is damaged. Raises BadInput, too, if it was built for a CPU with
    instructions that this one lacks, for a device that is not here, or with kernels of a library that is not here.
    """
    directory = Path(directory)
    manifest = read_manifest(directory, check_files)
    missing = missing_features(manifest.cpu_features)
    if missing:
        raise BadInput(
            f"{directory}: was built for a CPU with {', '.join(missing)}, which this machine lacks; build it here"
        )
    try:
        require(manifest.vendors)
    except BadInput as error:
        raise BadInput(f"{directory}: {error}") from None
    devices = [_opened(directory, processor) for processor in manifest.devices]
    if manifest.stages and not manifest.computes_on_host:
        opencl.load()  # this library has the functions that switch streams, for CUDA too
    executable = tvm.get_global_func("ffi.Module.load_from_file.relax.VMExecutable")(str(directory / manifest.network))
    pool = None
    if manifest.kernels is not None:
        kernels = (directory / manifest.kernels).resolve()
        executable.import_module(tvm.runtime.load_module(str(kernels)))
        pool = _pool(directory, manifest.files, kernels) if manifest.computes_on_host else None
    if pool is not None:
        for kind in manifest.driven_kinds:
            kind.share_cores(*pool.waiting)
    if manifest.stages and manifest.computes_on_host:
        offer_stages(pool)
    constants = list(_placed_constants(directory, manifest, devices))
    return Module(
        manifest,
        lambda: VirtualMachine(executable, list(devices)),
        devices,
        constants=constants,
        pin=pin,
        pool=pool,
    )


def _pool(directory: Path, files: Iterable[str], kernels: Path) -> Pool | None:
    """Return the module's own thread pool, after letting it serve the module's kernels. Return None if the module has
    no pool that runs here; TVM's pool is used then. Libraries that the manifest does not name are left alone."""
    pools = (open_pool((directory / name).resolve()) for name in sorted(fnmatch.filter(files, PATTERN)))
    pool = next(filter(None, pools), None)
    if pool is not None:
        pool.serve(kernels)
    return pool


def _opened(directory: Path, processor: Processor) -> tvm.runtime.Device:
    if processor.is_host:
        return tvm.cpu()
    try:
        return device_for(processor).tvm_device()
    except BadInput as error:
        raise BadInput(f"{directory}: {error}") from None


def _placed_constants(
    directory: Path, manifest: Manifest, devices: Sequence[tvm.runtime.Device]
) -> Iterable[tvm.runtime.Tensor]:
    """Yield the constants that are parameters, each on its device."""
    for processor, device, name in zip(manifest.devices, devices, manifest.constants, strict=True):
        if name is None:
            continue
        read = read_constants(directory / name)
        if processor.is_host:
            yield from placed_in_large_pages([np.from_dlpack(tensor) for tensor in read])
        else:
            yield from (tensor.copyto(device) for tensor in read)


def _threads(manifest: Manifest) -> int:
    text = os.environ.get("TVM_NUM_THREADS")
    if text is None:
        return min(manifest.threads, len(usable_cpus()))
    if not text.isdecimal() or int(text) < 1:
        raise BadInput(f"TVM_NUM_THREADS={text!r} is not a number of threads: unset it or give one")
    return int(text)


class Module:
    """A network that can be called. `inputs` and `outputs` map names to (shape, dtype), in the model's order. An output
    may have fewer entries than its shape says if their number depends on the values (as in ONNX's detections).

    A module has one set of input buffers on its devices, so calls from several threads take turns. `clone` returns one
    more module, for a thread that should not wait.
    """

    def __init__(
        self,
        manifest: Manifest,
        make_machine: Callable[[], Any],
        devices: Sequence[tvm.runtime.Device],
        *,
        constants: Sequence[tvm.runtime.Tensor],
        pin: bool,
        pool: Pool | None,
    ) -> None:
        self.manifest = manifest
        self.inputs = _shapes(manifest.inputs)
        self.outputs = _shapes(manifest.outputs)
        self._make_machine, self._devices, self._constants, self._host_pool = make_machine, devices, constants, pool
        self._machine = machine = make_machine()
        self._main, self._every_kernel = machine[manifest.entry], machine["main"]
        places = zip(manifest.inputs, manifest.input_devices, strict=True)
        self._buffers = [_Buffer(info, devices[place]) for info, place in places]
        self._arguments = [*(buffer.tensor for buffer in self._buffers), *constants]
        self._has_drivers = not all(processor.is_host for processor in manifest.devices)
        self._pool = PoolThreads(_threads(manifest), usable_cpus(), pin, pool) if manifest.computes_on_host else None
        self._started = threading.local()
        self._turn = threading.RLock()

    def __call__(self, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Run the network on NumPy arrays (or DLPack tensors in CPU memory); the results are new arrays. Inputs of 64
        KiB or more that `tuner.alignment.aligned` made are read where they are, others are copied first.

        Raises BadInput naming an input that is missing, unknown, or has another shape or dtype.
        """
        with self._turn:
            results = [_copied(tensor) for tensor in self._run(self._given(inputs, _WORTH_READING))]
        return {info.name: info.entries(i, results) for i, info in enumerate(self.manifest.outputs)}

    def in_place(self, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Run the network as a call does, but without copies where possible. Inputs in CPU memory that begin at a
        multiple of 64 bytes are read where they are. Results of the CPU are the memory that the kernels wrote to, which
        is new at every call. An output may share an input's memory if the network passes it through.

        Raises BadInput as a call does.
        """
        with self._turn:
            held = self._given(inputs, 1)
            results = [np.from_dlpack(r) if r.device.type == "cpu" else _fetched(r) for r in self._run(held)]
        return {info.name: info.entries(i, results) for i, info in enumerate(self.manifest.outputs)}

    def clone(self) -> Module:
        """Return one more module with the same weights in memory and its own buffers, to be called from another thread
        at the same time. Its threads are not kept on cores. If two modules compute on the host at once, one has the
        thread pool and the other computes on the thread that calls it. If other devices compute, the clone's calls take
        turns with this module's."""
        clone = Module(
            self.manifest, self._make_machine, self._devices, constants=self._constants, pin=False, pool=self._host_pool
        )
        if self._has_drivers:
            clone._turn = self._turn
        return clone

    @property
    def threads(self) -> int:
        """How many of the host's threads compute."""
        return 1 if self._pool is None else self._pool.threads

    def on_its_cores(self) -> AbstractContextManager[None]:
        """Return a context manager that keeps the calling thread on the core where it computes during calls."""
        return nullcontext() if self._pool is None else self._pool

    def profile(self, inputs: Mapping[str, Any], runs: int = 20) -> list[CallTime]:
        """Return the median seconds of every kernel call over `runs` inferences, in execution order.

        The time of another device's kernel is measured between two events of the device's queue. The virtual machine's
        own calls are left out. On the host, kernels of one stage run one after the other here, each on all threads.
        """
        with self._turn:
            self._given(inputs)
            self._run()
            stopwatch = Stopwatch()
            for _ in range(runs):
                stopwatch.restart()
                self._instrumented(stopwatch.instrument)
            behind = Attribution(self.manifest.operators)
            operators = [behind.next(name) for name in stopwatch.calls]
            return [
                CallTime(operator.node if operator else LABELS.get(name, name), name, operator, seconds)
                for name, operator, seconds in zip(stopwatch.calls, operators, stopwatch.medians(), strict=True)
            ]

    def timeline(self, inputs: Mapping[str, Any]) -> Timeline:
        """Record one inference, after one that warms up: every call of the host, and every kernel of OpenCL devices. On
        the host, kernels of one stage run one after the other here, each on all threads."""
        with self._turn:
            self._given(inputs)
            self._run()
            recorder = Recorder()
            with ExitStack() as traced:
                traces = [traced.enter_context(kind.trace()) for kind in self.manifest.driven_kinds]
                recorder.start = time.perf_counter()
                for result in self._instrumented(recorder.instrument):
                    _copied(result)  # waits for what is queued
                seconds = time.perf_counter() - recorder.start
            behind = Attribution(self.manifest.operators)
            operators = [behind.next(name) for name, *_ in recorder.calls]
            nodes = [operator.node if operator else None for operator in operators]
            launches = list(chain.from_iterable(traces))
            return Timeline((*recorder.host_spans(nodes), *recorder.device_spans(launches)), seconds)

    def observe(self, inputs: Mapping[str, Any], observer: Observer) -> None:
        """Run the network once, after a warm-up, and show `observer` the call of every operator as it ends. `observer`
        gets the operator and the call's tensors."""
        with self._turn:
            self._given(inputs)
            self._run()
            behind = Attribution(self.manifest.operators)

            def instrument(_function: Any, name: str, before: bool, _result: Any, *arguments: Any) -> int:
                operator = None if before else behind.next(name)
                if operator is not None:
                    observer(operator, arguments)
                return 0

            self._instrumented(instrument)

    def _instrumented(self, instrument: Callable[..., int]) -> Any:
        self._machine.set_instrument(one_by_one(instrument))
        try:
            return self._run(main=self._every_kernel)
        finally:
            self._machine.set_instrument(None)  # an idle one costs a third of a small network's time

    def _run(self, arguments: Sequence[tvm.runtime.Tensor] | None = None, main: Any = None) -> Any:
        try:
            return self._ran(arguments, main)
        except (ValueError, TypeError) as error:  # TVM raises them for arguments that it does not accept
            raise BadInput(f"the module does not fit its manifest ({last_line(error)}): build it again") from error

    def _ran(self, arguments: Sequence[tvm.runtime.Tensor] | None, main: Any) -> Any:
        arguments, main = arguments or self._arguments, main or self._main
        if self._pool is None:
            return self._run_stages(main, arguments) if self.manifest.stages else main(*arguments)
        if not getattr(self._started, "yes", False):
            self._pool.start()
            if self._has_drivers:
                main(*arguments)  # a driver's threads inherit the cores of their starter: here all
            self._started.yes = True
        with self._pool:
            return main(*arguments)

    @staticmethod
    def _run_stages(main: Any, arguments: Sequence[tvm.runtime.Tensor]) -> Any:
        try:
            return main(*arguments)
        except BaseException:
            opencl.leave_stage()
            raise

    def _check_names(self, inputs: Mapping[str, Any]) -> None:
        if inputs.keys() != self.inputs.keys():
            check_names(self.manifest.inputs, inputs)

    def _given(self, inputs: Mapping[str, Any], least: float = math.inf) -> list[Any]:
        """Return the arguments of a call. Inputs that are aligned and have at least `least` bytes are read where they
        are; others are copied to the module's own memory. Raises BadInput if they do not fit."""
        self._check_names(inputs)
        held = list(self._arguments)
        for i, buffer in enumerate(self._buffers):
            array = buffer.checked(inputs[buffer.info.name])
            # NumPy gives no memory away that must not be written.
            if buffer.view is not None and array.nbytes >= least and array.flags.writeable and is_aligned(array):
                held[i] = tvm.runtime.from_dlpack(array)
            else:
                buffer.put(array)
        return held


class Attribution:
    """An assignment that tells which operator a call computes. The calls of one function come in the order of its
    operators."""

    def __init__(self, operators: tuple[OperatorEntry, ...]) -> None:
        self._waiting: dict[str, list[OperatorEntry]] = defaultdict(list)
        for operator in reversed(operators):
            if operator.function is not None:
                self._waiting[operator.function].append(operator)

    def next(self, function: str) -> OperatorEntry | None:
        waiting = self._waiting.get(function)
        return waiting.pop() if waiting else None


def _shapes(tensors: tuple[TensorInfo, ...]) -> Shapes:
    return {t.name: (t.shape, t.dtype) for t in tensors}


class _Buffer:
    """The memory that holds one input. `tensor` is TVM's tensor of this memory. On the host, `view` is the same memory
    as a NumPy array.

    A call usually follows an inference that has emptied the caches, and Python is slow then. Each question that is not
    asked here saves as much time as a small kernel takes.
    """

    def __init__(self, info: TensorInfo, device: tvm.runtime.Device) -> None:
        self.info = info
        self._dtype = np.dtype(info.dtype)
        self.view: np.ndarray | None = None
        if device.type == "cpu":
            self.view = large_pages(math.prod(info.shape) * self._dtype.itemsize).view(self._dtype).reshape(info.shape)
            self.tensor = tvm.runtime.from_dlpack(self.view)
        else:
            self.tensor = tvm.runtime.empty(info.shape, info.dtype, device)

    def put(self, array: np.ndarray) -> None:
        """Copy an array of this input's shape and dtype into the buffer."""
        if self.view is not None:
            np.copyto(self.view, array)
        else:
            array = np.ascontiguousarray(array)
            _COPY_FROM_BYTES(self.tensor, ctypes.c_void_p(array.ctypes.data), array.nbytes)

    def checked(self, value: Any) -> np.ndarray:
        """Return the value as an array of this input's shape and dtype; see `checked_array`."""
        return checked_array(self.info, self._dtype, value)


def _copied(tensor: tvm.runtime.Tensor) -> np.ndarray:
    return np.from_dlpack(tensor).copy() if tensor.device.type == "cpu" else _fetched(tensor)


def _fetched(tensor: tvm.runtime.Tensor) -> np.ndarray:
    """Copy another device's tensor to an array, as `tensor.numpy()` does in more than twice the time."""
    dtype = _DTYPES.get(str(tensor.dtype))
    if dtype is None:
        return tensor.numpy()
    array = np.empty(tuple(tensor.shape), dtype)
    _COPY_TO_BYTES(tensor, ctypes.c_void_p(array.ctypes.data), array.nbytes)
    return array

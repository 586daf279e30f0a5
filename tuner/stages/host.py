"""Provides the host's threads for timing: kernels are in libraries that our thread pool serves, as in a built module.
Start at `Host`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any

import numpy as np
import tvm
from tvm import relax, te
from tvm.target import Target

from tuner.devices import usable_cpus
from tuner.devices.parallel import open_pool, pool_library
from tuner.devices.parallel.stage import STAGE, offer_stages, stage_arguments
from tuner.errors import BadInput
from tuner.measure.codegen.toolchain import check_toolchain, link_shared
from tuner.measure.scratch import Scratch

_LOAD = "ffi.Module.load_from_file.relax.VMExecutable"


class Host:
    """Provides `threads` of the host's threads. Raises BadInput where there is no C compiler for the pool, or no
    linker."""

    def __init__(self, threads: int) -> None:
        library = pool_library()
        pool = None if library is None else open_pool(library)
        if pool is None:
            raise BadInput("stages on the CPU need its thread pool, which no C compiler was found for: install gcc")
        self._pool, self._linker = pool, check_toolchain()
        self.threads = threads
        pool.threads(threads)
        offer_stages(pool)

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Keep the calling thread on one core, and share its loops among all threads, within the context."""
        self._pool.enter(self.threads, usable_cpus()[0])
        try:
            yield
        finally:
            self._pool.leave()

    def share(self, threads: int) -> None:
        """Share the calling thread's loops among `threads` threads from now on."""
        self._pool.threads(threads)

    def loaded(self, kernels: Any) -> Any:
        """Return compiled kernels (a TVM module of LLVM's) as a library that the pool serves. Raises RuntimeError if
        the linker fails."""
        with Scratch() as folder:
            library = folder / "kernels.so"
            link_shared({library.with_suffix(".o"): kernels}, library, self._linker)
            found = tvm.runtime.load_module(str(library))
            self._pool.serve(library)
            return found

    @cached_property
    def small_stage(self) -> Callable[[], object]:
        """Return a function that launches a stage of two groups that copy a number. Raises RuntimeError as `loaded`
        does."""
        data = te.placeholder((1,), "float32", name="data")
        copied = te.compute((1,), lambda i: data[i], name="copied")
        function = te.create_prim_func([data, copied]).with_attr("global_symbol", "copy_number")
        kernel = self.loaded(tvm.tirx.build(tvm.IRModule({"copy_number": function}), Target("llvm")))["copy_number"]
        groups = [[("", kernel, [tvm.runtime.tensor(np.zeros(1, "float32")) for _ in range(2)])] for _ in range(2)]
        return partial(tvm.get_global_func(STAGE), *stage_arguments((1, group) for group in groups))

    def machine(self, executable: Any) -> Any:
        """Return a virtual machine of a compiled network whose kernels the pool serves."""
        with Scratch() as folder:
            network = folder / "network.ro"
            executable.mod.write_to_file(str(network), "ro")
            program = tvm.get_global_func(_LOAD)(str(network))
        for child in executable.mod.imports:
            if child.kind == "llvm":
                program.import_module(self.loaded(child))
        return relax.VirtualMachine(program, tvm.cpu())

"""Builds a network on two GPUs that are not here, a kernel of one by the toolchain that measures, and loads it, over a
driver without a GPU that calls itself an sm_87. The last line says what each was compiled for, as JSON."""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path

import pytest
import tvm

from tests.tuner.stages.networks import branches
from tuner.devices import open_device
from tuner.devices.cuda import Nvrtc
from tuner.devices.profiles import profile_named
from tuner.errors import BadInput
from tuner.graph import DevicePlan, compile_module, host_of, lower_placed
from tuner.measure.codegen.toolchain import build_shared, check_toolchain, preflight_func

_FLAGS = 48  # of an ELF file: for Nvidia's processors, the architecture is in the lowest byte


def main() -> int:
    folder, made = Path(sys.argv[1]), []
    compile_ = Nvrtc.compile

    def recorded(nvrtc: Nvrtc, source: str) -> tuple[bytes, str]:
        binary, log = compile_(nvrtc, source)
        made.append(struct.unpack_from("<I", binary, _FLAGS)[0] & 0xFF)
        return binary, log

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Nvrtc, "compile", recorded)
        graph = branches(folder)
        targets = [profile_named(name).target() for name in ("h100", "jetson-xavier")]
        placed = lower_placed(graph, [DevicePlan(t, {}) for t in targets], [i % 2 for i in range(len(graph.steps))])
        compile_module(placed.module, host_of(targets), 2)
        found = {"network": made[:]}
        made.clear()
        library = folder / "kernel.so"
        build_shared(preflight_func(1, targets[0]), targets[0], library, check_toolchain())
        found["kernel"] = made[:]
        made.clear()
        patch.setenv("TVM_COMPILE_FORCE_FALLBACK", "1")  # as where there is no driver
        build_shared(preflight_func(1, targets[0]), targets[0], library, check_toolchain())
        patch.delenv("TVM_COMPILE_FORCE_FALLBACK")
        assert made == []
        tvm.runtime.load_module(str(library))
        found["loaded"] = made
        patch.setattr("tuner.devices.cuda.nvrtc._installations", lambda: iter(()))
        nano = profile_named("jetson-nano").target()
        with pytest.raises(BadInput, match="NVRTC is not installed") as caught:
            build_shared(preflight_func(1, nano), nano, library, check_toolchain())
    print(json.dumps({**found, "own": open_device("cuda:0").target.attrs["arch"], "missing": str(caught.value)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())

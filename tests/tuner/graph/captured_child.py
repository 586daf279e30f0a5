"""Plans and builds a network on CUDA over a driver without a GPU, and runs it twice: as one graph, or as it was
planned where the driver has none. `test_capture` starts it with that driver's libraries in front of Nvidia's. The last
line says what came of it, as JSON."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import tvm_ffi

from tests.tuner.stages.networks import branches
from tests.tuner.stages.test_rewrite import by_branch
from tuner.devices import open_device
from tuner.graph import Placed
from tuner.graph.layout.choice import Planned
from tuner.module import BuildOptions, build_placed, load
from tuner.stages import StageOptions
from tuner.stages.calls import Calls
from tuner.stages.plan import StagePlan, plan_stages
from tuner.stages.rewrite import staged
from tuning_db.store import open_db


def main() -> int:
    tvm_ffi.register_global_func("tvm_callback_cuda_compile", lambda source, *_: str(source).encode(), override=True)
    folder, log = Path(sys.argv[1]), Path(os.environ["EDGETUNE_CUDA_LOG"])
    device, graph = open_device("cuda:0"), branches(folder)
    plans: list[StagePlan] = []
    with open_db(folder / "trials.db") as store:

        def arrange(placed: Placed) -> Placed:
            """What is fastest is chance here: kernels compute nothing."""
            plans.extend(plan_stages(placed, device, store, StageOptions(60.0)) for _ in range(2))
            if "EDGETUNE_CUDA_NO_GRAPHS" in os.environ:
                return plans[-1].placed
            calls = Calls.of(placed)
            return replace(staged(placed, calls, by_branch(calls)), captured=True)

        planned = Planned([0] * len(graph.steps))
        manifest = build_placed(
            graph, [device], planned, directory=folder / "module", store=store, options=BuildOptions(arrange=arrange)
        )
    module = load(folder / "module")
    given = {info.name: np.ones(info.shape, info.dtype) for info in manifest.inputs}
    starts = []
    for _ in range(2):
        starts.append(len(log.read_text().splitlines()))
        module(given)
    found = {
        "starts": [*starts, len(log.read_text().splitlines())],
        "left out": [line for plan in plans for line in plan.cuts],
        "measured": [plan.measured for plan in plans],
        "profiled": [call.function for call in module.profile(given, runs=2)],
        "kernels": [operator.function for operator in manifest.operators],
    }
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())

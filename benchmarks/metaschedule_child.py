"""This program tunes one convolution with TVM's MetaSchedule for the convolution benchmarks, which start it.

It writes the best kernel to ms.so, and to curve.json for each batch the seconds since its start and those of the best
kernel by then. It prints trials per second. MetaSchedule restarts its building processes for every 16 candidates, and
each of them spends 38 s (56 s where torch is installed) on an import. The reason is that TVM asks `inspect` for the
whole stack at every kernel that it defines, and `inspect` searches all modules for every frame.
"helped" in the specification answers that search at once, so the same kernels are found sooner. Without it the speed is
that of TVM as it is installed.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import tvm
from tvm import te, tirx, topi
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms

from templates.workloads import Conv2d
from tuner.devices import open_device


def prim_func(conv: Conv2d) -> tirx.PrimFunc:
    """Return the function of convolution, bias and ReLU in NCHW, as a network without layout changes has it."""
    data = te.placeholder(conv.data_shape, name="data")
    weight = te.placeholder(conv.weight_shape, name="weight")
    bias = te.placeholder((conv.out_channels,), name="bias")
    pad, strides, dilation = list(conv.padding), list(conv.strides), list(conv.dilation)
    if conv.is_depthwise:
        sums = topi.nn.depthwise_conv2d_nchw(data, weight, strides, pad, dilation)
    else:
        sums = topi.nn.conv2d(data, weight, strides, pad, dilation, "NCHW", "OIHW")
    out = te.compute(
        conv.out_shape,
        lambda n, k, y, x: tirx.max(sums[n, k, y, x] + bias[k], tirx.const(0.0, "float32")),
        name="out",
    )
    return te.create_prim_func([data, weight, bias, out])


def _import_sooner() -> None:
    import inspect
    import sys
    import types

    search = inspect.getmodule

    def module_of(thing: Any, filename: str | None = None) -> Any:
        if isinstance(thing, types.FrameType):
            return sys.modules.get(thing.f_globals.get("__name__", ""))
        return search(thing, filename)

    inspect.getmodule = module_of


@derived_object
class Curve(ms.measure_callback.PyMeasureCallback):  # type: ignore[misc]
    """Keep the best kernel's seconds after each batch, with the seconds since the start."""

    def __init__(self, begun: float) -> None:
        super().__init__()
        self.begun, self.best = begun, float("inf")
        self.points: list[tuple[float, float]] = []

    def apply(
        self, task_scheduler: Any, task_id: int, measure_candidates: Any, builder_results: Any, runner_results: Any
    ) -> None:
        """Look at a batch's results."""
        for result in runner_results:
            if result.run_secs:
                self.best = min(self.best, median(map(float, result.run_secs)))
        self.points.append((time.perf_counter() - self.begun, self.best))


def main() -> None:
    spec: dict[str, Any] = json.loads(sys.argv[1])
    conv = Conv2d(**spec["conv"])
    folder, trials = Path(spec["folder"]), spec["trials"]
    device, initializer = spec["device"], _import_sooner if spec["helped"] else None
    if initializer is not None:
        initializer()
    func, target = prim_func(conv), open_device(device, 1 if device == "cpu" else None).target
    evaluator = ms.runner.EvaluatorConfig(number=3, repeat=1, min_repeat_ms=50)
    start = time.perf_counter()
    curve = Curve(start)
    database = ms.tune_tir(
        mod=func,
        target=target,
        work_dir=str(folder / "ms"),
        max_trials_global=trials,
        num_trials_per_iter=min(trials, 16),
        runner=ms.runner.LocalRunner(evaluator_config=evaluator),
        # With the default of 30 s, the builds of a network's first layer time out.
        builder=ms.builder.LocalBuilder(max_workers=2, timeout_sec=120.0, initializer=initializer),
        seed=spec["seed"] + 1,
        measure_callbacks=[*ms.measure_callback.MeasureCallback.create("default"), curve],
    )
    seconds = time.perf_counter() - start
    schedule = ms.tir_integration.compile_tir(database, func, target)
    if schedule is None:
        raise SystemExit("no candidate was measured")
    tvm.tirx.build(schedule.mod, target=target).export_library(str(folder / "ms.so"))
    (folder / "curve.json").write_text(json.dumps(curve.points))
    print(json.dumps(trials / seconds))


if __name__ == "__main__":
    main()

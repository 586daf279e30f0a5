"""This benchmark compares our convolutions with CLBlast, MetaSchedule and TVM's default schedule on OpenCL devices.

    python benchmarks/conv2d_opencl.py [--quick] [--json] [--device opencl:N] [--layers N ...] [--trials N] [--keep DIR]

The layers are ResNet-18's, with bias and ReLU (CLBlast has neither). Every layer is tuned by us and by MetaSchedule, on
the same device through our runtime and with the same number of trials. Then the best kernels take turns, each in its
own process, with cold weights and by the device's clock. "direct" is our best kernel that does not use Winograd's
algorithm. It is compared with the peak, which is a kernel of multiply-adds in registers that takes turns with it. As
that kernel reads nothing, "warm" is the direct kernel with its weights in the caches: the difference between direct and
warm is due to the memory. Ratios are the peer's seconds over ours: above 1 ours is faster. Nothing is installed: a peer
that is missing is skipped and named. With --keep DIR the same command goes on where it was stopped; --tune-only leaves
the timing out.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from clblast import available as has_clblast
from conv2d_cpu import (
    EPILOGUE,
    QUICK,
    SETS,
    files_of,
    geomean,
    layer_name,
    plain_operands,
    time_all,
    tune_layer,
    tune_metaschedule,
)
from metaschedule_child import prim_func

from templates import default
from templates.template import template_named
from templates.workloads import Conv2d
from tuner.devices import Device, list_devices, open_device, opencl, usable_cpus
from tuner.devices.peak import Multiplier, fma_kernel, fma_peak
from tuner.measure import LocalRunner, MeasureOptions, check_toolchain
from tuner.measure.codegen.toolchain import build_shared
from tuner.session import Budget, TuneOptions
from tuning_db.record import Trial
from tuning_db.store import open_db

CHILD = Path(__file__).with_name("conv2d_opencl_child.py")
PEAK_SECONDS = 1.5e-3  # of a call of the peak kernel, about as long as the kernels that are compared with it


@dataclass(frozen=True)
class Row:
    """A row of the result, which holds one layer on one device.

    Seconds are medians of the alternated blocks. A peer that was skipped has none.
    """

    device: str
    driver: str
    name: str
    template: str
    seconds: Mapping[str, float]
    gflops: float
    direct_gflops: float | None
    peak_gflops: float  # of the kernel of multiply-adds, in this row's rounds
    share_of_peak: float | None  # of the direct kernel
    warm_share: float | None  # of the direct kernel with weights in the caches
    is_3x3_stride_1: bool
    error: float

    def ratio(self, peer: str) -> float | None:
        return self.seconds[peer] / self.seconds["ours"] if peer in self.seconds else None


def held_to_peak(conv: Conv2d) -> bool:
    return conv.kernel == (3, 3) and conv.strides == (1, 1)


def _tune(conv: Conv2d, device: Device, trials: int, seed: int, folder: Path) -> tuple[Trial, Trial | None]:
    """Tune a layer and return the best trial, and the best of a template that is exact.

    Direct kernels that are compared with the peak get as many trials again in a search of their own. In the search
    among all templates they get few trials where Winograd's kernels are faster.
    """
    workload = conv.workload(EPILOGUE)
    with open_db(f"{folder}/b.db") as store:
        with LocalRunner(device, MeasureOptions(seed=seed)) as runner:
            options = TuneOptions(budget=Budget(trials=trials), seed=seed)
            tune_layer(conv, workload, device, store, runner, options)
            if held_to_peak(conv):
                tune_layer(conv, workload, device, store, runner, replace(options, exact=True))
        best = store.best(workload, device.key)
        exact = store.best(workload, device.key, usable=lambda t: template_named(t.config.template).exact)
    assert best is not None
    return best, exact


def _default(conv: Conv2d, device: Device, folder: Path) -> str:
    library = folder / "default.so"
    build_shared(default.schedule(prim_func(conv), device.target), device.target, library, check_toolchain())
    return str(library)


def _peak(multiplier: Multiplier, device: Device, folder: Path) -> dict[str, str]:
    library, operands = folder / "peak.so", folder / "peak.npz"
    build_shared(multiplier.prim_func(), device.target, library, check_toolchain())
    start = np.random.default_rng(0).random(multiplier.shape, dtype=np.float32)
    np.savez(operands, allow_pickle=False, start=start, out=np.zeros_like(start))
    return {"kind": "peak", "library": str(library), "operands": str(operands)}


def measure(conv: Conv2d, device: Device, peak: Multiplier, options: argparse.Namespace, folder: Path) -> Row | None:
    """Tune what `folder` does not have yet, then time all contenders. Return None with --tune-only."""
    folder.mkdir(parents=True, exist_ok=True)
    best, exact = _tune(conv, device, options.trials, options.seed, folder)
    with_ms = not options.no_metaschedule
    if with_ms:
        speed = tune_metaschedule(conv, options.trials, folder, options.seed, device.name, helped=True)
        with_ms = speed is not None
    if options.tune_only:
        return None
    info = opencl.device_info(int(device.name.partition(":")[2]))
    common = {
        "cpus": usable_cpus(),
        "cold_bytes": 2 * device.cache_bytes,
        "conv": asdict(conv),
        "device": device.name,
        "driver": info.library,
    }
    plain = {**common, "operands": plain_operands(conv, folder)}
    specs = {"ours": {**common, **files_of(conv, device, best.config, folder, "ours")}}
    if exact is not None and exact.config != best.config:
        specs["direct"] = {**common, **files_of(conv, device, exact.config, folder, "direct")}
    if exact is not None:
        specs["warm"] = {**specs.get("direct", specs["ours"]), "cold_bytes": 0}
    specs["peak"] = {**common, **_peak(peak, device, folder)}
    specs["default"] = {**plain, "kind": "library", "library": _default(conv, device, folder)}
    if with_ms:
        specs["metaschedule"] = {**plain, "kind": "library", "library": str(folder / "ms.so")}
    if has_clblast() and "Portable" in info.platform:
        specs["clblast"] = {**plain, "kind": "clblast"}
    seconds = time_all(specs, folder, options.rounds, CHILD)
    direct, warm = seconds.get("direct", seconds["ours"] if exact is not None else None), seconds.pop("warm", None)
    rate, peak_rate = None if direct is None else conv.flop / direct, peak.flop / seconds.pop("peak")
    return Row(
        device.name,
        info.platform,
        layer_name(conv),
        best.config.template,
        seconds,
        conv.flop / seconds["ours"] / 1e9,
        None if rate is None else rate / 1e9,
        peak_rate / 1e9,
        None if rate is None else rate / peak_rate,
        None if warm is None else conv.flop / warm / peak_rate,
        held_to_peak(conv),
        float(best.error or 0.0),
    )


def _print_row(row: Row) -> None:
    ratios = "  ".join(f"{peer} {row.ratio(peer):6.2f}x" for peer in row.seconds if peer not in ("ours", "direct"))
    share = ""
    if row.share_of_peak is not None:
        shares = f"{row.share_of_peak:.0%} (warm {row.warm_share:.0%})"
        share = f"  direct {row.direct_gflops:6.1f} GF/s, {shares} of {row.peak_gflops:.0f}"
    print(
        f"{row.device} {row.name:32s} {row.template:24s} {row.seconds['ours'] * 1e6:9.1f} us {row.gflops:7.1f} GF/s"
        f"{share}  {ratios}",
        file=sys.stderr,
        flush=True,
    )


def _summary(rows: list[Row]) -> dict[str, Any]:
    summary: dict[str, Any] = {}
    for device in dict.fromkeys(row.device for row in rows):
        mine = [row for row in rows if row.device == device]
        held = [row for row in mine if row.is_3x3_stride_1]
        for peer in ("clblast", "metaschedule", "default"):
            summary[f"vs_{peer}_geomean_{device}"] = geomean([row.ratio(peer) for row in mine])
        summary[f"share_of_peak_3x3_{device}"] = geomean([row.share_of_peak for row in held])
        summary[f"warm_share_of_peak_3x3_{device}"] = geomean([row.warm_share for row in held])
    return summary


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="three layers, 16 trials")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output at the end")
    parser.add_argument("--device", action="append", metavar="opencl:N", help="default: every OpenCL device here")
    parser.add_argument("--layers", type=int, nargs="+", metavar="N", help="some of them, from 0 (default: all)")
    parser.add_argument("--trials", type=int, help="per layer and tuner (default: 64)")
    parser.add_argument("--rounds", type=int, default=9, help="alternated blocks per contender")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-metaschedule", action="store_true", help="leave MetaSchedule out (it takes most time)")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep what was tuned there, and go on from it")
    parser.add_argument("--tune-only", action="store_true", help="with --keep: tune, time nothing")
    options = parser.parse_args()
    options.trials = options.trials or (16 if options.quick else 64)
    every = range(len(SETS["resnet18"]))
    layers = options.layers or (QUICK["resnet18"] if options.quick else every)
    if not set(layers) <= set(every):
        parser.error(f"--layers: from 0 to {every[-1]}")
    devices = [open_device(name) for name in options.device] if options.device else list_devices()
    devices = [device for device in devices if device.key.kind == "opencl"]
    if not devices:
        raise SystemExit("no OpenCL device is here: `tune doctor` says how to get one")
    if not has_clblast():
        print("CLBlast is skipped: apt-get install libclblast1", file=sys.stderr)
    rows: list[Row] = []
    peaks: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as temporary:
        for device in devices:
            peaks[device.name] = fma_peak(device)
            peak = fma_kernel(device, PEAK_SECONDS)
            print(f"{device.name} {device.key.model}: {peaks[device.name] / 1e9:.0f} GF/s by FMA", file=sys.stderr)
            for i, conv in enumerate(SETS["resnet18"]):
                if i not in layers:
                    continue
                folder = Path(options.keep or temporary) / f"{device.name}-{options.trials}" / layer_name(conv)
                row = measure(conv, device, peak, options, Path(str(folder.absolute()).replace(" ", "_")))
                if row is not None:
                    rows.append(row)
                    _print_row(row)
    summary = _summary(rows)
    for key, value in summary.items():
        print(f"{key:40s} {'-' if value is None else f'{value:.2f}'}", file=sys.stderr)
    if options.json:
        machine = {
            "devices": {d.name: d.key.as_dict() for d in devices},
            "peak_flops": peaks,
            "platform": platform.platform(),
            "trials": options.trials,
        }
        print(json.dumps({"summary": summary, "rows": [asdict(row) for row in rows], "machine": machine}))


if __name__ == "__main__":
    main()

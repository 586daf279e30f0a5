"""This benchmark times a network that was exported for CUDA: graphs that are replayed against plain launches.

    python benchmarks/cuda_export.py MODEL.onnx [--device cuda:0] [--db FILE] [--rounds 7] [--runs 200] [--json FILE]
    python benchmarks/cuda_export.py EXPORT [--rounds 7] [--runs 200] [--driver FILE] [--json FILE]

A model is exported first, for a device that is here. An export's folder needs neither edgetune nor TVM, so that this
file can be copied to a Jetson together with it. It needs a CUDA GPU, and ends with status 2 where there is none.

Both kinds of contexts are made once, and alternate in rounds of runs. A run copies the inputs to the GPU and the
outputs back. `graphs` and `plain` are medians of all runs in milliseconds, `graphs_low` and `graphs_high` the least and
the largest median of a round. The summary's graphs_vs_plain_<name> is the ratio of the medians (below 1 is faster), and
`equal` says whether both compute the same bits.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any, NoReturn

import numpy as np


def stop(line: str) -> NoReturn:
    print(f"cuda_export.py: {line}", file=sys.stderr)
    raise SystemExit(2)


def exported(model: Path, folder: Path, device: str, db: str | None) -> Path:
    """Export a model for a device that is here, and return the export's folder."""
    made = folder / "export"
    command = [sys.executable, "-m", "tuner", "export", str(model), "-o", str(made), "--device", device]
    done = subprocess.run([*command, *(["--db", db] if db else [])], capture_output=True, text=True)
    if done.returncode:
        said = done.stderr.strip().splitlines()
        stop(f"nothing is measured without a CUDA GPU: {said[-1] if said else 'the export failed'}")
    return made


def wrapper_of(folder: Path) -> tuple[str, Any]:
    """Return the name of the export in a folder, and its wrapper for Python."""
    described = [path for path in folder.glob("*.json") if "edgetune-export" in path.read_text()]
    if len(described) != 1:
        stop(f"{folder}: is not the folder of one export")
    name = described[0].stem
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    wrapper = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(wrapper)
    return name, wrapper


def opened(wrapper: Any, number: int, driver: str | None) -> dict[str, Any]:
    """Return a network that replays graphs, and one that launches every kernel."""
    try:
        return {
            kind: wrapper.Network(keep=False, device=number, driver=driver, plain_launches=kind == "plain")
            for kind in ("graphs", "plain")
        }
    except wrapper.NetworkError as error:
        stop(f"nothing is measured without a CUDA GPU: {error}")


def random_inputs(network: Any) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return {
        name: random.standard_normal(shape).astype(dtype) if dtype.kind == "f" else np.zeros(shape, dtype)
        for name, (shape, dtype) in network.inputs.items()
    }


def measured(networks: dict[str, Any], rounds: int, runs: int) -> dict[str, Any]:
    """Return the medians of both kinds of launches, in milliseconds."""
    inputs = random_inputs(networks["graphs"])
    first = {kind: network(inputs) for kind, network in networks.items()}
    equal = all(first["plain"][name].tobytes() == value.tobytes() for name, value in first["graphs"].items())
    by_round: dict[str, list[list[float]]] = {kind: [] for kind in networks}
    for _ in range(rounds):
        for kind, network in networks.items():
            seconds = []
            for _ in range(runs):
                begin = time.perf_counter()
                network(inputs)
                seconds.append(time.perf_counter() - begin)
            by_round[kind].append(seconds)
    row: dict[str, Any] = {"equal": equal}
    for kind, times in by_round.items():
        medians = [1e3 * median(seconds) for seconds in times]
        row[kind] = 1e3 * median(second for seconds in times for second in seconds)
        row |= {f"{kind}_low": min(medians), f"{kind}_high": max(medians)}
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", type=Path, metavar="MODEL.onnx|EXPORT")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--db", help="tuning database")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--driver", help="path of the driver's library (default: the system's)")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.what
        if not folder.is_dir():
            folder = exported(folder, Path(temporary), options.device, options.db)
        name, wrapper = wrapper_of(folder)
        number = int(options.device.partition(":")[2].partition(",")[0])
        row = measured(opened(wrapper, number, options.driver), options.rounds, options.runs)
    print(
        "  ".join(f"{key} {value:.4f}" if isinstance(value, float) else f"{key} {value}" for key, value in row.items())
    )
    summary = {f"graphs_vs_plain_{name}": row["graphs"] / row["plain"]}
    print(json.dumps(summary, indent=1))
    if options.json is not None:
        options.json.write_text(json.dumps({"summary": summary, "rows": [{"model": name, **row}]}, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""This benchmark compares the latencies of built modules of one network, such as those for different devices.

    python benchmarks/modules.py [--json] [--rounds 12] DIR DIR...

DIR are folders that `tune build` wrote from one model on this machine. Every module runs in its own process with all
threads, and their blocks of runs alternate. Ratios are latencies over the first module's: above 1 is slower.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from tuner.devices import usable_cpus
from tuner.module import load
from tuner.report.alternation import Contender, alternate
from tuner.report.bench import BLOCK_SECONDS
from tuner.report.contender import Spec
from tuner.report.peers import OURS


def inputs_of(module: Path, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    given = load(module).inputs
    return {name: rng.standard_normal(shape).astype(dtype) for name, (shape, dtype) in given.items()}


def alternated(
    sources: Mapping[str, tuple[str, Path]], inputs: Mapping[str, np.ndarray], rounds: int
) -> tuple[dict[str, list[float]], dict[str, dict[str, np.ndarray]]]:
    """Return the medians of every contender's blocks of runs in seconds, and its outputs. See `runs_of`."""
    times, outputs = runs_of(sources, inputs, rounds)
    return {name: [median(block) for block in blocks] for name, blocks in times.items()}, outputs


def runs_of(
    sources: Mapping[str, tuple[str, Path]],
    inputs: Mapping[str, np.ndarray],
    rounds: int,
    first: Callable[[str], None] = lambda _: None,
    block_seconds: float = BLOCK_SECONDS,
) -> tuple[dict[str, list[list[float]]], dict[str, dict[str, np.ndarray]]]:
    """Run the contenders in turns and return every contender's blocks of runs in seconds, and its outputs.

    `sources` holds, by the contender's name, the peer and the file or folder that it opens. Each contender runs in its
    own process with all threads. `first` is called before each round, when all of them are stopped, with a text that
    has the number of the round.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        np.savez(folder / "inputs.npz", allow_pickle=False, **inputs)
        cpus, running = usable_cpus(), {}
        for i, (name, (peer, source)) in enumerate(sources.items()):
            files = str(folder / "inputs.npz"), str(folder / f"{i}.npz")
            spec = Spec(peer, str(source.resolve()), len(cpus), tuple(cpus), *files)
            command = [sys.executable, "-m", "tuner.report.contender", spec.to_json()]
            running[name] = stack.enter_context(Contender(name, command, len(cpus), folder / f"{i}.log"))
        times = alternate(running, rounds, block_seconds, first)
        outputs = {name: dict(np.load(folder / f"{i}.npz")) for i, name in enumerate(sources)}
    return times, outputs


def compare(modules: list[Path], rounds: int, seed: int) -> list[dict[str, Any]]:
    sources = {str(module): (OURS, module) for module in modules}
    blocks, outputs = alternated(sources, inputs_of(modules[0], seed), rounds)
    wanted = outputs[str(modules[0])]
    first = median(blocks[str(modules[0])])
    return [
        {
            "module": name,
            "median_seconds": median(found),
            "over_first": median(found) / first,
            "steadiness": max(found) / median(found),
            "difference": max(
                float(np.abs(given[key] - wanted[key]).max() / np.abs(wanted[key]).max()) for key in given
            ),
        }
        for (name, found), given in zip(blocks.items(), outputs.values(), strict=True)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="+", type=Path, metavar="DIR")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output at the end")
    parser.add_argument("--rounds", type=int, default=12, help="alternated blocks per module")
    parser.add_argument("--seed", type=int, default=0, help="of the random inputs")
    options = parser.parse_args()
    rows = compare(options.modules, options.rounds, options.seed)
    for row in rows:
        print(
            f"{row['module']:40s} {row['median_seconds'] * 1e3:9.2f} ms  {row['over_first']:6.3f} of the first"
            f"  slowest block {row['steadiness']:.2f}  outputs differ by {row['difference']:.1e}",
            file=sys.stderr,
        )
    if options.json:
        summary = {f"over_first_{row['module']}": row["over_first"] for row in rows[1:]}
        print(json.dumps({"summary": summary, "rows": rows, "machine": {"platform": platform.platform()}}))


if __name__ == "__main__":
    main()

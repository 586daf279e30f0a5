"""Estimate by llvm-mca how long cores take for assembly, for the benchmarks that do. Start at `cycles`.

LLVM has models of Neoverse N1 and V1 from version 17 on: `apt-get install llvm-19`.
"""

from __future__ import annotations

import random
import re
import shutil
import subprocess
from collections.abc import Sequence

from templates.space import Space
from tuner.errors import BadInput
from tuning_db.record import Config

_ITERATIONS = 100
_OLDEST = 17  # version of LLVM


def find_mca(given: str | None) -> str:
    """Return the command of llvm-mca. Raises BadInput if there is none, or if it knows too few cores."""
    names = [given] if given else [f"llvm-mca-{version}" for version in range(22, _OLDEST - 1, -1)] + ["llvm-mca"]
    found = next((name for name in names if shutil.which(name)), None)
    if found is None:
        raise BadInput(f"{names[0]} is not installed: apt-get install llvm-19, or name another with --mca")
    said = subprocess.run([found, "--version"], capture_output=True, text=True, check=True).stdout
    version = re.search(r"LLVM version (\d+)", said)
    if version is None or int(version[1]) < _OLDEST:
        raise BadInput(f"{found}: has no models of these cores before LLVM {_OLDEST}: apt-get install llvm-19")
    return found


def cycles(mca: str, cpu: str, code: Sequence[str], features: str, machine: str = "aarch64") -> float:
    """Return the cycles that llvm-mca gives one pass through some lines of assembly, of many in a row. `features` are
    those of LLVM's that the code needs beside the core's. `machine` is the core's architecture."""
    kept = [line for line in code if re.match(r"\s+[a-z]|[.\w$]+:", line)]
    command = [mca, f"-mtriple={machine}", f"-mcpu={cpu}", f"-mattr={features}", f"-iterations={_ITERATIONS}"]
    done = subprocess.run(command, input="\n".join(kept), capture_output=True, text=True, check=True)
    total = re.search(r"Total Cycles:\s+(\d+)", done.stdout)
    assert total is not None
    return int(total[1]) / _ITERATIONS


def drawn(space: Space, samples: int) -> list[Config]:
    """Return the first configs of a space and random ones, without those that sum in parts: one loop is read."""
    rng = random.Random(1)
    configs = [*space.seed_configs()[:6], *filter(None, (space.sample(rng) for _ in range(samples)))]
    return list({config.key: config for config in configs if not config.knobs.get("chunk", 0)}.values())

"""Reads changed inputs of one format, in a process that may die of them: `python -m tests.fuzz.child ...`.

Writes a line with the number of each input before it is read, and a line of JSON for each that is not told as it should
be: in one line that names what is wrong.
"""

from __future__ import annotations

import json
import os
import random
import resource
import sys
import traceback
from pathlib import Path

from board_agent.sandbox import limit_memory
from tests.fuzz.formats import FORMATS
from tuner.cli.main import explain
from tuner.cli.terminal import visible

_MEMORY_BYTES = 3 << 30  # beyond what the process has when it begins


def main(name: str, seed: str, first: str, behind: str, folder: str, materials: str) -> None:
    """Read inputs `first` to `behind` of a format. `folder`: of this process."""
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    made = FORMATS[name]()
    made.prepare(Path(folder), Path(materials))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    limit_memory(_MEMORY_BYTES)
    for number in range(int(first), int(behind)):
        replies.write(f"{number}\n")
        try:
            made.read(random.Random(f"{name}/{seed}/{number}"))
        except Exception as error:
            problem = _problem(error)
            if problem is not None:
                replies.write(json.dumps({"number": number, "what": problem}) + "\n")


def _problem(error: Exception) -> str | None:
    """Return what is wrong with an error; None for one that a person can act on."""
    told = explain(error)
    if told is None:
        where = traceback.extract_tb(error.__traceback__)
        ours = [f for f in where if "/tests/" not in f.filename and "site-packages" not in f.filename] or where
        at = f"{Path(ours[-1].filename).name}:{ours[-1].lineno}"
        return f"{type(error).__name__} in {at}: {str(error)[:200]}"
    line = visible(told[0])
    if not line or len(line) > 1100 or not line.isprintable():
        return f"its line is no line: {line[:200]!r}"
    return None


if __name__ == "__main__":
    main(*sys.argv[1:])

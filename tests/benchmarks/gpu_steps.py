"""Steps for tests of benchmarks/on_gpu.py, which do what steps may do."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def rows(_settings: Any, count: int) -> Iterator[dict[str, Any]]:
    yield from ({"number": number} for number in range(count))


def wrong(_settings: Any) -> Iterator[dict[str, Any]]:
    yield {"ok": True}
    yield {"ok": False}


def crashes(_settings: Any) -> Iterator[dict[str, Any]]:
    yield {"before": True}
    raise RuntimeError("the device is lost")


def endless(_settings: Any, child: str) -> Iterator[dict[str, Any]]:
    """Start a process that nobody waits for, tell its number, and never end."""
    started = subprocess.Popen(["sleep", "3600"])
    Path(child).write_text(str(started.pid))
    yield {"before": True}
    while True:
        time.sleep(3600)


def unable(_settings: Any) -> Iterator[dict[str, Any]]:
    from on_gpu_steps import Skip

    yield from ()
    raise Skip("no such device")

"""Trials made up for tests: `trial`, with sensible defaults."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from tuning_db.record import Config, DeviceKey, Failure, FailureKind, Trial, Workload

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
CONV = Workload("conv2d", {"batch": 1, "in_channels": 64, "kernel": (3, 3)}, ("bias", "relu"))
LAPTOP = DeviceKey("cpu", "x86_64-avx512", "znver4", {"threads": 2})


def config(tile: Any = 1, template: str = "direct") -> Config:
    return Config(template, {"tile": tile})


def trial(
    tile: Any = 1,
    seconds: float | None = 1e-3,
    error: float | None = 1e-6,
    minute: float = 0,
    workload: Workload = CONV,
    device: DeviceKey = LAPTOP,
    kind: FailureKind = FailureKind.COMPILE,
    version: int = 1,
    throttled: bool = False,
) -> Trial:
    """One trial of config(tile); `seconds=None` makes it a failure of `kind`. `minute`: created so long after NOON."""
    failed = seconds is None
    return Trial(
        workload,
        device,
        config(tile),
        version,
        times=() if seconds is None else (seconds, seconds, 2 * seconds),
        failure=Failure(kind, "it broke") if failed else None,
        error=None if failed else error,
        seed=7,
        searcher="random",
        versions={"edgetune": "0.1.0", **({"throttled": "yes"} if throttled else {})},
        created=NOON + timedelta(minutes=minute),
    )

"""Knows the kinds of devices that there are. Start at `kind_of`.

A kind is a folder of this package with a `KIND`, and a line below.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib import import_module

from tuner.devices.kind import DeviceKind
from tuner.errors import BadInput, choices

# Devices are listed in this order.
_NAMES = (
    "cpu",
    "opencl",
    "cuda",
    "board",
)


@cache
def all_kinds() -> tuple[DeviceKind, ...]:
    """Return the kinds, in the order of the registry."""
    return tuple(_kinds())


def _kinds() -> Iterator[DeviceKind]:
    """Yield the kinds in the order of the registry. Each is imported only when the iteration reaches it, since boards
    need libraries that other devices do not."""
    for name in _NAMES:
        yield import_module(f"tuner.devices.{name}").KIND


def find_kind(spec: str) -> DeviceKind | None:
    """Return the kind of the device that a spec names, or None if no kind recognises it."""
    return next((kind for kind in _kinds() if kind.recognises(spec)), None)


def kind_of(spec: str) -> DeviceKind:
    """Return the kind of the device that a spec names. Raises BadInput, with what to give, if no kind recognises it."""
    kind = find_kind(spec)
    if kind is None:
        usages = [kind.usage for kind in sorted(all_kinds(), key=lambda kind: kind.is_remote)]
        raise BadInput(f"unknown device {spec!r}: give {choices(usages)}")
    return kind


def kinds_on_boards() -> list[DeviceKind]:
    """Return the kinds of which boards have devices too."""
    return [kind for kind in all_kinds() if kind.on_boards is not None]

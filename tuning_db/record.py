"""This module defines the records of a measurement: Workload, DeviceKey, Config, Failure and Trial.

All are frozen and hashable. `key` returns a canonical JSON text. Equal records have equal keys on every machine and in
every version, so keys may be stored and compared. Nothing here depends on TVM.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from functools import cached_property
from statistics import median
from typing import Any

Scalar = bool | int | float | str
Value = Scalar | tuple[Scalar, ...]


_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


THROTTLED = "throttled"
CONDITION = "condition"


def canonical_json(value: Any) -> str:
    """Write a value as JSON with sorted keys and no spaces, so that equal values have equal texts."""
    return _ENCODER.encode(value)


_PLAIN = frozenset((int, str, bool))


def _freeze(value: Any) -> Value:
    """Convert a value to a built-in scalar or a tuple of them.

    Whole floats become ints, because 1 and 1.0 are the same value and need the same key. Raises ValueError for a float
    that is not finite, and TypeError for any other type.
    """
    if type(value) in _PLAIN:
        return value
    if isinstance(value, list | tuple):
        return tuple(_freeze(v) for v in value)  # type: ignore[misc]
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{value!r} cannot be part of a key: it is not finite")
        return int(value) if value.is_integer() else float(value)
    if isinstance(value, int | str):
        return int(value) if isinstance(value, int) else str(value)
    raise TypeError(f"{value!r} cannot be part of a key: only numbers, strings and lists of them can")


class _Attrs(Mapping[str, Value]):
    """An immutable, hashable mapping that holds scalars or tuples of scalars, sorted by name."""

    __slots__ = ("_hash", "_items", "_json")
    _items: dict[str, Value]
    _hash: int
    _json: str

    def __init__(self, items: Mapping[str, Any]) -> None:
        names = sorted(items)
        self._items = {name: v if type(v := items[name]) in _PLAIN else _freeze(v) for name in names}

    def as_dict(self) -> dict[str, Value]:
        """Return the same as dict(self), but without a call of `__getitem__` for every name."""
        return self._items.copy()

    @property
    def json(self) -> str:
        """Return the canonical JSON of the mapping. It is computed once."""
        try:
            return self._json
        except AttributeError:
            self._json = canonical_json(self._items)
            return self._json

    def __getitem__(self, name: str) -> Value:
        return self._items[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if isinstance(other, _Attrs):  # True == 1 in Python, but their keys differ; repr tells them apart
            return self._items == other._items and repr(self._items) == repr(other._items)
        return Mapping.__eq__(self, other)

    def __hash__(self) -> int:
        try:
            return self._hash
        except AttributeError:
            self._hash = hash(tuple(self._items.items()))
            return self._hash

    def __reduce__(self) -> tuple[type[_Attrs], tuple[dict[str, Value]]]:
        return _Attrs, (self._items,)  # without the hash: hashes of strings differ between processes

    def __repr__(self) -> str:
        return repr(self._items)


def frozen(items: Mapping[str, Any]) -> _Attrs:
    """Return an immutable, hashable copy of a mapping, in the form in which all records keep their attributes.

    A mapping that has this form already is returned itself.
    """
    return items if isinstance(items, _Attrs) else _Attrs(items)


def plain(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Copy a mapping into a new dictionary."""
    return attrs.as_dict() if isinstance(attrs, _Attrs) else dict(attrs)


# CPUs add up to 160 products in half precision before they add their sum to a float32, which is off by up to half of
# this tolerance. Kernels that round less are checked more strictly (templates.template.tolerance_with).
_TOLERANCE = {"float32": 1e-4, "float16": 1e-2}


def tolerance_of(dtype: str) -> float:
    """Return the largest error that a correct kernel may have, relative to the largest value of the result."""
    return _TOLERANCE.get(dtype, _TOLERANCE["float32"])


@dataclass(frozen=True)
class Workload:
    """A workload is one operator with its shapes, attributes and fused epilogue: what a kernel computes, not how.

    `op` names the anchor ("conv2d", "dense"). `attrs` holds its sizes (see templates.workloads for the names of each
    operator). `epilogue` lists the element-wise operators fused behind the anchor, in order, as tokens of
    templates.epilogue ("bias", "add", "relu", "clip:0:6", ...). `dtype` is the type of all tensors in memory, or of
    those that an operator names (vision_ops.recurrent_layer); sums are accumulated in float32.
    """

    op: str
    attrs: Mapping[str, Any]
    epilogue: tuple[str, ...] = ()
    dtype: str = "float32"

    def __post_init__(self) -> None:
        object.__setattr__(self, "attrs", frozen(self.attrs))
        object.__setattr__(self, "epilogue", tuple(self.epilogue))

    def as_dict(self) -> dict[str, Any]:
        return {"op": self.op, "attrs": plain(self.attrs), "epilogue": list(self.epilogue), "dtype": self.dtype}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Workload:
        return cls(data["op"], data["attrs"], tuple(data["epilogue"]), data["dtype"])

    @cached_property
    def key(self) -> str:
        return canonical_json(self.as_dict())


@dataclass(frozen=True)
class DeviceKey:
    """A key that holds the properties of a device that change performance, and no others.

    `kind` is the TVM device kind ("cpu", "opencl", "cuda"). `family` groups devices whose best configs resemble each
    other ("x86_64-avx512"). `model` is the exact part ("znver4"). `attrs` holds the rest (threads, limits, driver).
    """

    kind: str
    family: str
    model: str
    attrs: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "attrs", frozen(self.attrs))

    def as_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "family": self.family, "model": self.model, "attrs": plain(self.attrs)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> DeviceKey:
        return cls(data["kind"], data["family"], data["model"], data["attrs"])

    @cached_property
    def key(self) -> str:
        return canonical_json(self.as_dict())


@dataclass(frozen=True)
class Config:
    """A config names a template and gives a value to each of its knobs."""

    template: str
    knobs: Mapping[str, Any]

    def __post_init__(self) -> None:
        object.__setattr__(self, "knobs", frozen(self.knobs))

    def __getitem__(self, knob: str) -> Any:
        return self.knobs[knob]

    def as_dict(self) -> dict[str, Any]:
        return {"template": self.template, "knobs": plain(self.knobs)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Config:
        return cls(data["template"], data["knobs"])

    @cached_property
    def key(self) -> str:
        return canonical_json(self.as_dict())


class FailureKind(StrEnum):
    """The kinds of failure that leave a trial without a time. The database stores these strings."""

    INVALID = "invalid"  # the config violates a constraint, or the schedule cannot be applied
    COMPILE = "compile"
    COMPILE_TIMEOUT = "compile_timeout"
    UPLOAD = "upload"
    RUN = "run"
    RUN_TIMEOUT = "run_timeout"
    WRONG_ANSWER = "wrong_answer"
    DEVICE_LOST = "device_lost"
    WITHDRAWN = "withdrawn"  # a user decided that the config must never be a best again

    @property
    def tells_of_config(self) -> bool:
        """Tell whether the failure says something about the config. A failure of the connection or the device does not:
        a config that was fine before stays valid."""
        return self not in (FailureKind.UPLOAD, FailureKind.DEVICE_LOST)


@dataclass(frozen=True)
class Failure:
    """The reason why a trial has no time: its kind and a message."""

    kind: FailureKind
    message: str


@dataclass(frozen=True)
class Trial:
    """A trial is one config that was measured, or that failed. Exactly one of `times` and `failure` is set.

    `times` holds seconds per call, one value per repeat. `error` is the largest absolute error divided by the largest
    absolute value of the float64 reference; it is set where the result was checked. `versions` holds the package
    versions that change kernels. It also has the entry THROTTLED (the reason in a few words) where the device did not
    keep its speed during the measurement. It has the entry CONDITION ("1416 MHz, 51>58 C") where the device reports
    its clocks and temperature.
    """

    workload: Workload
    device: DeviceKey
    config: Config
    template_version: int
    times: tuple[float, ...] = ()
    failure: Failure | None = None
    error: float | None = None
    seed: int | None = None
    searcher: str | None = None
    versions: Mapping[str, Any] = field(default_factory=dict)
    created: datetime = field(default_factory=lambda: datetime.now(UTC))

    def __post_init__(self) -> None:
        object.__setattr__(self, "times", tuple(self.times))
        object.__setattr__(self, "versions", frozen(self.versions))
        if bool(self.times) == (self.failure is not None):
            raise ValueError("a trial has either times or a failure")

    @property
    def ok(self) -> bool:
        return self.failure is None

    @property
    def throttled(self) -> bool:
        """Tell whether the device slowed down during the measurement, so that the times are less reliable."""
        return THROTTLED in self.versions

    @cached_property
    def seconds(self) -> float:
        """Return the median seconds per call, or infinity for a failure, so that trials sort by merit."""
        return median(self.times) if self.times else float("inf")


def with_conditions(versions: Mapping[str, str], throttled: str, condition: str) -> dict[str, str]:
    """Return `versions` with the entries THROTTLED and CONDITION of a trial (see `Trial`). Empty texts are left out."""
    told = {THROTTLED: throttled, CONDITION: condition}
    return {**versions, **{name: text for name, text in told.items() if text}}

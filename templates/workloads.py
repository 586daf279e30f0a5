"""Typed views of the workloads that templates know: Conv2d and Dense, to and from tuning_db.Workload."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from tuning_db.record import Workload


@dataclass(frozen=True)
class Conv2d:
    """A 2-D convolution on NCHW data with OIHW weights. Sizes in elements; padding is (top, left, bottom, right).

    `groups == in_channels` (with any multiplier) is a depthwise convolution.
    """

    batch: int
    in_channels: int
    height: int
    width: int
    out_channels: int
    kernel: tuple[int, int]
    strides: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1

    def __post_init__(self) -> None:
        for name in ("kernel", "strides", "padding", "dilation"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        sizes = (*self.data_shape, self.out_channels, *self.kernel, *self.strides, *self.dilation, self.groups)
        if min(sizes) < 1:
            raise ValueError(f"conv2d: a size, stride, dilation or number of groups is less than 1: {sizes}")
        if self.in_channels % self.groups or self.out_channels % self.groups:
            raise ValueError(
                f"conv2d: {self.in_channels} input and {self.out_channels} output channels "
                f"do not divide into {self.groups} groups"
            )
        if min(self.out_height, self.out_width) < 1:
            raise ValueError(f"conv2d: kernel {self.kernel} does not fit into {self.height}x{self.width}")

    def _extent(self, size: int, axis: int) -> int:
        reach = self.dilation[axis] * (self.kernel[axis] - 1) + 1
        return (size + self.padding[axis] + self.padding[axis + 2] - reach) // self.strides[axis] + 1

    @property
    def out_height(self) -> int:
        return self._extent(self.height, 0)

    @property
    def out_width(self) -> int:
        return self._extent(self.width, 1)

    @property
    def out_shape(self) -> tuple[int, int, int, int]:
        return self.batch, self.out_channels, self.out_height, self.out_width

    @property
    def data_shape(self) -> tuple[int, int, int, int]:
        return self.batch, self.in_channels, self.height, self.width

    @property
    def weight_shape(self) -> tuple[int, int, int, int]:
        return self.out_channels, self.in_channels // self.groups, *self.kernel

    @property
    def is_depthwise(self) -> bool:
        return self.groups > 1 and self.groups == self.in_channels == self.out_channels

    @property
    def flop(self) -> float:
        """Floating-point operations of the direct algorithm, a multiply-add counted as two."""
        n, k, h, w = self.out_shape
        return 2.0 * n * k * h * w * (self.in_channels // self.groups) * self.kernel[0] * self.kernel[1]

    def workload(self, epilogue: Iterable[str] = (), dtype: str = "float32") -> Workload:
        return Workload("conv2d", asdict(self), tuple(epilogue), dtype)


@dataclass(frozen=True)
class Dense:
    """out[rows, out_features] = data[rows, in_features] times weight; the weight is (out_features, in_features)."""

    rows: int
    in_features: int
    out_features: int

    def __post_init__(self) -> None:
        if min(self.rows, self.in_features, self.out_features) < 1:
            raise ValueError(f"dense: {self.rows} rows of {self.in_features} times {self.out_features} are no product")

    @property
    def out_shape(self) -> tuple[int, int]:
        return self.rows, self.out_features

    @property
    def data_shape(self) -> tuple[int, int]:
        return self.rows, self.in_features

    @property
    def weight_shape(self) -> tuple[int, int]:
        return self.out_features, self.in_features

    @property
    def flop(self) -> float:
        return 2.0 * self.rows * self.in_features * self.out_features

    def workload(self, epilogue: Iterable[str] = (), dtype: str = "float32") -> Workload:
        return Workload("dense", asdict(self), tuple(epilogue), dtype)


Anchor = Conv2d | Dense
_KINDS: dict[str, type[Any]] = {"conv2d": Conv2d, "dense": Dense}
# What comes of a workload in a database that another version or a plugin has written, whatever its attributes are.
STRANGE = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


def anchor_of(workload: Workload) -> Anchor:
    """The typed view of a workload. Raises KeyError for an operator that no template knows."""
    anchor: Anchor = _KINDS[workload.op](**workload.attrs)
    return anchor


def flop_of(workload: Workload) -> float | None:
    """Operations of the direct algorithm; None where they are not what an operator is about."""
    return anchor_of(workload).flop if is_anchor(workload) else None


def is_anchor(workload: Workload) -> bool:
    """Whether it is a convolution or a dense layer."""
    return workload.op in _KINDS


def conv_of(workload: Workload) -> Conv2d:
    """The typed view of a convolution."""
    conv = anchor_of(workload)
    assert isinstance(conv, Conv2d)
    return conv


def dense_of(workload: Workload) -> Dense:
    """The typed view of a dense layer."""
    dense = anchor_of(workload)
    assert isinstance(dense, Dense)
    return dense

"""This module converts the workloads of anchors to and from typed views: `Conv2d` and `Dense`. Start at `anchor_of`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from tuning_db.record import Workload


@dataclass(frozen=True)
class Conv2d:
    """A 2-D convolution that reads NCHW data and OIHW weights.

    Sizes are in elements, and padding is (top, left, bottom, right). A convolution with `groups == in_channels` is
    depthwise, with any multiplier; `is_depthwise` asks for as many output channels, too. Raises ValueError for sizes
    that do not fit.
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
        """Count the floating-point operations of the direct algorithm. A multiply-add counts as two."""
        n, k, h, w = self.out_shape
        return 2.0 * n * k * h * w * (self.in_channels // self.groups) * self.kernel[0] * self.kernel[1]

    def workload(self, epilogue: Iterable[str] = (), dtype: str = "float32") -> Workload:
        return Workload("conv2d", asdict(self), tuple(epilogue), dtype)


@dataclass(frozen=True)
class Dense:
    """A dense layer that computes out[rows, out_features] = data[rows, in_features] times weight.

    The weight is (out_features, in_features). Raises ValueError for a size below 1.
    """

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
# The exceptions that decoding a workload may raise if another version or a plugin wrote it to the database.
STRANGE = (ArithmeticError, AttributeError, LookupError, SyntaxError, TypeError, ValueError)  # SyntaxError: np.dtype


def anchor_of(workload: Workload) -> Anchor:
    """Return the typed view of a workload. Raises KeyError if its operator is no anchor."""
    anchor: Anchor = _KINDS[workload.op](**workload.attrs)
    return anchor


def flop_of(workload: Workload) -> float | None:
    """Return the operations of the direct algorithm, or None for an operator whose cost they do not describe.

    Only anchors have such a count.
    """
    return anchor_of(workload).flop if is_anchor(workload) else None


def is_anchor(workload: Workload) -> bool:
    """Tell whether a workload is a convolution or a dense layer."""
    return workload.op in _KINDS


def conv_of(workload: Workload) -> Conv2d:
    """Return the typed view of a workload that is a convolution."""
    conv = anchor_of(workload)
    assert isinstance(conv, Conv2d)
    return conv


def dense_of(workload: Workload) -> Dense:
    """Return the typed view of a workload that is a dense layer."""
    dense = anchor_of(workload)
    assert isinstance(dense, Dense)
    return dense


def kind_of(workload: Workload) -> str:
    """Return the kind of a workload: its operator, except that depthwise and grouped convolutions are kinds of their
    own.

    They reach other shares of a device's peaks than dense convolutions do.
    """
    if is_anchor(workload):
        anchor = anchor_of(workload)
        if isinstance(anchor, Conv2d) and anchor.groups > 1:
            return "depthwise conv2d" if anchor.is_depthwise else "grouped conv2d"
    return workload.op

"""Defines `Operand`: a tensor that kernels read or write, with what tells afterwards whether they did more
than that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Fill = Sequence[tuple[Any, float]]  # tensors, each with the value that all of its elements get


@dataclass(frozen=True, eq=False)
class Operand:
    """A tensor that kernels read or write. `tensor` is on a device. `guard` lies around or behind it and belongs to the
    executor. `digest` is a checksum of what the tensor holds, None where kernels may write it or where a board keeps
    the checksum."""

    tensor: Any
    guard: Any = None
    digest: int | None = None

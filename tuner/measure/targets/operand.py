"""A tensor that kernels read or write, with what tells afterwards whether they did more than that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Fill = Sequence[tuple[Any, float]]  # tensors, and the value that each gets everywhere


@dataclass(frozen=True, eq=False)
class Operand:
    """`tensor`: on a device, with a guard around it or behind it, which is the place's own; `digest`: of what it holds,
    None where kernels may write it, or where a board keeps it."""

    tensor: Any
    guard: Any = None
    digest: int | None = None

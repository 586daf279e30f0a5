"""Move values from channels to pixels, which a transposed convolution ends with. Start at `emit_move`.

This is a depth-to-space operator whose phases come before the channels, so that whole blocks of channels move together
where an image is in blocked layout. Rows and columns that are not wanted are left out on the way.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import prod
from typing import Any

from tvm import relax, te, tirx

_MARK = "edgetune.move"  # the attribute of a function that computes a Move, which holds it as JSON


@dataclass(frozen=True)
class Move:
    """Pixel (y, x) of the result is phase (y mod a, x mod b) of pixel (y // a, x // b), with `scales` (a, b), counted
    from the pixel where `rows` and `columns` (begin, end) begin. The channels of each of the `groups` are ordered by
    phase, then by the result's channel."""

    scales: tuple[int, int]
    rows: tuple[int, int]
    columns: tuple[int, int]
    groups: int = 1

    @property
    def phases(self) -> int:
        return prod(self.scales)

    def shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of the result of an image (N, C, H, W), or of one in blocked layout (N, C/v, H, W, v)."""
        size = self.rows[1] - self.rows[0], self.columns[1] - self.columns[0]
        return shape[0], shape[1] // self.phases, *size, *shape[4:]

    def keeps_blocks(self, channels: int, block: int) -> bool:
        """Tell whether blocks of the result are blocks of an image with that many channels."""
        return channels % (self.phases * self.groups * block) == 0

    def compute(self, image: te.Tensor) -> te.Tensor:
        """Compute the result of an image (N, C, H, W), or of one in blocked layout (N, C/v, H, W, v)."""
        shape = [int(size) for size in image.shape]
        a, b = self.scales
        inner = shape[1] // (self.phases * self.groups)  # channels, or blocks of them, that move together

        def moved(n: Any, c: Any, y: Any, x: Any, *lane: Any) -> Any:
            row, column = y + self.rows[0], x + self.columns[0]
            phase = row % a * b + column % b
            channel = (c // inner * self.phases + phase) * inner + c % inner
            return image[(n, channel, row // a, column // b, *lane)]

        return te.compute(self.shape(shape), moved, name="moved")


def emit_move(builder: relax.BlockBuilder, move: Move, image: Any) -> Any:
    """Emit a move of an image (N, C, H, W) and return the result."""
    attrs = {_MARK: json.dumps(asdict(move))}
    return builder.emit(builder.call_te(move.compute, image, primfunc_name_hint="move", primfunc_attrs=attrs))


def move_of(func: Any) -> Move | None:
    """Return the move that a function computes, or None for any other function."""
    if not isinstance(func, tirx.PrimFunc) or func.attrs is None or _MARK not in func.attrs:
        return None
    found = json.loads(func.attrs[_MARK])
    return Move(tuple(found["scales"]), tuple(found["rows"]), tuple(found["columns"]), found["groups"])

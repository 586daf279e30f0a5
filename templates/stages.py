"""Pieces that all templates share: epilogue stages, zero padding, schedules without debug output, register tiles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import te, tirx
from tvm.s_tir import Schedule

from templates import epilogue as steps


def epilogue_operands(epilogue: Sequence[str], out_shape: Sequence[int], dtype: str = "float32") -> list[te.Tensor]:
    """Return one placeholder per operand of the epilogue. `dtype` is the type of those that are stored as the output.

    One with a value per channel is (channel blocks, lanes) if the output is blocked, else (channels,). One with a value
    per pixel is (batch, height, width), or (rows,) for a dense layer. "add" operands have the output's shape. The
    numbers of a sum are (3,).
    """
    shapes = {
        "channel": (out_shape[1], out_shape[-1]) if len(out_shape) == 5 else (out_shape[1],),
        "pixel": (out_shape[0], *out_shape[2:4]),
        "image": tuple(out_shape),
        "single": (1,),
        "sum": (3,),
    }
    found = []
    for i, step in enumerate(steps.operands(epilogue)):
        kind = steps.OPERANDS[step]
        found.append(te.placeholder(shapes[kind.shape], name=f"{step}{i}", dtype=kind.dtype or dtype))
    return found


def border_of(epilogue: Sequence[str], extra: Sequence[te.Tensor]) -> Any:
    """Return what the data outside the image counts as, if an operand of the epilogue says so, or None."""
    given = zip(steps.operands(epilogue), extra, strict=True)
    return next((tensor(0) for token, tensor in given if token == "border"), None)


def epilogue_value(
    epilogue: Sequence[str],
    value: Any,
    extra: Sequence[te.Tensor],
    index: Sequence[Any],
    *,
    dtype: str = "float32",
    out_dtype: str | None = None,
) -> Any:
    """Apply the epilogue to `value` at an output index, which is (n, block, y, x, lane) or (row, channel).

    `value` is float32 and so is all arithmetic, but for sums of integers, which are int32, and for sums in half
    precision, on which simple epilogues are computed in it, too. The operands `extra` that have no type of their own
    are of `dtype`, and so is the result if it is not to be of `out_dtype`.
    """
    value = tirx.convert(value)  # it may be a slice of a tensor
    if not steps.keeps_halves(epilogue):
        value = widened(value)
    places = {
        "channel": (index[1], index[-1]) if len(index) == 5 else (index[1],),
        "pixel": (index[0], *index[2:4]),
        "image": tuple(index),
        "single": (0,),
    }

    def read(step: str, tensor: te.Tensor) -> Any:
        kind = steps.OPERANDS[step]
        if kind.shape == "sum":
            return tuple(tensor(i) for i in range(3))
        found = tensor(*places[kind.shape])
        return found if kind.dtype or str(value.ty.dtype) == dtype else as_float32(found, dtype)

    reads = [read(step, tensor) for step, tensor in zip(steps.operands(epilogue), extra, strict=True)]
    return stored_as(steps.apply(epilogue, value, reads), out_dtype or dtype)


def as_float32(value: Any, dtype: str) -> Any:
    """Convert a value that is stored as `dtype` to the float32 that kernels compute in."""
    return value if dtype == "float32" else value.astype("float32")


def stored_as(value: Any, dtype: str) -> Any:
    """Convert a value that was computed to the `dtype` that it is stored in."""
    value = tirx.convert(value)  # it may be a slice of a tensor
    return value if str(value.ty.dtype) == dtype else value.astype(dtype)


def widened(value: Any) -> Any:
    """Convert a half to float32. A value of another type is returned unchanged."""
    value = tirx.convert(value)  # it may be a slice of a tensor
    return value.astype("float32") if str(value.ty.dtype) == "float16" else value


def zero(dtype: str = "float32") -> Any:
    """Return 0 as a TVM constant."""
    return tirx.const(0, dtype)


def zero_padded(read: Callable[..., Any], y: Any, x: Any, *, height: int, width: int, dtype: str = "float32") -> Any:
    """Return read(y, x) if (y, x) lies inside the image, else 0. Both are of `dtype`."""
    return padded_with(zero(dtype), read, y, x, size=(height, width))


def padded_with(outside: Any, read: Callable[..., Any], y: Any, x: Any, *, size: tuple[int, int]) -> Any:
    """Return read(y, x) if (y, x) lies inside an image of `size` (height, width), else `outside`, of the same type."""
    return tirx.if_then_else(tirx.all(y >= 0, y < size[0], x >= 0, x < size[1]), read(y, x), outside)


def new_schedule(func: tirx.PrimFunc) -> Schedule:
    """Make a schedule that does no debug checks and dumps no IR into its errors (such dumps take megabytes)."""
    return Schedule(func, debug_mask="none", error_render_level="none")


def unroll_tile(sch: Schedule, loops: Sequence[Any]) -> None:
    """Vectorise the last loop (unless it has only one iteration) and unroll the others."""
    if int(sch.get(loops[-1]).extent) > 1:
        sch.vectorize(loops[-1])
    for loop in loops[:-1]:
        sch.unroll(loop)


def has_block(sch: Schedule, name: str) -> bool:
    """Tell whether the function has a stage of this name. A stage is missing if it was not needed or was inlined."""
    return any(sch.get(b).name_hint == name for b in sch.get_child_blocks(sch.get_sblock("root")))

"""Pieces that all templates share: epilogue stages, zero padding, schedules without debug output, register tiles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import te, tirx
from tvm.s_tir import Schedule

from templates import epilogue as steps


def epilogue_operands(epilogue: Sequence[str], out_shape: Sequence[int], dtype: str = "float32") -> list[te.Tensor]:
    """Return one placeholder per operand of the epilogue.

    A bias is (channel blocks, lanes) if the output is blocked, else (channels,). "add" operands have its shape.
    """
    found = []
    for i, step in enumerate(steps.operands(epilogue)):
        bias_shape = (out_shape[1], out_shape[-1]) if len(out_shape) == 5 else (out_shape[1],)
        found.append(te.placeholder(bias_shape if step == "bias" else out_shape, name=f"{step}{i}", dtype=dtype))
    return found


def epilogue_value(
    epilogue: Sequence[str], value: Any, extra: Sequence[te.Tensor], index: Sequence[Any], *, dtype: str = "float32"
) -> Any:
    """Apply the epilogue to `value` at an output index, which is (n, block, y, x, lane) or (row, channel).

    `value` is float32 and so is all arithmetic. The operands `extra` and the result are of `dtype`.
    """
    channel = (index[1], index[-1]) if len(index) == 5 else (index[1],)
    reads = [
        t(*channel) if step == "bias" else t(*index) for step, t in zip(steps.operands(epilogue), extra, strict=True)
    ]
    result = steps.apply(epilogue, value, [as_float32(read, dtype) for read in reads])
    return stored_as(result, dtype)


def as_float32(value: Any, dtype: str) -> Any:
    """Convert a value that is stored as `dtype` to the float32 that kernels compute in."""
    return value if dtype == "float32" else value.astype("float32")


def stored_as(value: Any, dtype: str) -> Any:
    """Convert a float32 value to the `dtype` that it is stored in."""
    return value if dtype == "float32" else value.astype(dtype)


def zero(dtype: str = "float32") -> Any:
    """Return 0 as a TVM constant."""
    return tirx.const(0.0, dtype)


def zero_padded(read: Callable[..., Any], y: Any, x: Any, *, height: int, width: int, dtype: str = "float32") -> Any:
    """Return read(y, x) if (y, x) lies inside the image, else 0. Both are of `dtype`."""
    return tirx.if_then_else(tirx.all(y >= 0, y < height, x >= 0, x < width), read(y, x), zero(dtype))


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

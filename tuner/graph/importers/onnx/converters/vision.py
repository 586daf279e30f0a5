"""Convert ONNX operators of detection networks to operators of templates (vision_ops). Start at `VISION`.

A converter emits into `builder` and returns the node's results, or None if TVM's converter is to be used. A result
whose length depends on the values has as many rows as there can be. The rows behind the last valid one are arbitrary.
Its converter returns a `Counted`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
from tvm import relax

from tuner.graph.importers.onnx.converters.resize import convert_resize
from tuner.graph.ir.bindings import dtype_of, shape_of
from tuner.graph.ir.operators import emit_operator
from tuner.graph.ir.simplify import constant
from vision_ops.argsort import Argsort, ArgsortTemplate
from vision_ops.compact import Compact
from vision_ops.nms import NO_THRESHOLD, Nms
from vision_ops.roi_align import RoiAlign
from vision_ops.roi_pool import RoiPool
from vision_ops.scan import Scan, ScanTemplate


@dataclass(frozen=True, eq=False)
class Counted:
    """A result whose first entries along `axis` are valid. `count`, of shape (1,), says how many."""

    value: Any
    axis: int
    count: Any


Convert = Callable[[relax.BlockBuilder, Sequence[Any], Mapping[str, Any]], "Any | Counted"]


def _top_k(builder: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    data, shape = inputs[0], shape_of(inputs[0])
    k = attrs.get("k") if len(inputs) == 1 else _number(inputs[1], None)
    if k is not None and k < 1:
        raise ValueError("k is 0, with which nothing is ever selected")
    if shape is None or dtype_of(data) not in ArgsortTemplate.dtypes or k is None or not prod(shape):
        return None
    axis, last = int(attrs.get("axis", -1)) % len(shape), len(shape) - 1
    if k > shape[axis]:
        raise ValueError(f"the {int(k)} best of {shape[axis]} values cannot be had")
    order = [i for i in range(len(shape)) if i != axis] + [axis]
    rows = data if axis == last else builder.emit(relax.op.permute_dims(data, order))
    moved = [shape[i] for i in order]
    sort = Argsort(prod(moved[:-1]), moved[-1], int(k), descending=bool(attrs.get("largest", 1)))
    flat = builder.emit(relax.op.reshape(rows, (sort.rows, sort.length)))
    (found,) = emit_operator(builder, sort.workload(str(dtype_of(data))), [flat])
    indices = builder.emit(relax.op.reshape(found, (*moved[:-1], int(k))))
    if axis != last:
        indices = builder.emit(relax.op.permute_dims(indices, [order.index(i) for i in range(len(shape))]))
    indices = builder.emit(relax.op.astype(indices, "int64"))
    return relax.Tuple([builder.emit(relax.op.gather_elements(data, indices, axis)), indices])


def _cum_sum(builder: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    data, shape, axis = inputs[0], shape_of(inputs[0]), _number(inputs[1], None)
    if shape is None or dtype_of(data) not in ScanTemplate.dtypes or axis is None or not prod(shape):
        return None
    at = int(axis) % len(shape)
    scan = Scan(
        prod(shape[:at]),
        shape[at],
        prod(shape[at + 1 :]),
        exclusive=bool(attrs.get("exclusive", 0)),
        reverse=bool(attrs.get("reverse", 0)),
    )
    flat = builder.emit(relax.op.reshape(data, scan.shape))
    (sums,) = emit_operator(builder, scan.workload(str(dtype_of(data))), [flat])
    return relax.op.reshape(sums, shape)


def _roi_align(builder: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    data, regions, maps = inputs
    shape, rois = shape_of(data), shape_of(regions)
    if shape is None or rois is None or not rois[0] or dtype_of(data) != "float32":
        return None
    batch, channels, height, width = shape
    align = RoiAlign(
        batch,
        channels,
        height,
        width,
        rois[0],
        int(attrs.get("output_height", 1)),
        int(attrs.get("output_width", 1)),
        float(attrs.get("spatial_scale", 1.0)),
        int(attrs.get("sampling_ratio", 0)),
        "avg" if attrs.get("mode", b"avg") == b"avg" else "max_corner",
        aligned=attrs.get("coordinate_transformation_mode", b"half_pixel") == b"half_pixel",
    )
    (out,) = emit_operator(builder, align.workload(), [data, regions, builder.emit(relax.op.astype(maps, "int32"))])
    return out


def _max_roi_pool(builder: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    data, rois = inputs
    shape, found = shape_of(data), shape_of(rois)
    if shape is None or found is None or not found[0] or dtype_of(data) != "float32":
        return None
    batch, channels, height, width = shape
    out_height, out_width = (int(size) for size in attrs["pooled_shape"])
    scale = float(attrs.get("spatial_scale", 1.0))
    pool = RoiPool(batch, channels, height, width, found[0], out_height, out_width, scale)
    parts = builder.emit(relax.op.split(rois, [1], axis=1))  # the image that each lies in, and its corners
    maps = builder.emit(relax.op.reshape(builder.emit(relax.TupleGetItem(parts, 0)), (pool.rois,)))
    corners = builder.emit(relax.TupleGetItem(parts, 1))
    maps = builder.emit(relax.op.astype(maps, "int32"))
    (out,) = emit_operator(builder, pool.workload(), [data, corners, maps])
    return out


def _non_max_suppression(builder: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    boxes, scores, most, iou, threshold = [*inputs, None, None, None][:5]
    shape, ranked = shape_of(boxes), shape_of(scores)
    limits = _number(most, 0), _number(iou, 0.0), _number(threshold, NO_THRESHOLD)
    if shape is None or ranked is None or limits[0] is None or limits[1] is None or limits[2] is None:
        raise ValueError("its shapes and its thresholds have to be constants")
    (batch, length, _), classes, keep = shape, ranked[1], min(int(limits[0]), shape[1])
    if keep < 1 or not batch * classes:
        raise ValueError("max_output_boxes_per_class is 0, with which nothing is ever selected; give the most wanted")
    centre = bool(attrs.get("center_point_box", 0))
    nms = Nms(batch, classes, length, length, keep, float(limits[1]), float(limits[2]), centre)
    flat = builder.emit(relax.op.reshape(scores, (nms.rows, length)))
    sort, sorted_from = Argsort(nms.rows, length, length, descending=True), [flat]
    if threshold is not None:  # few of a trained network's scores exceed it
        found = emit_operator(builder, Compact(nms.rows, length, nms.score).workload(), [flat])
        sort, sorted_from = replace(sort, counted=True), [flat, *found]
    (order,) = emit_operator(builder, sort.workload(), sorted_from)
    kept, _ = emit_operator(builder, nms.workload(), [boxes, flat, order])
    return _selected(builder, kept, nms)


def _selected(builder: relax.BlockBuilder, kept: Any, nms: Nms) -> Counted:
    """Return rows of (batch, class, box), one for each kept box. The rows behind the last name existing boxes, too."""
    emit = builder.emit

    def number(value: int) -> Any:
        return relax.const(value, "int32")

    total = nms.rows * nms.keep
    signs = emit(relax.op.astype(emit(relax.op.reshape(kept, (1, total))), "float32"))
    places, count = emit_operator(builder, Compact(1, total, -0.5).workload(), [signs])
    place = emit(relax.op.maximum(emit(relax.op.reshape(places, (total,))), number(0)))
    box = emit(relax.op.take(emit(relax.op.reshape(kept, (total,))), place, axis=0, mode="clip"))
    row = emit(relax.op.floor_divide(place, number(nms.keep)))
    columns = [
        emit(relax.op.floor_divide(row, number(nms.classes))),
        emit(relax.op.floor_mod(row, number(nms.classes))),
        emit(relax.op.maximum(box, number(0))),
    ]
    joined = emit(relax.op.concat([emit(relax.op.expand_dims(column, 1)) for column in columns], axis=1))
    return Counted(emit(relax.op.astype(joined, "int64")), 0, count)


def _number(value: Any, default: float | None) -> float | None:
    """Return a constant operand's value, read from its shortest decimal text. Return `default` if it is absent, and
    None if it is computed."""
    if value is None:
        return default
    array = constant(value)
    return None if array is None else float(str(np.asarray(array).reshape(-1)[0]))


VISION: dict[str, Convert] = {
    "CumSum": _cum_sum,
    "MaxRoiPool": _max_roi_pool,
    "NonMaxSuppression": _non_max_suppression,
    "Resize": convert_resize,
    "RoiAlign": _roi_align,
    "TopK": _top_k,
    "Upsample": convert_resize,
}

"""Write ONNX's Scan out iteration by iteration. Start at `SCAN`.

The number of iterations is a size of its inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx

from tuner.graph.importers.onnx.control import MOST_NODES, body_nodes, stacked
from tuner.graph.importers.onnx.rewrites.writer import NodeWriter, Rewrite, attributes_of


def _scan(writer: NodeWriter, node: onnx.NodeProto) -> Sequence[str] | None:
    """Hand the state on from iteration to iteration, and stack the outputs of all iterations."""
    attrs, graph = attributes_of(node), writer.model.graph
    body, scanned = attrs["body"], list(node.input[len(node.input) - attrs["num_scan_inputs"] :])
    state = list(node.input[: len(node.input) - len(scanned)])
    if writer.opset < 9:  # there Scan has a batch of sequences of different lengths
        return None
    slices = [_slices(writer, x, *how) for x, how in zip(scanned, _ways(attrs, "input", len(scanned)), strict=True)]
    turns = len(slices[0] or ())
    if None in slices or not 0 < turns * len(body.node) <= MOST_NODES:
        return None
    put_out: list[list[str]] = [[] for _ in body.output[len(state) :]]
    prefix = node.name or node.output[0]
    for turn, given in enumerate(zip(*(parts for parts in slices if parts is not None), strict=True)):
        results = [f"{prefix}/{turn}/{i}" for i in range(len(body.output))]
        writer.nodes += body_nodes(body, graph, f"{prefix}/{turn}/", given=[*state, *given], results=results)
        state = results[: len(state)]
        for parts, result in zip(put_out, results[len(state) :], strict=True):
            parts.append(result)
    outputs = [f"{prefix}/out{i}" for i in range(len(put_out))]
    ways = _ways(attrs, "output", len(put_out))
    for output, parts, (axis, backwards) in zip(outputs, put_out, ways, strict=True):
        writer.nodes += stacked(parts[::-1] if backwards else parts, output, graph, writer.opset, axis=axis)
    return [*state, *outputs]


def _ways(attrs: dict[str, Any], kind: str, count: int) -> list[tuple[int, int]]:
    """Return, for each input (or output), the axis along which the iterations go, and whether they begin at its end."""
    axes, directions = (attrs.get(f"scan_{kind}_{what}", [0] * count) for what in ("axes", "directions"))
    return list(zip(axes, directions, strict=True))


def _slices(writer: NodeWriter, x: str, axis: int, backwards: int) -> list[str] | None:
    """Return what each iteration reads of a tensor, or None if the tensor's shape is not known."""
    shape = writer.shape(x)
    if shape is None:
        return None
    axis %= len(shape)
    rest = [*shape[:axis], *shape[axis + 1 :]]
    parts = [writer.reshape(part, rest) for part in writer.split(x, axis, [1] * shape[axis])]
    return parts[::-1] if backwards else parts


SCAN: dict[tuple[str, str], Rewrite] = {("", "Scan"): _scan}

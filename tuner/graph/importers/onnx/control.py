"""Write out, in place, control flow that depends only on constants. Start at `write_out_control`.

An `If` is replaced by the branch that is taken, and a short `Loop` by its bodies, one after the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tuner.graph.importers.onnx.rules import opset_of

MOST_NODES = 4096  # nodes that a loop may become


def set_nodes(graph: onnx.GraphProto, nodes: Iterable[onnx.NodeProto]) -> None:
    """Replace the nodes of a graph. Nodes of the graph itself may be among the new ones: they are copied first, since
    they become invalid when they are removed."""
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)


def write_out_control(model: onnx.ModelProto) -> bool:
    """Replace every node of control flow whose condition is a constant, and return whether there was one."""
    graph = model.graph
    values = {tensor.name: tensor for tensor in graph.initializer}
    nodes: list[onnx.NodeProto] = []
    changed = False
    for node in graph.node:
        written = _written_out(node, model, values)
        nodes += [node] if written is None else written
        changed = changed or written is not None
    if changed:
        set_nodes(graph, nodes)
    return changed


def _written_out(
    node: onnx.NodeProto, model: onnx.ModelProto, values: Mapping[str, onnx.TensorProto]
) -> list[onnx.NodeProto] | None:
    """Return the nodes that replace a node of control flow. Return None if it is none or depends on computed values."""
    if node.op_type == "If" and node.input[0] in values:
        taken = bool(numpy_helper.to_array(values[node.input[0]]).reshape(-1)[0])
        branch = next(a.g for a in node.attribute if a.name == ("then_branch" if taken else "else_branch"))
        return body_nodes(branch, model.graph, f"{_name(node)}/", given=[], results=node.output)
    if node.op_type == "Loop":
        return _unrolled(node, model, values)
    return None


def _unrolled(
    node: onnx.NodeProto, model: onnx.ModelProto, values: Mapping[str, onnx.TensorProto]
) -> list[onnx.NodeProto] | None:
    """Write out a loop that has a known number of iterations and a condition that stays as it is. The outputs of all
    iterations are stacked. Return None if it cannot be written out, or would become too large."""
    graph, body = model.graph, next(a.g for a in node.attribute if a.name == "body")
    turns = _turns(node, body, values)
    if turns is None or turns * len(body.node) > MOST_NODES:
        return None
    carried, scans = list(node.input[2:]), len(node.output) - len(node.input[2:])
    nodes: list[onnx.NodeProto] = []
    put_out: list[list[str]] = [[] for _ in range(scans)]
    for turn in range(turns):
        prefix = f"{_name(node)}/{turn}/"
        at, condition = f"{prefix}turn", f"{prefix}condition"
        graph.initializer.append(numpy_helper.from_array(np.array(turn, np.int64), at))
        graph.initializer.append(numpy_helper.from_array(np.array(True), condition))
        results = [f"{prefix}{i}" for i in range(len(body.output))]
        nodes += body_nodes(body, graph, prefix, given=[at, condition, *carried], results=results)
        carried = results[1 : 1 + len(carried)]
        for parts, result in zip(put_out, results[1 + len(carried) :], strict=True):
            parts.append(result)
    nodes += [helper.make_node("Identity", [c], [o]) for c, o in zip(carried, node.output, strict=False) if o]
    for parts, output in zip(put_out, node.output[len(carried) :], strict=True):
        nodes += stacked(parts, output, graph, opset_of(model)) if output else []
    return nodes


def _turns(node: onnx.NodeProto, body: onnx.GraphProto, values: Mapping[str, onnx.TensorProto]) -> int | None:
    """Return how often the loop runs. Return None if that is not known, or if it does not run and so has no outputs."""
    most, going = (values.get(name) if name else None for name in (*node.input[:2], "")[:2])
    if most is None or (node.input[1:2] and node.input[1] and going is None):
        return None
    if going is not None and not numpy_helper.to_array(going).reshape(-1)[0]:
        return None
    if _origin(body, body.output[0].name) != body.input[1].name and not _is_true(body, body.output[0].name):
        return None
    return int(numpy_helper.to_array(most).reshape(-1)[0]) or None


def _origin(body: onnx.GraphProto, name: str) -> str:
    """Return the name of the value that reaches `name` through nodes that only hand it on."""
    made = {node.output[0]: node for node in body.node if node.op_type in ("Identity", "Cast")}
    while name in made:
        name = made[name].input[0]
    return name


def _is_true(body: onnx.GraphProto, name: str) -> bool:
    """Return whether a value of the body is the constant true."""
    origin = _origin(body, name)
    tensors = [t for t in body.initializer if t.name == origin]
    tensors += [a.t for n in body.node if n.op_type == "Constant" and n.output[0] == origin for a in n.attribute]
    return any(t.data_type and bool(numpy_helper.to_array(t).reshape(-1)[0]) for t in tensors)


def stacked(
    parts: list[str], output: str, graph: onnx.GraphProto, opset: int, *, axis: int = 0
) -> list[onnx.NodeProto]:
    """Return nodes that stack the results of all iterations along a new axis. The axes of Unsqueeze are an operand
    since operator set 13."""
    rows, reads, attributes = [f"{output}/{i}" for i in range(len(parts))], [], {"axes": [axis]}
    if opset >= 13:
        reads, attributes = [f"{output}/axes"], {}
        graph.initializer.append(numpy_helper.from_array(np.array([axis]), reads[0]))
    nodes = [
        helper.make_node("Unsqueeze", [part, *reads], [row], **attributes)
        for part, row in zip(parts, rows, strict=True)
    ]
    return [*nodes, helper.make_node("Concat", rows, [output], axis=axis)]


def body_nodes(
    body: onnx.GraphProto, graph: onnx.GraphProto, prefix: str, *, given: Iterable[str], results: Iterable[str]
) -> list[onnx.NodeProto]:
    """Return copies of the body's nodes that have names of their own. They read the tensors `given` and write
    `results`. The body's weights are added to the graph."""
    names = dict(zip((value.name for value in body.input), given, strict=True))
    own = [name for node in body.node for name in node.output if name]
    names |= {name: f"{prefix}{name}" for name in [*own, *(tensor.name for tensor in body.initializer)]}
    copies = []
    for tensor in body.initializer:
        graph.initializer.add().CopyFrom(tensor)
        graph.initializer[-1].name = names[tensor.name]
    for node in body.node:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copy.name = f"{prefix}{_name(node)}"
        rename(copy, names)
        copies.append(copy)
    ends = zip(body.output, results, strict=True)
    return [*copies, *(helper.make_node("Identity", [names.get(e.name, e.name)], [r]) for e, r in ends if r)]


def rename(node: onnx.NodeProto, names: Mapping[str, str]) -> None:
    """Rename the tensors that a node reads and writes, and those that graphs in it read from outside."""
    for field in (node.input, node.output):
        field[:] = [names.get(name, name) for name in field]
    for attribute in node.attribute:
        for inner in [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]:
            hidden = {v.name for v in inner.input} | {t.name for t in inner.initializer}
            hidden |= {name for n in inner.node for name in n.output}
            seen = {old: new for old, new in names.items() if old not in hidden}
            for child in inner.node:
                rename(child, seen)
            for value in inner.output:
                value.name = seen.get(value.name, value.name)


def _name(node: onnx.NodeProto) -> str:
    return node.name or node.output[0]

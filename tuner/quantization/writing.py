"""Write a network in which chosen nodes work on integers, with onnxruntime's quantizer. Start at `quantised_model`.

The quantizer rounds a tensor for all nodes that read it, also for those that stay in float. Here those read the real
numbers, and so do the outputs of the network: what is not computed in integers loses nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Collection

import onnx
from onnxruntime.quantization import QuantType
from onnxruntime.quantization.calibrate import TensorsData
from onnxruntime.quantization.qdq_quantizer import QDQQuantizer

from tuner.quantization.operators import JOINTS, MOVERS, PRODUCTS

_QUANTIZE, _DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"


def quantised_model(model: onnx.ModelProto, ranges: TensorsData, nodes: Collection[str]) -> onnx.ModelProto:
    """Return a QDQ model with uint8 activations and int8 weights, which have one scale for each channel.

    `nodes` are the names of those that work on integers (`operators.Network.quantised`). `model` and `ranges` stay as
    they are.
    """
    result: onnx.ModelProto = copy.deepcopy(model)
    if not nodes:
        return result
    quantizer = QDQQuantizer(
        result,
        per_channel=True,
        reduce_range=False,
        weight_qType=QuantType.QInt8,
        activation_qType=QuantType.QUInt8,
        tensors_range=TensorsData(ranges.calibration_method, dict(ranges.data)),  # the quantizer changes some
        nodes_to_quantize=list(nodes),
        nodes_to_exclude=[],
        op_types_to_quantize=[*PRODUCTS, *JOINTS, *MOVERS],
        extra_options={},
    )
    quantizer.quantize_model()
    graph = quantizer.model.model.graph
    _read_real_numbers(graph, nodes)
    _return_real_numbers(graph)
    quantizer.model.topological_sort()
    _remove_unread(graph)
    quantizer.model.clean_initializers()
    return quantizer.model.model


def _real(makers: dict[str, onnx.NodeProto], name: str) -> str:
    """Return the tensor of real numbers that a dequantised one was rounded from, or `name` for any other tensor."""
    last = makers.get(name)
    if last is None or last.op_type != _DEQUANTIZE:
        return name
    first = makers.get(last.input[0])
    return name if first is None or first.op_type != _QUANTIZE else first.input[0]


def _makers(graph: onnx.GraphProto) -> dict[str, onnx.NodeProto]:
    return {name: node for node in graph.node for name in node.output}


def _read_real_numbers(graph: onnx.GraphProto, quantised: Collection[str]) -> None:
    """Let all nodes that are not quantised read tensors before they are rounded."""
    makers = _makers(graph)
    for node in graph.node:
        if node.name not in quantised and node.op_type not in (_QUANTIZE, _DEQUANTIZE):
            for index, name in enumerate(node.input):
                node.input[index] = _real(makers, name)


def _return_real_numbers(graph: onnx.GraphProto) -> None:
    """Let the outputs of the network be tensors before they are rounded."""
    makers, renamed = _makers(graph), dict[str, str]()
    for value in graph.output:
        real = _real(makers, value.name)
        if real != value.name:
            renamed |= {real: value.name, value.name: f"{value.name}_dequantized"}
    for node in graph.node:
        for names in (node.input, node.output):
            for index, name in enumerate(names):
                names[index] = renamed.get(name, name)
    kept = [value for value in graph.value_info if value.name not in {*renamed, *renamed.values()}]
    del graph.value_info[:]
    graph.value_info.extend(kept)


def _remove_unread(graph: onnx.GraphProto) -> None:
    """Remove nodes whose results nobody reads any more. The nodes are in the order in which they are computed."""
    read = {value.name for value in graph.output}
    kept = []
    for node in reversed(list(graph.node)):
        if read & set(node.output):
            kept.append(node)
            read |= set(node.input)
    del graph.node[:]
    graph.node.extend(reversed(kept))

"""This program times a network of the zoo in torch, for stages.py, which starts it.

    python benchmarks/stages_child.py MODEL.onnx [--device cuda:0] [--rounds 25]

It is another process because TVM imports torch if torch is loaded. It prints one JSON object: the median milliseconds
of whole inferences that run eagerly, compiled (`torch.compile`), and captured into a CUDA graph, or the reason why
there are none ("skipped"). On the CPU, which serves for tests, inferences run eagerly and compiled. Sums are float32
without tensor cores (TF32), as ours are.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

INNER = 3  # warm-up inferences


def network(
    model: onnx.ModelProto, device: Any, placed: Callable[[Any], Any] = lambda weight: weight
) -> Callable[[Any], list[Any]]:
    """Return the model as a function of its only input, a tensor. `placed` changes the type or layout of a weight.

    Raises NotImplementedError for an operator that none of the networks of stages.py has.
    """
    import torch

    initial = {w.name: torch.from_numpy(np.array(numpy_helper.to_array(w))) for w in model.graph.initializer}
    weights = {name: placed(weight.to(device)) for name, weight in initial.items()}
    given, outputs = model.graph.input[0].name, [o.name for o in model.graph.output]
    steps = []
    for node in model.graph.node:
        if node.op_type not in OPERATORS:
            raise NotImplementedError(f"{node.name}: {node.op_type}")
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        # Slice positions and paddings become numbers here, because a compiler cannot see the values of tensors.
        known = [weights[n].tolist() for n in node.input[1:]] if node.op_type in ("Slice", "Pad") else None
        steps.append((OPERATORS[node.op_type], attributes, list(node.input), node.output[0], known))

    def run(data: Any) -> list[Any]:
        values = {**weights, given: data}
        for compute, attributes, inputs, output, known in steps:
            operands = [values[inputs[0]], *known] if known is not None else [values[n] for n in inputs if n]
            values[output] = compute(attributes, *operands)
        return [values[n] for n in outputs]

    return run


def _conv(a: dict[str, Any], x: Any, weight: Any, bias: Any = None) -> Any:
    from torch.nn import functional

    x, padding = _padded(x, a.get("pads"), 0.0)
    return functional.conv2d(x, weight, bias, a.get("strides", 1), padding, a.get("dilations", 1), a.get("group", 1))


def _max_pool(a: dict[str, Any], x: Any) -> Any:
    from torch.nn import functional

    x, padding = _padded(x, a.get("pads"), -float("inf"))
    return functional.max_pool2d(x, a["kernel_shape"], a["strides"], padding, ceil_mode=bool(a.get("ceil_mode", 0)))


def _average_pool(a: dict[str, Any], x: Any) -> Any:
    import torch
    from torch.nn import functional

    kernel, strides, every = a["kernel_shape"], a["strides"], bool(a.get("count_include_pad", 0))
    padded, padding = _padded(x, a.get("pads"), 0.0)
    found = functional.avg_pool2d(padded, kernel, strides, padding, count_include_pad=every)
    if padding != [0, 0] or every or padded is x:
        return found
    ones, _ = _padded(torch.ones_like(x[:1, :1]), a.get("pads"), 0.0)
    return found / functional.avg_pool2d(ones, kernel, strides)


def _padded(x: Any, pads: list[int] | None, value: float) -> tuple[Any, list[int]]:
    """Pad `x` if its padding differs between the two sides, and return it with the padding that is left to do."""
    from torch.nn import functional

    top, left, bottom, right = pads or (0, 0, 0, 0)
    if (top, left) == (bottom, right):
        return x, [top, left]
    return functional.pad(x, [left, right, top, bottom], value=value), [0, 0]


def _normalized(a: dict[str, Any], x: Any, scale: Any, bias: Any, mean: Any, var: Any) -> Any:
    from torch.nn import functional

    return functional.batch_norm(x, mean, var, scale, bias, False, 0.0, a.get("epsilon", 1e-5))


def _gemm(a: dict[str, Any], x: Any, weight: Any, bias: Any) -> Any:
    return a.get("alpha", 1.0) * (x @ (weight.T if a.get("transB") else weight)) + a.get("beta", 1.0) * bias


def _slice(_a: dict[str, Any], x: Any, starts: list[int], ends: list[int], axes: list[int], steps: Any = None) -> Any:
    at = [slice(None)] * x.dim()
    for axis, start, end, step in zip(axes, starts, ends, steps or [1] * len(axes), strict=True):
        at[axis] = slice(start, end, step)
    return x[tuple(at)]


def _pad(_a: dict[str, Any], x: Any, pads: list[int], value: float = 0.0) -> Any:
    from torch.nn import functional

    before, after = pads[: x.dim()], pads[x.dim() :]
    both = [n for pair in zip(before[::-1], after[::-1], strict=True) for n in pair]
    return functional.pad(x, both, value=value)


def _concat(a: dict[str, Any], *parts: Any) -> Any:
    import torch

    return torch.cat(parts, a["axis"])


OPERATORS: dict[str, Callable[..., Any]] = {
    "Add": lambda _a, x, y: x + y,
    "AveragePool": _average_pool,
    "BatchNormalization": _normalized,
    "Concat": _concat,
    "Conv": _conv,
    "Dropout": lambda _a, x, *_ratio: x,
    "Flatten": lambda a, x: x.flatten(a.get("axis", 1)),
    "Gemm": _gemm,
    "GlobalAveragePool": lambda _a, x: x.mean((2, 3), keepdim=True),
    "MaxPool": _max_pool,
    "Mul": lambda _a, x, y: x * y,
    "Pad": _pad,
    "Relu": lambda _a, x: x.relu(),
    "Slice": _slice,
}


def captured(run: Callable[[Any], list[Any]], data: Any) -> Callable[[Any], list[Any]]:
    """Capture the network as one CUDA graph, which always reads this input."""
    import torch

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(INNER):
            run(data)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = run(data)

    def replay(_data: Any) -> list[Any]:
        graph.replay()
        return results

    return replay


def milliseconds(ways: dict[str, Callable[[Any], list[Any]]], data: Any, rounds: int) -> dict[str, float]:
    """Time whole inferences in turns and return the median milliseconds of each."""
    import torch

    wait = torch.cuda.synchronize if data.is_cuda else lambda: None
    times: dict[str, list[float]] = {name: [] for name in ways}
    for i in range(-INNER, rounds):
        for name, run in ways.items():
            wait()
            started = time.perf_counter()
            run(data)
            wait()
            if i >= 0:
                times[name].append(1e3 * (time.perf_counter() - started))
    return {name: median(taken) for name, taken in times.items()}


def measured(path: Path, device: str, rounds: int) -> dict[str, Any]:
    if find_spec("torch") is None:
        return {"skipped": "torch is not installed: pip install torch==2.13.0 (with CUDA)"}
    import torch

    if device.startswith("cuda") and not torch.cuda.is_available():
        return {"skipped": "torch finds no CUDA device"}
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    model = onnx.load(path)
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    data = torch.from_numpy(np.random.default_rng(0).standard_normal(shape).astype(np.float32)).to(device)
    with torch.inference_mode():
        if data.is_cuda:
            torch.cuda.set_device(data.device)
        eager = network(model, data.device)
        ways = {"torch_eager": eager, "torch_compiled": torch.compile(eager)}
        if data.is_cuda:
            ways["torch_graph"] = captured(eager, data)
        return milliseconds(ways, data, rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--rounds", type=int, default=25)
    given = parser.parse_args()
    print(json.dumps(measured(given.model, given.device, given.rounds)))


if __name__ == "__main__":
    main()

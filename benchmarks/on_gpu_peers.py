"""This program times what on_gpu.py compares with, in a Python that need not have TVM.

    python benchmarks/on_gpu_peers.py torch MODEL.onnx [--mode float32|tf32|float16] [--compiled max-autotune]
                                                       [--device cuda:0] [--rounds 30]
    python benchmarks/on_gpu_peers.py onnxruntime MODEL.onnx [--device cuda:0] [--rounds 30]
    python benchmarks/on_gpu_peers.py vision [--device cuda:0] [--rounds 30]

It prints rows, one JSON object a line. A library that is missing gives a row that says so. On the CPU, which serves for
dry runs, nothing is captured.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnx
from stages_child import captured, milliseconds, network

Row = dict[str, Any]
BOXES, SIZES = 8000, (100_000, 1_000_000)  # those of vision.py
_DTYPES = {"FLOAT": np.float32, "FLOAT16": np.float16, "INT64": np.int64, "INT32": np.int32, "UINT8": np.uint8}


def torch_network(path: Path, device: str, mode: str, compiled: str | None, rounds: int) -> Iterator[Row]:
    """Time the network in channels-last: eagerly and as a CUDA graph, or compiled in a mode of torch.compile."""
    try:
        import torch
    except ImportError as error:
        yield {"peer": "torch", "mode": mode, "skipped": str(error)}
        return
    if device.startswith("cuda") and not torch.cuda.is_available():
        yield {"peer": "torch", "mode": mode, "skipped": "torch finds no CUDA device"}
        return
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = mode == "tf32"
    dtype = torch.float16 if mode == "float16" else torch.float32
    model = onnx.load(path)
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    data = torch.from_numpy(np.random.default_rng(0).standard_normal(shape).astype(np.float32)).to(device, dtype)
    data = data.contiguous(memory_format=torch.channels_last)
    if data.is_cuda:
        torch.cuda.set_device(data.device)

    def placed(weight: Any) -> Any:
        weight = weight.to(dtype) if weight.is_floating_point() else weight
        return weight.contiguous(memory_format=torch.channels_last) if weight.dim() == 4 else weight

    with torch.inference_mode():
        try:
            eager = network(model, data.device, placed)
            ways = {"eager": eager} if compiled is None else {compiled: torch.compile(eager, mode=compiled)}
            if data.is_cuda and compiled is None:
                ways["graph"] = captured(eager, data)
            for way, taken in milliseconds(ways, data, rounds).items():
                yield {"peer": "torch", "mode": mode, "way": way, "ms": taken}
        except Exception as error:  # an operator that is missing, no compiler, no memory: the reason is the row
            yield {"peer": "torch", "mode": mode, "skipped": f"{type(error).__name__}: {error}"[:500]}


def onnxruntime_network(path: Path, device: str, rounds: int) -> Iterator[Row]:
    """Time the network with every provider for the device that is here, with copies of inputs and outputs and bound."""
    try:
        import onnxruntime
    except ImportError as error:
        yield {"peer": "onnxruntime", "skipped": str(error)}
        return
    wanted = ("TensorrtExecutionProvider", "CUDAExecutionProvider") if device.startswith("cuda") else ()
    for provider in wanted or ("CPUExecutionProvider",):
        row = {"peer": "onnxruntime", "provider": provider}
        if provider not in onnxruntime.get_available_providers():
            yield {**row, "skipped": f"onnxruntime {onnxruntime.__version__} has no {provider}"}
            continue
        session = onnxruntime.InferenceSession(str(path), providers=[provider])
        if session.get_providers()[0] != provider:
            yield {**row, "skipped": f"the session fell back to {session.get_providers()[0]}"}
            continue
        yield from ({**row, "way": way, "ms": ms} for way, ms in _session_times(session, device, rounds).items())


def _session_times(session: Any, device: str, rounds: int) -> dict[str, float]:
    rng, binding = np.random.default_rng(0), session.io_binding()
    given = session.get_inputs()
    feeds = {i.name: rng.standard_normal(i.shape).astype(_DTYPES[_onnx_name(i.type)]) for i in given}
    kind, _, number = device.partition(":")
    for name, array in feeds.items():
        import onnxruntime

        binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(array, kind, int(number or 0)))
    for output in session.get_outputs():
        binding.bind_output(output.name, kind, int(number or 0))

    def bound() -> None:
        session.run_with_iobinding(binding)
        binding.synchronize_outputs()

    return {"copied": _median_ms(lambda: session.run(None, feeds), rounds), "bound": _median_ms(bound, rounds)}


def _onnx_name(text: str) -> str:
    return {"float": "FLOAT"}.get(text[7:-1], text[7:-1].upper())  # "tensor(float)"


def _median_ms(call: Callable[[], Any], rounds: int) -> float:
    for _ in range(3):
        call()
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        call()
        times.append(1e3 * (time.perf_counter() - started))
    return median(times)


def vision(device: str, rounds: int) -> Iterator[Row]:
    """Time stable sorts and prefix sums, whose kernels in torch are CUB's, and torchvision's suppression of boxes."""
    try:
        import torch
    except ImportError as error:
        yield {"peer": "torch", "skipped": str(error)}
        return
    if device.startswith("cuda") and not torch.cuda.is_available():
        yield {"peer": "torch", "skipped": "torch finds no CUDA device"}
        return
    wait = torch.cuda.synchronize if device.startswith("cuda") else lambda: None

    def timed(call: Callable[[], Any]) -> float:
        return _median_ms(lambda: (call(), wait()), rounds)

    for size in SIZES:
        data = torch.randn(1, size, device=device)
        yield {"peer": "torch", "operator": f"scan {size}", "ms": timed(lambda d=data: torch.cumsum(d, 1))}
        sort = timed(lambda d=data: torch.sort(d, dim=1, stable=True))
        yield {"peer": "torch", "operator": f"argsort {size}", "ms": sort}
    try:
        from torchvision.ops import nms
    except (ImportError, RuntimeError) as error:  # RuntimeError: it was built for another torch
        yield {"peer": "torchvision", "skipped": str(error)}
        return
    corners = torch.rand(BOXES, 2, device=device)
    boxes = torch.cat([corners, corners + 0.1 * torch.rand(BOXES, 2, device=device)], 1)
    scores = torch.rand(BOXES, device=device)
    yield {"peer": "torchvision", "operator": f"nms {BOXES}", "ms": timed(lambda: nms(boxes, scores, 0.5))}


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("what", choices=("torch", "onnxruntime", "vision"))
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--mode", choices=("float32", "tf32", "float16"), default="float32")
    parser.add_argument(
        "--compiled", metavar="MODE", help="time only the network that torch.compile makes in this mode"
    )
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--rounds", type=int, default=30)
    given = parser.parse_args()
    if given.what == "vision":
        rows = vision(given.device, given.rounds)
    elif given.model is None:
        parser.error(f"{given.what}: needs a MODEL.onnx")
    elif given.what == "torch":
        rows = torch_network(given.model, given.device, given.mode, given.compiled, given.rounds)
    else:
        rows = onnxruntime_network(given.model, given.device, given.rounds)
    for row in rows:
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()

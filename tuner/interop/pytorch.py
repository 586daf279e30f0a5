"""Runs a built module as an operator of PyTorch. It needs the extra `torch`. Start at `torch_operator`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from tuner.errors import BadInput
from tuner.graph import TensorInfo
from tuner.module import Module

_NAMESPACE = "edgetune"


def torch_operator(module: Module, name: str) -> Any:
    """Register the module as `torch.ops.edgetune.NAME` and return the operator.

    It maps the inputs, in the module's order, to the output, or to a tuple of outputs. It works under torch.compile and
    torch.export, and has no gradient.

    Tensors in CPU memory are read in place, and results are not copied. An output whose number of entries depends on
    the values has a dynamic size there. Raises BadInput for an invalid name, and for a network without results.
    """
    import torch

    if not re.fullmatch(r"[A-Za-z_]\w*", name):
        raise BadInput(f"torch operator {name!r}: give a name of letters, digits and underscores")
    inputs, outputs = module.manifest.inputs, module.manifest.outputs
    if not outputs:
        raise BadInput(f"torch operator {name}: the network has no outputs")

    def call(*tensors: Any) -> Any:
        given = {info.name: _array(t) for info, t in zip(inputs, tensors, strict=True)}
        results = module.in_place(given)
        return _packed([_tensor(results[info.name], given) for info in outputs])

    def fake(*_tensors: Any) -> Any:
        return _packed([_empty(info) for info in outputs])

    reads = ", ".join(f"Tensor input{i}" for i in range(len(inputs)))
    makes = "Tensor" if len(outputs) == 1 else f"({', '.join(['Tensor'] * len(outputs))})"
    operator = torch.library.custom_op(
        f"{_NAMESPACE}::{name}", call, mutates_args=(), schema=f"({reads}) -> {makes}", device_types="cpu"
    )
    operator.register_fake(fake)
    return operator


def _packed(results: list[Any]) -> Any:
    return results[0] if len(results) == 1 else tuple(results)


def _array(tensor: Any) -> np.ndarray:
    array: np.ndarray = tensor.detach().contiguous().numpy()
    return array


def _tensor(array: np.ndarray, given: Mapping[str, np.ndarray]) -> Any:
    """Return the array's memory as a tensor, or a copy if it shares memory with an input: an operator's results may
    not."""
    import torch

    shared = any(np.may_share_memory(array, value) for value in given.values())
    return torch.from_numpy(array.copy() if shared else array)


def _empty(info: TensorInfo) -> Any:
    import torch

    shape: list[Any] = list(info.shape)
    if info.count is not None:
        shape[info.count.axis] = torch.library.get_ctx().new_dynamic_size()
    return torch.empty(shape, dtype=getattr(torch, info.dtype))
